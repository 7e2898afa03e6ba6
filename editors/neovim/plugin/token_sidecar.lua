-- Loads nothing of ours: that happens when a file is shown, after start-up, or a command runs.
if vim.g.loaded_token_sidecar then
  return
end
vim.g.loaded_token_sidecar = 1

--- With vim.g.token_sidecar_enabled = false only a vim.lsp.enable('token_sidecar') of the user's starts it.
local function wanted()
  return vim.g.token_sidecar_enabled ~= false
    or (package.loaded['vim.lsp'] and vim.lsp._enabled_configs.token_sidecar) ~= nil
end

---@param buf integer
local function attach(buf)
  local is_file = vim.api.nvim_buf_is_loaded(buf)
    and vim.bo[buf].buftype == ''
    and vim.api.nvim_buf_get_name(buf) ~= ''
  if is_file and wanted() then
    require('token_sidecar.server').attach(buf)
  end
end

-- Every file, those of no known type too: for these vim.lsp.enable() waits in vain for FileType.
-- Scheduled, so that start-up and the opening of a file do not wait for us.
vim.api.nvim_create_autocmd({ 'BufReadPost', 'BufNewFile', 'BufFilePost', 'BufWritePost' }, {
  group = vim.api.nvim_create_augroup('token_sidecar', {}),
  desc = 'token-sidecar: attach',
  callback = function(event)
    vim.schedule(function()
      attach(event.buf)
    end)
  end,
})
if vim.v.vim_did_enter == 1 then -- loaded late, by a plugin manager
  vim.schedule(function()
    vim.tbl_map(attach, vim.api.nvim_list_bufs())
  end)
end

for group, link in pairs({
  TokenSidecarOk = 'StatusLine',
  TokenSidecarWarning = 'DiagnosticWarn',
  TokenSidecarError = 'DiagnosticError',
  TokenSidecarSelection = 'Comment',
}) do
  vim.api.nvim_set_hl(0, group, { link = link, default = true })
end

vim.api.nvim_create_user_command('TokenSidecar', function(opts)
  require('token_sidecar.commands').run(opts)
end, {
  nargs = '*',
  range = true,
  desc = 'token-sidecar: counts, context, cost',
  complete = function(lead, line)
    return require('token_sidecar.commands').complete(lead, line)
  end,
})

for _, name in ipairs({ 'count', 'compare', 'context', 'cost', 'fit', 'model', 'reset', 'restart' }) do
  local plug = ('<Plug>(token-sidecar-%s)'):format(name)
  vim.keymap.set('n', plug, ('<Cmd>TokenSidecar %s<CR>'):format(name), { silent = true })
end
vim.keymap.set('x', '<Plug>(token-sidecar-count)', ':TokenSidecar count<CR>', { silent = true })
vim.keymap.set({ 'n', 'x' }, '<Plug>(token-sidecar-selection)', function()
  require('token_sidecar.visual').toggle()
end)

vim.api.nvim_create_autocmd('ModeChanged', {
  group = 'token_sidecar',
  pattern = '*:[vV\22]*',
  desc = 'token-sidecar: the selection\'s count beside it',
  callback = function()
    if vim.g.token_sidecar_selection then
      require('token_sidecar.visual').start()
    end
  end,
})

-- Chat plugins, each only when it is there: their own events load what listens to them.
for module, event in pairs({
  codecompanion = { 'User', { 'CodeCompanionChat*', 'CodeCompanionRequestFinished' } },
  avante = { 'User', { 'AvanteInputSubmitted', 'AvanteViewBufferUpdated' } },
  copilotchat = { 'FileType', 'copilot-chat' },
}) do
  vim.api.nvim_create_autocmd(event[1], {
    group = 'token_sidecar',
    pattern = event[2],
    callback = function(args)
      if vim.g.token_sidecar_integrations ~= false then
        require('token_sidecar.integrations.' .. module).on_event(args)
      end
    end,
  })
end
