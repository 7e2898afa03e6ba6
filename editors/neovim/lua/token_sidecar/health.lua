-- :checkhealth token_sidecar
local M = {}

local INSTALL = {
  'pipx install token-sidecar   (or: uv tool install token-sidecar)',
  "or name the command: vim.g.token_sidecar_cmd = { '/path/to/token-sidecar', 'serve' }",
}
local VERSION_TIMEOUT_MS = 10000

local function check_neovim()
  vim.health.start('token-sidecar: Neovim')
  if vim.fn.has('nvim-0.11') == 1 then
    vim.health.ok(tostring(vim.version()))
  else
    vim.health.error('Neovim 0.11 or later is needed for vim.lsp.enable()')
  end
end

--- The version of what would be started, asked of the program itself.
local function check_program()
  vim.health.start('token-sidecar: server program')
  local argv = require('token_sidecar.server').command()
  if vim.fn.executable(argv[1]) == 0 then
    return vim.health.error(('`%s` cannot be run'):format(argv[1]), INSTALL)
  end
  local ask = vim.list_slice(argv, 1, #argv - 1)
  local ok, done = pcall(function()
    return vim.system(vim.list_extend(ask, { '--version' }), { text = true }):wait(VERSION_TIMEOUT_MS)
  end)
  local shown = table.concat(argv, ' ')
  if ok and done.code == 0 then
    vim.health.ok(('%s: %s'):format(shown, vim.trim(done.stdout)))
  else
    local why = ok and vim.trim(done.stderr) or tostring(done)
    vim.health.error(('`%s` does not run: %s'):format(shown, why), INSTALL)
  end
end

local function check_clients()
  vim.health.start('token-sidecar: running')
  local clients = require('token_sidecar.server').clients()
  if #clients == 0 then
    vim.health.info('not running: it starts when a file is shown')
  end
  for _, client in ipairs(clients) do
    local root, buffers = client.root_dir or '(no root)', vim.tbl_count(client.attached_buffers)
    local version = vim.tbl_get(client, 'server_info', 'version') or 'starting'
    vim.health.ok(('%s, %s, %d buffers, positions in %s'):format(version, root, buffers, client.offset_encoding))
  end
  local status = vim.b.token_sidecar_status
  vim.health.info('status of this buffer: ' .. (status or 'none'))
end

function M.check()
  check_neovim()
  check_program()
  check_clients()
end

return M
