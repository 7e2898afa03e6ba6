-- Shows reports from the server in a floating window.

local M = {}

local MARGIN_COLUMNS, MARGIN_LINES = 4, 6
local MIN_VALUE_COLUMNS = 20 -- as in 'breakindentopt'
local NAMESPACE = vim.api.nvim_create_namespace('token_sidecar_report')
-- Each pattern, and the highlight group for its matches.
local HIGHLIGHTS = {
  { '[▏▎▍▌▋▊▉█]\\+', 'TokenSidecarBar' },
  { '░\\+', 'TokenSidecarFaint' },
  { '\\~\\?\\$[0-9.,]\\+', 'TokenSidecarCost' },
}

--- Returns how many columns a line can have that is not wrapped.
function M.columns() return math.max(1, vim.o.columns - MARGIN_COLUMNS - 1) end

--- Returns whether a line is a table row with at least three cells, which must not be wrapped.
local function is_row(line) return vim.trim(line):find('  .-%S  ') ~= nil end

--- Returns the position and size of a window for these lines, limited to the editor's size.
---@return vim.api.keyset.win_config
---@return boolean wrap whether to wrap long lines; false if a table is wider than the editor
---@return integer indent the column at which the values of labels start, and wrapped lines continue
local function layout(lines, title)
  local most, widest, widest_row = vim.o.columns - MARGIN_COLUMNS, vim.fn.strdisplaywidth(title) + 4, 0
  local indent = 0
  for _, line in ipairs(lines) do
    local width = vim.fn.strdisplaywidth(line) + 1
    widest = math.max(widest, width)
    if is_row(line) then
      widest_row = math.max(widest_row, width)
    else
      indent = math.max(indent, vim.fn.strdisplaywidth(line:match('^%S.-  +') or ''))
    end
  end
  local width, wrap, height = math.max(1, math.min(widest, most)), widest_row <= most, 0
  indent = math.max(0, math.min(indent, width - MIN_VALUE_COLUMNS))
  for _, line in ipairs(lines) do
    local value = vim.fn.strdisplaywidth(line) + 1 - indent
    height = height + (wrap and math.max(1, math.ceil(value / (width - indent))) or 1)
  end
  height = math.max(1, math.min(height, vim.o.lines - MARGIN_LINES))
  return {
    relative = 'editor',
    row = math.max(0, math.floor((vim.o.lines - height) / 2) - 1),
    col = math.max(0, math.floor((vim.o.columns - width) / 2) - 1),
    width = width,
    height = height,
  }, wrap, indent
end

--- Highlights labels, headings, bars and costs.
local function highlight(buf, lines)
  for row, line in ipairs(lines) do
    local before, after = lines[row - 1] or '', lines[row + 1] or ''
    local label = line:match('^%a[%a ]-  ') or line:match('^%d+%-%a[%a ]-  ') -- such as `7-day limit`
    if before == '' and after ~= '' and not line:find('  ', 1, true) and row > 1 then
      vim.api.nvim_buf_set_extmark(buf, NAMESPACE, row - 1, 0, { end_col = #line, hl_group = 'TokenSidecarHeading' })
    elseif label then
      vim.api.nvim_buf_set_extmark(buf, NAMESPACE, row - 1, 0, { end_col = #label, hl_group = 'TokenSidecarLabel' })
    end
  end
  for _, each in ipairs(HIGHLIGHTS) do
    vim.fn.matchadd(each[2], each[1])
  end
end

--- Shows text in a floating window. `q` and `<Esc>` close it.
---@param title string
---@param text string
---@param stays? boolean whether the cursor stays in its window
---@return integer buf
---@return integer window
function M.open(title, text, stays)
  local lines = vim.split(text, '\n')
  local buf = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_lines(buf, 0, -1, true, lines)
  vim.bo[buf].bufhidden, vim.bo[buf].modifiable, vim.bo[buf].filetype = 'wipe', false, 'token-sidecar'
  local look = { style = 'minimal', border = 'rounded', title = (' %s '):format(title) }
  local place, wrap, indent = layout(lines, title)
  local window = vim.api.nvim_open_win(buf, not stays, vim.tbl_extend('force', place, look))
  vim.wo[window].wrap, vim.wo[window].linebreak = wrap, true
  vim.wo[window].breakindent, vim.wo[window].breakindentopt = true, 'shift:' .. indent
  vim.api.nvim_win_call(window, function() highlight(buf, lines) end)
  local options = { buffer = buf, nowait = true, silent = true }
  vim.keymap.set('n', 'q', '<Cmd>close<CR>', options)
  vim.keymap.set('n', '<Esc>', '<Cmd>close<CR>', options)
  vim.api.nvim_create_autocmd('VimResized', {
    buffer = buf,
    callback = function() vim.api.nvim_win_set_config(window, (layout(lines, title))) end,
  })
  return buf, window
end

return M
