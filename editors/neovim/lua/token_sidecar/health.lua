-- :checkhealth token_sidecar
local M = {}

local INSTALL = {
  'pipx install token-sidecar   (or: uv tool install token-sidecar)',
  "or name the command: vim.g.token_sidecar_cmd = { '/path/to/token-sidecar', 'serve' }",
}

--- The version of what would be started, asked of the program itself.
local function check_program()
  local argv = require('token_sidecar.server').command()
  local shown, ask = table.concat(argv, ' '), vim.list_slice(argv, 1, #argv - 1)
  local ok, done = pcall(
    function() return vim.system(vim.list_extend(ask, { '--version' }), { text = true }):wait(10000) end
  )
  if ok and done.code == 0 then return vim.health.ok(('%s: %s'):format(shown, vim.trim(done.stdout))) end
  local why = ok and vim.trim(done.stderr) or tostring(done)
  vim.health.error(('`%s` does not run: %s'):format(shown, why), INSTALL)
end

local function check_clients()
  local clients = require('token_sidecar.server').clients()
  for _, client in ipairs(clients) do
    local root, buffers = client.root_dir or '(no root)', vim.tbl_count(client.attached_buffers)
    local version = vim.tbl_get(client, 'server_info', 'version') or 'starting'
    local text = '%s, %s, %d buffers, positions in %s'
    vim.health.ok(text:format(version, root, buffers, client.offset_encoding))
  end
  if #clients == 0 then vim.health.info('not running: it starts when a file is shown') end
end

function M.check()
  vim.health.start('token-sidecar')
  if vim.fn.has('nvim-0.11') == 0 then
    vim.health.error('Neovim 0.11 or later is needed for vim.lsp.enable()')
  end
  check_program()
  check_clients()
end

return M
