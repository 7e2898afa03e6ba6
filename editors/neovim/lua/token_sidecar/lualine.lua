-- Turns a function that returns text into a lualine component, and redraws lualine when the status changes.
local is_refreshing = false

local function refresh()
  vim.schedule(function()
    local lualine = package.loaded.lualine -- a component may be in use without it
    if lualine then lualine.refresh({ force = true, place = { 'statusline', 'winbar' } }) end
  end)
end

---@param text fun(): string
---@return fun(): string component
return function(text)
  if not is_refreshing then
    is_refreshing = true
    local group = vim.api.nvim_create_augroup('token_sidecar_lualine', {})
    vim.api.nvim_create_autocmd('User', { group = group, pattern = 'TokenSidecarStatus', callback = refresh })
  end
  -- lualine inserts the result into a statusline, where % starts an item.
  return function() return (text():gsub('%%', '%%%%')) end
end
