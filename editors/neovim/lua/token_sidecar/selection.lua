-- The text that a command is about, exactly: a range that is the last visual selection stands for
-- the characters that were selected, any other range for whole lines.
local M = {}

local EOL = { unix = '\n', dos = '\r\n', mac = '\r' }
local BLOCK = '\22'

---@param buf integer
---@return string
local function eol(buf)
  return EOL[vim.bo[buf].fileformat] or '\n'
end

--- Whole lines with their line ends; the last without one where the buffer has none.
---@param buf integer
---@param first integer 1-based
---@param last integer 1-based, included
---@return string
function M.lines(buf, first, last)
  local text = table.concat(vim.api.nvim_buf_get_lines(buf, first - 1, last, true), eol(buf))
  local ends = last < vim.api.nvim_buf_line_count(buf) or vim.bo[buf].eol
  return ends and text .. eol(buf) or text
end

---@param lnum integer 1-based
---@return string
local function line(lnum)
  return vim.api.nvim_buf_get_lines(0, lnum - 1, lnum, true)[1]
end

--- Whether the last blockwise selection was extended to the line ends with `$`.
local function to_line_ends()
  local view = vim.fn.winsaveview()
  vim.cmd('noautocmd silent normal! gv')
  local curswant = vim.fn.winsaveview().curswant
  vim.cmd('noautocmd silent normal! \27')
  vim.fn.winrestview(view)
  return curswant == vim.v.maxcol
end

--- The rows of a region of the current buffer, in the document's own characters: no padding, and
--- a tab that is half inside is inside.
---@param from integer[] as of getpos()
---@param to integer[]
---@param mode string "v" or CTRL-V
---@return string[]
local function rows(from, to, mode)
  local whole = mode == BLOCK and to_line_ends()
  return vim.tbl_map(function(row)
    local lnum, first, last = row[1][2], row[1][3], row[2][3]
    if first == 0 then
      return ''
    end
    local text = line(lnum)
    last = whole and #text or last + vim.str_utf_end(text, math.max(1, math.min(last, #text)))
    return text:sub(first, last)
  end, vim.fn.getregionpos(from, to, { type = mode }))
end

--- The last charwise or blockwise selection of the current buffer.
---@param from integer[]
---@param to integer[]
---@param mode string
---@return string
local function selected(from, to, mode)
  if mode == BLOCK then
    return table.concat(rows(from, to, mode), '\n')
  end
  local text = table.concat(rows(from, to, mode), eol(0))
  -- A cursor behind the last character of a line has the line's end in the selection.
  local behind = vim.o.selection ~= 'exclusive' and to[3] > #line(to[2])
  return behind and to[2] < vim.api.nvim_buf_line_count(0) and text .. eol(0) or text
end

--- What the current buffer's visual mode has selected now.
---@return string
function M.visual()
  local mode, from, to = vim.fn.mode(), vim.fn.getpos('v'), vim.fn.getpos('.')
  if mode == 'V' then
    return M.lines(0, math.min(from[2], to[2]), math.max(from[2], to[2]))
  end
  if to[2] < from[2] or to[2] == from[2] and to[3] < from[3] then
    from, to = to, from
  end
  return selected(from, to, mode)
end

--- The text of a command's range in the current buffer; nil when it was given none.
---@param opts vim.api.keyset.create_user_command.command_args
---@return string?
function M.of_command(opts)
  if opts.range == 0 then
    return nil
  end
  local from, to, mode = vim.fn.getpos("'<"), vim.fn.getpos("'>"), vim.fn.visualmode()
  local is_visual = opts.range == 2 and from[2] == opts.line1 and to[2] == opts.line2
  if is_visual and (mode == 'v' or mode == BLOCK) then
    return selected(from, to, mode)
  end
  return M.lines(0, opts.line1, opts.line2)
end

--- A whole buffer as Neovim sends it to a server.
---@param buf integer
---@return string
function M.document(buf)
  return M.lines(buf, 1, vim.api.nvim_buf_line_count(buf))
end

return M
