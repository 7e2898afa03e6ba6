-- No modules are loaded at start-up. They are loaded when a file is shown or a command is run.
if vim.g.loaded_token_sidecar then return end
vim.g.loaded_token_sidecar = 1

--- If vim.g.token_sidecar_enabled is false, the server starts only after vim.lsp.enable('token_sidecar').
local function wanted()
  if vim.g.token_sidecar_enabled ~= false or not package.loaded['vim.lsp'] then
    return vim.g.token_sidecar_enabled ~= false
  end
  local enabled = vim.lsp.is_enabled or function(name) return vim.lsp._enabled_configs[name] ~= nil end
  return enabled('token_sidecar')
end

local function attach(buf)
  local is_file = vim.api.nvim_buf_is_loaded(buf) and vim.api.nvim_buf_get_name(buf) ~= ''
  if is_file and vim.bo[buf].buftype == '' and wanted() then require('token_sidecar.server').attach(buf) end
end
local function attach_soon(event) vim.schedule(function() attach(event.buf) end) end

local function reopen(buf)
  if package.loaded['token_sidecar.server'] then require('token_sidecar.server').reopen(buf) end
end

local group = vim.api.nvim_create_augroup('token_sidecar', {})
local function on(events, pattern, callback)
  vim.api.nvim_create_autocmd(events, { group = group, pattern = pattern, callback = callback })
end

-- All files are attached, including those without a file type, for which vim.lsp.enable() never starts a server. The
-- callback is scheduled, so it does not delay start-up or opening a file.
on({ 'BufReadPost', 'BufNewFile', 'BufFilePost', 'BufWritePost' }, '*', attach_soon)
on('BufFilePost', '*', function(event) reopen(event.buf) end)
on('OptionSet', { 'fileformat', 'endofline' }, function() reopen(vim.api.nvim_get_current_buf()) end)
if vim.v.vim_did_enter == 1 then -- a plugin manager has loaded this file late
  vim.schedule(function() vim.tbl_map(attach, vim.api.nvim_list_bufs()) end)
end

local links = {
  Ok = 'StatusLine',
  Warning = 'DiagnosticWarn',
  Error = 'DiagnosticError',
  Selection = 'Comment',
  Label = 'Comment',
  Heading = 'Title',
  Bar = 'Function',
  Faint = 'NonText',
  Cost = 'Number',
}
for name, link in pairs(links) do
  vim.api.nvim_set_hl(0, 'TokenSidecar' .. name, { link = link, default = true })
end

local function run(opts) require('token_sidecar.commands').run(opts) end
local function complete(lead, line) return require('token_sidecar.commands').complete(lead, line) end
local about = { nargs = '*', range = true, desc = 'Counts, context and cost', complete = complete }
vim.api.nvim_create_user_command('TokenSidecar', run, about)

for _, name in ipairs({ 'count', 'compare', 'context', 'cost', 'fit', 'model', 'reset', 'restart' }) do
  local plug = ('<Plug>(token-sidecar-%s)'):format(name)
  vim.keymap.set('n', plug, ('<Cmd>TokenSidecar %s<CR>'):format(name), { silent = true })
end
vim.keymap.set('x', '<Plug>(token-sidecar-count)', ':TokenSidecar count<CR>', { silent = true })
local function toggle() require('token_sidecar.visual').toggle() end
vim.keymap.set({ 'n', 'x' }, '<Plug>(token-sidecar-selection)', toggle)
on('ModeChanged', '*:[vV\22]*', function()
  if vim.g.token_sidecar_selection then require('token_sidecar.visual').start() end
end)

-- Load each chat plugin's integration on the plugin's first event.
local function integrate(event, pattern, module)
  on(event, pattern, function(args)
    if vim.g.token_sidecar_integrations ~= false then
      require('token_sidecar.integrations.' .. module).on_event(args)
    end
  end)
end
integrate('User', { 'CodeCompanionChat*', 'CodeCompanionInline*', 'CodeCompanionRequest*' }, 'codecompanion')
integrate('FileType', 'Avante*', 'avante')
integrate('FileType', 'copilot-chat', 'copilotchat')
