-- A minimal init.lua: adds the plugin to the runtimepath, and its text to the status line.
local here = vim.fs.dirname(debug.getinfo(1, 'S').source:sub(2))
vim.opt.runtimepath:prepend(vim.fs.joinpath(vim.fs.dirname(here), 'neovim'))
vim.opt.runtimepath:append(vim.env.TOKEN_SIDECAR_TRY_HELP)
vim.cmd.helptags(vim.env.TOKEN_SIDECAR_TRY_HELP .. '/doc')

vim.o.laststatus = 2
vim.o.termguicolors = false
vim.o.statusline = " %f %m%=%{v:lua.require'token_sidecar'.statusline()} "

vim.o.showtabline = 2
vim.o.tabline = ' Try :TokenSidecar context, cost or compare, and :help token-sidecar. To leave, type :qa!'

if vim.env.TOKEN_SIDECAR_TRY_MODE == 'headless' then
  vim.o.showmode = false
  vim.o.report = 99999 -- no "500 more lines" between the printed lines
  vim.api.nvim_create_autocmd('VimEnter', {
    callback = function() dofile(here .. '/demo.lua') end,
  })
end
