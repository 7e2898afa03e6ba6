-- lualine: sections = { lualine_x = { 'token_sidecar_cost' } }
return require('token_sidecar.lualine')(function() return require('token_sidecar').part('cost') end)
