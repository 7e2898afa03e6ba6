-- Reports of the server in a floating window.
local M = {}

--- Shows a text in a floating window that `q` and `<Esc>` close.
---@param on_enter? fun(line: integer) called by `<CR>` with the line, after the window is closed
function M.open(title, text, on_enter)
  local lines = vim.split(text, '\n')
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
  if not on_enter then return end
  vim.wo.cursorline = true
  vim.keymap.set('n', '<CR>', function()
    local line = vim.fn.line('.')
    vim.cmd.close()
    on_enter(line)
  end, options)
end

return M
