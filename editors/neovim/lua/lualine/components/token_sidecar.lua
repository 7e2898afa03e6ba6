-- lualine: sections = { lualine_x = { 'token_sidecar' } }
return require('token_sidecar.lualine')(function() return require('token_sidecar').statusline() end)
