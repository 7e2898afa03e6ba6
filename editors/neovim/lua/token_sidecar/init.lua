local M = {}

--- The count of a buffer as its last `status/update` said it. Reads a variable, nothing else.
---@param buf? integer default: the current buffer
---@return string text such as `12,345 tokens`, or `` before the first count
function M.statusline(buf)
  return vim.b[buf or 0].token_sidecar_status or ''
end

return M
