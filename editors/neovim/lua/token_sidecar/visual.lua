-- The count of the visual selection as virtual text beside the cursor.
local M = {}

local DEBOUNCE_MS = 60
local namespace = vim.api.nvim_create_namespace('token_sidecar_selection')
local group = vim.api.nvim_create_augroup('token_sidecar_selection', {})
local timer, shown_in, asked = assert(vim.uv.new_timer()), nil, 0

local function is_visual() return vim.fn.mode():find('^[vV\22]') ~= nil end

local function clear()
  if shown_in and vim.api.nvim_buf_is_valid(shown_in) then
    vim.api.nvim_buf_clear_namespace(shown_in, namespace, 0, -1)
  end
  shown_in = nil
end

local function show(buf, count)
  clear()
  local tokens = require('token_sidecar.format').tokens(count.tokens, count.method)
  vim.api.nvim_buf_set_extmark(buf, namespace, vim.fn.line('.') - 1, 0, {
    virt_text = { { ('%s tokens'):format(tokens), 'TokenSidecarSelection' } },
  })
  shown_in = buf
end

local function update()
  local buf, client = vim.api.nvim_get_current_buf(), require('token_sidecar.server').clients(0)[1]
  if not (client and client.initialized and is_visual()) then return end
  asked = asked + 1
  local mine, params = asked, { text = require('token_sidecar.selection').visual() }
  client:request('tokens/count', params, function(_, count)
    if count and mine == asked and is_visual() and vim.api.nvim_get_current_buf() == buf then
      show(buf, count)
    end
  end, buf)
end

local function later() timer:start(DEBOUNCE_MS, 0, vim.schedule_wrap(update)) end

--- From the beginning of a selection to its end.
function M.start()
  vim.api.nvim_clear_autocmds({ group = group })
  vim.api.nvim_create_autocmd('CursorMoved', { group = group, callback = later })
  vim.api.nvim_create_autocmd('ModeChanged', {
    group = group,
    pattern = '[vV\22]*:*',
    callback = function()
      if not is_visual() then
        vim.api.nvim_clear_autocmds({ group = group })
        clear()
      end
    end,
  })
  later()
end

--- Switches it on or off for this session.
function M.toggle()
  vim.g.token_sidecar_selection = not vim.g.token_sidecar_selection
  local begin = vim.g.token_sidecar_selection and is_visual() and M.start or clear
  begin()
end

return M
