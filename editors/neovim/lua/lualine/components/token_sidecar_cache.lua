-- lualine: sections = { lualine_x = { 'token_sidecar_cache' } }
return require('token_sidecar.lualine')(function() return require('token_sidecar').part('cache') end)
