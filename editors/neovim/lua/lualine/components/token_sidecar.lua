-- lualine: sections = { lualine_x = { 'token_sidecar' } }
local function refresh()
  vim.schedule(function() require('lualine').refresh({ force = true, place = { 'statusline', 'winbar' } }) end)
end
local group = vim.api.nvim_create_augroup('token_sidecar_lualine', {})
vim.api.nvim_create_autocmd('User', { group = group, pattern = 'TokenSidecarStatus', callback = refresh })

return function()
  -- lualine inserts the result into a statusline, where % starts an item.
  return (require('token_sidecar').statusline():gsub('%%', '%%%%'))
end
