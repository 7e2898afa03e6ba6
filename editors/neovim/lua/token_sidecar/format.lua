-- What people read: numbers, one short message.
local M = {}

--- From anywhere: an exit callback may not draw.
---@param level? integer vim.log.levels, INFO by default
function M.notify(text, level)
  vim.schedule(function() vim.notify('token-sidecar: ' .. text, level or vim.log.levels.INFO) end)
end

---@return string `1,234,567`
function M.integer(number)
  return (('%d'):format(number):reverse():gsub('(%d%d%d)', '%1,'):reverse():gsub('^(-?),', '%1'))
end

---@return string `1,234`, with `~` before what is not exact
function M.tokens(tokens, method)
  return ((method == 'estimate' or method == 'calibrated') and '~' or '') .. M.integer(tokens)
end

---@param count token_sidecar.Count
---@return string `1,234 tokens (exact, gpt-5)`
function M.count(count)
  return ('%s tokens (%s, %s)'):format(M.tokens(count.tokens, count.method), count.method, count.model)
end

return M
