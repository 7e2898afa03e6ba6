-- Reads the selected text, or the text in a command's range. If the range is the last visual selection, only the
-- selected characters are read. Otherwise, whole lines are read.
local M = {}

local EOL, BLOCK = { unix = '\n', dos = '\r\n', mac = '\r' }, '\22'

--- Returns whole lines with their line endings. The buffer's last line has a line ending only if 'endofline' is set.
---@param first? integer 1-based, default: the first
---@param last? integer 1-based and included, default: the last
---@return string
function M.lines(buf, first, last)
  local count, eol = vim.api.nvim_buf_line_count(buf), EOL[vim.bo[buf].fileformat]
  local lines = vim.api.nvim_buf_get_lines(buf, (first or 1) - 1, last or count, true)
  local ends = (last or count) < count or vim.bo[buf].eol
  return table.concat(lines, eol) .. (ends and eol or '')
end

local function line(lnum) return vim.api.nvim_buf_get_lines(0, lnum - 1, lnum, true)[1] end

--- Returns the characters between two positions from getpos() in the current buffer. A blockwise selection is not
--- padded, and includes partly selected tabs.
local function region(from, to, mode, to_line_ends)
  local rows = vim.tbl_map(function(row)
    local lnum, first, last = row[1][2], row[1][3], row[2][3]
    if first == 0 then return '' end
    local text = line(lnum)
    last = to_line_ends and #text or last + vim.str_utf_end(text, math.max(1, math.min(last, #text)))
    return text:sub(first, last)
  end, vim.fn.getregionpos(from, to, { type = mode }))
  if mode == BLOCK then return table.concat(rows, '\n') end
  local eol = EOL[vim.bo.fileformat]
  -- A selection that ends after the last character of a line includes the line ending.
  local behind = vim.o.selection ~= 'exclusive' and to[3] > #line(to[2])
  return table.concat(rows, eol) .. (behind and to[2] < vim.api.nvim_buf_line_count(0) and eol or '')
end

--- Returns whether the last blockwise selection was extended to the ends of the lines with `$`.
local function was_to_line_ends()
  local view = vim.fn.winsaveview()
  vim.cmd('noautocmd silent normal! gv')
  local curswant = vim.fn.winsaveview().curswant
  vim.cmd('noautocmd silent normal! \27')
  vim.fn.winrestview(view)
  return curswant == vim.v.maxcol
end

--- Returns the text of the current visual selection.
function M.visual()
  local mode, from, to = vim.fn.mode(), vim.fn.getpos('v'), vim.fn.getpos('.')
  if mode == 'V' then return M.lines(0, math.min(from[2], to[2]), math.max(from[2], to[2])) end
  if to[2] < from[2] or to[2] == from[2] and to[3] < from[3] then
    from, to = to, from
  end
  return region(from, to, mode, mode == BLOCK and vim.fn.winsaveview().curswant == vim.v.maxcol)
end

--- Returns the text in a command's range in the current buffer, or nil if there is no range.
---@return string?
function M.of_command(opts)
  if opts.range == 0 then return nil end
  local from, to, mode = vim.fn.getpos("'<"), vim.fn.getpos("'>"), vim.fn.visualmode()
  local is_visual = opts.range == 2 and from[2] == opts.line1 and to[2] == opts.line2
  if is_visual and mode == 'v' then return region(from, to, mode) end
  if is_visual and mode == BLOCK then return region(from, to, mode, was_to_line_ends()) end
  return M.lines(0, opts.line1, opts.line2)
end

return M
