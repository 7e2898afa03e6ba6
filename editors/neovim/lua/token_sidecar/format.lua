-- Numbers as people read them.
local M = {}

---@param number integer
---@return string `1,234,567`
function M.integer(number)
  local digits = ('%d'):format(number)
  return (digits:reverse():gsub('(%d%d%d)', '%1,'):reverse():gsub('^(-?),', '%1'))
end

--- `~` stands before what is not exact.
---@param tokens? integer
---@param method? string
---@return string `~1,234`
function M.tokens(tokens, method)
  if not tokens then
    return 'unknown'
  end
  local about = (method == 'estimate' or method == 'calibrated') and '~' or ''
  return about .. M.integer(tokens)
end

---@param usd? number
---@return string `$0.012`, or `unpriced`
function M.usd(usd)
  return usd and ('$%.6f'):format(usd):gsub('0+$', ''):gsub('%.$', '.00') or 'unpriced'
end

---@param count token_sidecar.Count
---@return string `1,234 tokens (exact, gpt-5)`
function M.count(count)
  return ('%s tokens (%s, %s)'):format(M.tokens(count.tokens, count.method), count.method, count.model)
end

--- Rows with their columns aligned: the last as it is, those between to the right.
---@param rows string[][]
---@return string[]
function M.table(rows)
  local widths = {}
  for _, row in ipairs(rows) do
    for index, cell in ipairs(row) do
      widths[index] = math.max(widths[index] or 0, vim.fn.strdisplaywidth(cell))
    end
  end
  return vim.tbl_map(function(row)
    local cells = {}
    for index, cell in ipairs(row) do
      local gap = (' '):rep(widths[index] - vim.fn.strdisplaywidth(cell))
      local last, first = index == #row, index == 1
      cells[index] = last and cell or first and cell .. gap or gap .. cell
    end
    return table.concat(cells, '  ')
  end, rows)
end

return M
