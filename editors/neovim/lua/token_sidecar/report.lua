-- Reports in a floating window.
local M = {}

local format = require('token_sidecar.format')

--- Shows lines in a floating window that `q` and `<Esc>` close.
function M.open(title, lines)
  local buf, widths = vim.api.nvim_create_buf(false, true), vim.tbl_map(vim.fn.strdisplaywidth, lines)
  vim.api.nvim_buf_set_lines(buf, 0, -1, true, lines)
  vim.bo[buf].bufhidden, vim.bo[buf].modifiable, vim.bo[buf].filetype = 'wipe', false, 'token-sidecar'
  local width = math.max(1, math.min(math.max(#title + 4, unpack(widths)) + 1, vim.o.columns - 4))
  local height = math.max(1, math.min(#lines, vim.o.lines - 6))
  vim.api.nvim_open_win(buf, true, {
    relative = 'editor',
    row = math.floor((vim.o.lines - height) / 2) - 1,
    col = math.floor((vim.o.columns - width) / 2) - 1,
    width = width,
    height = height,
    style = 'minimal',
    border = 'rounded',
    title = (' %s '):format(title),
  })
  local options = { buffer = buf, nowait = true, silent = true }
  vim.keymap.set('n', 'q', '<Cmd>close<CR>', options)
  vim.keymap.set('n', '<Esc>', '<Cmd>close<CR>', options)
end

---@param usage token_sidecar.ContextUsage
function M.context(usage)
  if not usage.tokens then return { 'No conversation is known here.' } end
  local integer, session = format.integer, usage.session or {}
  local used = format.tokens(usage.tokens, usage.method)
  local lines = {
    ('%s of %s usable tokens, %d %%'):format(used, integer(usage.usable), usage.percent),
    ('window %s (%s), reserve %s'):format(integer(usage.limit), usage.limitSource, integer(usage.reserve)),
    ('model %s, cost so far %s'):format(usage.model, format.usd(usage.costUsd)),
    ('session %s (%s), %d turns'):format(session.id, session.source, usage.turns or 0),
    '',
  }
  local rows = vim.tbl_map(
    function(part) return { part, integer((usage.breakdown or {})[part] or 0), '' } end,
    { 'system', 'tools', 'sections', 'turns', 'overhead' }
  )
  for _, each in ipairs(usage.largest) do
    table.insert(rows, { 'largest', integer(each.tokens), (each.label:gsub('\n', ' ')) })
  end
  return vim.list_extend(lines, format.table(rows))
end

---@param detail token_sidecar.CostReport
function M.cost(detail)
  local lines = vim.tbl_map(function(row) return row.text end, detail.rows)
  if #lines == 0 then return { 'Nothing has been recorded for this workspace.' } end
  local totals = detail.totals
  local sum = ('%s calls, %s'):format(format.integer(totals.calls), format.usd(totals.costUsd))
  local unpriced = (', %s tokens unpriced'):format(format.integer(totals.unpricedTokens))
  return vim.list_extend(lines, { '', totals.unpricedTokens > 0 and sum .. unpriced or sum })
end

---@param counts token_sidecar.Count[]
function M.compare(counts)
  table.sort(counts, function(a, b) return a.tokens < b.tokens end)
  local rows = { { 'model', 'tokens', 'of window', 'as input', 'method' } }
  for _, each in ipairs(counts) do
    local share = each.percent and each.percent .. ' %' or '?'
    local tokens = format.tokens(each.tokens, each.method)
    table.insert(rows, { each.model, tokens, share, format.usd(each.inputCostUsd), each.method })
  end
  return format.table(rows)
end

return M
