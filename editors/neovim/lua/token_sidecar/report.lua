-- Reports in a floating window.
local M = {}

local format = require('token_sidecar.format')

--- Shows lines in a floating window that `q` and `<Esc>` close.
---@param title string
---@param lines string[]
function M.open(title, lines)
  local buf = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_lines(buf, 0, -1, true, lines)
  vim.bo[buf].bufhidden, vim.bo[buf].modifiable = 'wipe', false
  vim.bo[buf].filetype = 'token-sidecar'
  local width = vim.fn.strdisplaywidth(title) + 4
  for _, line in ipairs(lines) do
    width = math.max(width, vim.fn.strdisplaywidth(line) + 1)
  end
  width = math.max(1, math.min(width, vim.o.columns - 4))
  local height = math.max(1, math.min(#lines, vim.o.lines - 6))
  local win = vim.api.nvim_open_win(buf, true, {
    relative = 'editor',
    row = math.max(0, math.floor((vim.o.lines - height) / 2) - 1),
    col = math.max(0, math.floor((vim.o.columns - width) / 2) - 1),
    width = width,
    height = height,
    style = 'minimal',
    border = 'rounded',
    title = (' %s '):format(title),
  })
  vim.wo[win].wrap = false
  for _, key in ipairs({ 'q', '<Esc>' }) do
    vim.keymap.set('n', key, '<Cmd>close<CR>', { buffer = buf, nowait = true, silent = true })
  end
end

---@param usage token_sidecar.ContextUsage
---@return string[]
function M.context_lines(usage)
  if not usage.tokens then
    return { 'No conversation is known here.' }
  end
  local integer = format.integer
  local used = format.tokens(usage.tokens, usage.method)
  local lines = {
    ('%s of %s usable tokens, %d %%'):format(used, integer(usage.usable), usage.percent),
    ('%s, window %s (%s), reserve %s'):format(
      usage.model or '?',
      integer(usage.limit),
      usage.limitSource,
      integer(usage.reserve)
    ),
  }
  local session = usage.session
  if session then
    table.insert(lines, ('session %s (%s), %d turns'):format(session.id, session.source, usage.turns or 0))
  end
  if usage.costUsd then
    table.insert(lines, 'cost so far ' .. format.usd(usage.costUsd))
  end
  local rows = {}
  for _, part in ipairs({ 'system', 'tools', 'sections', 'turns', 'overhead' }) do
    local tokens = (usage.breakdown or {})[part]
    if tokens then
      table.insert(rows, { part, integer(tokens), '' })
    end
  end
  vim.list_extend(lines, { '', unpack(format.table(rows)) })
  if #(usage.largest or {}) > 0 then
    local largest = vim.tbl_map(function(each)
      return { integer(each.tokens), (each.label:gsub('\n', ' ')) }
    end, usage.largest)
    vim.list_extend(lines, { '', 'Largest', unpack(format.table(largest)) })
  end
  return lines
end

---@param detail token_sidecar.CostReport
---@return string[]
function M.cost_lines(detail)
  local lines = vim.tbl_map(function(row)
    return row.text
  end, detail.rows)
  if #lines == 0 then
    return { 'Nothing has been recorded for this workspace.' }
  end
  local totals = detail.totals
  local sum = ('%s calls, %s'):format(format.integer(totals.calls), format.usd(totals.costUsd))
  if (totals.unpricedTokens or 0) > 0 then
    sum = sum .. (', %s tokens unpriced'):format(format.integer(totals.unpricedTokens))
  end
  return vim.list_extend(lines, { '', sum })
end

---@param counts token_sidecar.Count[]
---@return string[]
function M.compare_lines(counts)
  table.sort(counts, function(a, b)
    return a.tokens < b.tokens
  end)
  local rows = { { 'model', 'tokens', 'of window', 'as input', 'method' } }
  for _, each in ipairs(counts) do
    table.insert(rows, {
      each.model,
      format.tokens(each.tokens, each.method),
      each.percent and each.percent .. ' %' or '?',
      format.usd(each.inputCostUsd),
      each.method,
    })
  end
  return format.table(rows)
end

return M
