-- Functions for status lines. They only read values that the server has sent.
local M = {}

--- Returns the status text of a buffer.
---@param buf? integer default: the current buffer
---@return string text such as `12,345 tokens`, or `` before the first count
function M.statusline(buf) return vim.b[buf or 0].token_sidecar_status or '' end

--- Returns the status text as a statusline or winbar item in the colour of its severity, for `%{%…%}`.
---@param buf? integer default: the current buffer
---@return string item `%#TokenSidecarWarning#…%*`, or `` before the first count
function M.winbar(buf)
  local status = vim.b[buf or 0].token_sidecar_status_dict
  if not status then return '' end
  local group = 'TokenSidecar' .. status.severity:gsub('^%l', string.upper)
  return ('%%#%s#%s%%*'):format(group, (status.text:gsub('%%', '%%%%')))
end

return M
