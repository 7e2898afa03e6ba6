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
