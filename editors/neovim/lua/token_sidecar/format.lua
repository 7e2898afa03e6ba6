-- What people read: numbers, tables, one short message.
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

---@return string `$0.000219`, or `unpriced`
function M.usd(usd) return usd and ('$%.6f'):format(usd) or 'unpriced' end

---@param count token_sidecar.Count
---@return string `1,234 tokens (exact, gpt-5)`
function M.count(count)
  return ('%s tokens (%s, %s)'):format(M.tokens(count.tokens, count.method), count.method, count.model)
end

--- Rows with their columns aligned: the first to the left, the last as it is.
---@param rows string[][]
function M.table(rows)
  local widths, width = {}, vim.fn.strdisplaywidth
  for _, row in ipairs(rows) do
    for index, cell in ipairs(row) do
      widths[index] = math.max(widths[index] or 0, width(cell))
    end
  end
  return vim.tbl_map(function(row)
    local cells = {}
    for index, cell in ipairs(row) do
      local gap = (' '):rep(widths[index] - width(cell))
      cells[index] = index == #row and cell or index == 1 and cell .. gap or gap .. cell
    end
    return table.concat(cells, '  ')
  end, rows)
end

return M
