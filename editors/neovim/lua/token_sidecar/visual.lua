-- Shows the token count of the visual selection as virtual text on the cursor's line.
local M = {}

local DEBOUNCE_MS = 60
local namespace = vim.api.nvim_create_namespace('token_sidecar_selection')
local group = vim.api.nvim_create_augroup('token_sidecar_selection', {})
local timer = assert(vim.uv.new_timer())
local changes = 0 -- number of selection changes; if it has changed, a requested count is outdated

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
  local document = { uri = vim.uri_from_bufnr(buf) }
  local counted, params = changes, { textDocument = document, text = require('token_sidecar.selection').visual() }
  client:request('tokens/count', params, function(_, count)
    local is_current = counted == changes and is_visual() and vim.api.nvim_get_current_buf() == buf
    if count and is_current then show(buf, count) end
  end, buf)
end

local function on_change()
  changes = changes + 1
  timer:start(DEBOUNCE_MS, 0, vim.schedule_wrap(update))
end

local function stop(buf)
  changes = changes + 1
  timer:stop()
  vim.api.nvim_clear_autocmds({ group = group })
  vim.api.nvim_buf_clear_namespace(buf, namespace, 0, -1)
end

local function on_mode_change(event)
  if not is_visual() then stop(event.buf) end
end

--- Shows the count until Visual mode ends.
function M.start()
  vim.api.nvim_clear_autocmds({ group = group })
  vim.api.nvim_create_autocmd('CursorMoved', { group = group, callback = on_change })
  vim.api.nvim_create_autocmd('ModeChanged', { group = group, pattern = '[vV\22]*:*', callback = on_mode_change })
  on_change()
end

--- Turns the count on or off.
function M.toggle()
  vim.g.token_sidecar_selection = not vim.g.token_sidecar_selection
  if not is_visual() then return end
  if vim.g.token_sidecar_selection then M.start() else stop(vim.api.nvim_get_current_buf()) end
end

return M
