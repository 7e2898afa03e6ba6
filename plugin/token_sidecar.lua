-- Lets plugin managers install the Neovim plugin from this repository. It is in editors/neovim.
local file = debug.getinfo(1, 'S').source:sub(2)
local plugin = vim.fs.joinpath(vim.fs.dirname(vim.fs.dirname(vim.fs.abspath(file))), 'editors', 'neovim')
if not vim.list_contains(vim.opt.runtimepath:get(), plugin) then
  vim.opt.runtimepath:append(plugin)
  vim.cmd.source(vim.fs.joinpath(plugin, 'plugin', 'token_sidecar.lua'))
end
