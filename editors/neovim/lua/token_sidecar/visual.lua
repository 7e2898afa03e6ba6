-- The count of the visual selection as virtual text beside the cursor.
local M = {}

local DEBOUNCE_MS = 60
local namespace = vim.api.nvim_create_namespace('token_sidecar_selection')
local group = vim.api.nvim_create_augroup('token_sidecar_selection', {})
local timer, asked = assert(vim.uv.new_timer()), 0

local function is_visual() return vim.fn.mode():find('^[vV\22]') ~= nil end

local function show(buf, count)
  local tokens = require('token_sidecar.format').tokens_text(count.tokens, count.method)
  local text = { { tokens, 'TokenSidecarSelection' } }
  vim.api.nvim_buf_clear_namespace(buf, namespace, 0, -1)
  vim.api.nvim_buf_set_extmark(buf, namespace, vim.fn.line('.') - 1, 0, { virt_text = text })
end

local function update()
  local buf, client = vim.api.nvim_get_current_buf(), require('token_sidecar.server').clients(0)[1]
  if not (client and client.initialized and is_visual()) then return end
  asked = asked + 1
  local mine, params = asked, { text = require('token_sidecar.selection').visual() }
  client:request('tokens/count', params, function(_, count)
    local current = mine == asked and is_visual() and vim.api.nvim_get_current_buf() == buf
    if count and current then show(buf, count) end
  end, buf)
end

local function later() timer:start(DEBOUNCE_MS, 0, vim.schedule_wrap(update)) end

local function stop(event)
  if is_visual() then return end
  vim.api.nvim_clear_autocmds({ group = group })
  vim.api.nvim_buf_clear_namespace(event.buf, namespace, 0, -1)
end

--- From the beginning of a selection to its end.
function M.start()
  vim.api.nvim_clear_autocmds({ group = group })
  vim.api.nvim_create_autocmd('CursorMoved', { group = group, callback = later })
  vim.api.nvim_create_autocmd('ModeChanged', { group = group, pattern = '[vV\22]*:*', callback = stop })
  later()
end

--- Switches it on or off for this session.
function M.toggle()
  vim.g.token_sidecar_selection = not vim.g.token_sidecar_selection
  if vim.g.token_sidecar_selection and is_visual() then M.start() end
end

return M
