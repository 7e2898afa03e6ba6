-- lualine: sections = { lualine_x = { 'token_sidecar_context' } }
return require('token_sidecar.lualine')(function() return require('token_sidecar').part('context') end)
