-- lualine: sections = { lualine_x = { 'token_sidecar' } }
return function()
  -- What a component returns is read as a statusline, where % stands for an item.
  return (require('token_sidecar').statusline():gsub('%%', '%%%%'))
end
