-- lualine: sections = { lualine_x = { 'token_sidecar_tokens' } }
return require('token_sidecar.lualine')(function() return require('token_sidecar').part('tokens') end)
