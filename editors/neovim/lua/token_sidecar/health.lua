-- :checkhealth token_sidecar
local M = {}

local INSTALL = {
  require('token_sidecar.server').INSTALL,
  "or name the command: vim.g.token_sidecar_cmd = { '/path/to/token-sidecar', 'serve' }",
}

function M.check()
  local server, health = require('token_sidecar.server'), vim.health
  health.start('token-sidecar')
  if vim.fn.has('nvim-0.11') == 0 then health.error('Neovim 0.11 or later is needed') end
  -- The version, as the program itself reports it.
  local argv = server.command()
  if not argv then return health.error('no server found', INSTALL) end
  local ask = vim.list_extend(vim.list_slice(argv, 1, #argv - 1), { '--version' })
  local ok, done = pcall(function() return vim.system(ask, { text = true, cwd = server.START_IN }):wait(10000) end)
  local output = vim.trim(ok and done.stdout .. done.stderr or tostring(done))
  local report = ok and done.code == 0 and health.ok or health.error
  report(('%s: %s'):format(table.concat(argv, ' '), output), INSTALL)
  for _, client in ipairs(server.clients()) do
    local version = vim.tbl_get(client, 'server_info', 'version') or 'starting'
    local root, buffers = client.root_dir or '(no root)', vim.tbl_count(client.attached_buffers)
    health.ok(('%s, %s, %d buffers, positions in %s'):format(version, root, buffers, client.offset_encoding))
  end
  if #server.clients() == 0 then health.info('not running: it starts when a file is shown') end
  local chats = package.loaded['token_sidecar.integrations.chats']
  for plugin, lacks in vim.spairs(chats and chats.unknown() or {}) do
    local known = require('token_sidecar.integrations.' .. plugin:lower()).KNOWN
    health.warn(('%s is not supported: %s; supported: %s'):format(plugin, lacks, known))
  end
end

return M
