---@brief
---
--- https://github.com/token-sidecar/token-sidecar
---
--- Token counts, token budgets and context usage of AI conversations.
---
--- Install it from a clone of the repository with `pipx install .`. This configuration shows budgets
--- as diagnostics and counts on hover. To see the count in the status line, use the plugin in the
--- same repository instead.

---@type vim.lsp.Config
return {
  cmd = { 'token-sidecar', 'serve' },
  root_markers = { '.token-sidecar.toml', '.git' },
}
