-- The configuration for vim.lsp.enable('token_sidecar'). Override it with vim.lsp.config('token_sidecar', {…}).
local function server() return require('token_sidecar.server') end

---@type vim.lsp.Config
return {
  cmd = function(dispatchers) return server().spawn(dispatchers) end,
  root_markers = { '.token-sidecar.toml', '.git', 'pyproject.toml' },
  root_dir = function(buf, on_dir) server().root_dir(buf, on_dir) end,
  on_init = function(client) server().on_init(client) end,
  on_exit = function(code, signal, client_id) server().on_exit(code, signal, client_id) end,
  -- Neovim shows the source of Markdown tables.
  capabilities = { textDocument = { hover = { contentFormat = { 'plaintext' } } } },
  handlers = {
    ['status/update'] = function(_, status, ctx) require('token_sidecar.status').update(status, ctx) end,
    ['context/warning'] = function(_, warning) require('token_sidecar.status').warn(warning) end,
  },
}
