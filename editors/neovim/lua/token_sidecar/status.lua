-- Keeps the server's status in buffer variables.
local M = {}

local models = {} ---@type table<string, string> the models that texts are counted for, by workspace

--- Nullable fields. Neovim's JSON decoder omits them if they are null.
local NULLABLE =
  { document = { 'percent', 'budget' }, context = { 'tokens', 'percent' }, cost = { 'costUsd' } }
NULLABLE.status = { 'workspace', 'uri', 'version', 'document', 'context', 'cost', 'cache' }

---@param status token_sidecar.StatusUpdate changed in place
local function put_nulls_back(status)
  for part, keys in vim.spairs(NULLABLE) do -- in alphabetical order, so `status` comes last
    local target = part == 'status' and status or status[part]
    for _, key in ipairs(type(target) == 'table' and keys or {}) do
      target[key] = target[key] == nil and vim.NIL or target[key]
    end
  end
end

---@param status? token_sidecar.StatusUpdate nil removes the status
local function show(buf, status)
  vim.b[buf].token_sidecar_status = status and status.text
  vim.b[buf].token_sidecar_status_dict = status
  local data = { buf = buf, status = status }
  vim.api.nvim_exec_autocmds('User', { pattern = 'TokenSidecarStatus', modeline = false, data = data })
  if vim.fn.bufwinid(buf) ~= -1 then
    vim.cmd.redrawstatus({ bang = buf ~= vim.api.nvim_get_current_buf() })
  end
end

--- If the status belongs to a chat, shows the conversation and the cost in the chat's buffers.
---@param status token_sidecar.StatusUpdate
---@param client_id integer
local function show_in_chats(status, client_id)
  local chats = package.loaded['token_sidecar.integrations.chats']
  local context, cost = status.context, status.cost
  local parts = { context ~= vim.NIL and context.text or nil }
  table.insert(parts, cost ~= vim.NIL and cost.text or nil)
  local severity = context ~= vim.NIL and context.severity or 'ok'
  local own = { uri = vim.NIL, version = vim.NIL, document = vim.NIL, severity = severity }
  own.text = status.text ~= '' and table.concat(parts, ' · ') or ''
  for _, buf in ipairs(chats and chats.in_front(client_id) or {}) do
    show(buf, vim.tbl_extend('force', status, own))
  end
end

---@param status token_sidecar.StatusUpdate
function M.update(status, ctx)
  local client, uri = vim.lsp.get_client_by_id(ctx.client_id), status.uri
  put_nulls_back(status)
  if status.workspace ~= vim.NIL then models[vim.uri_to_fname(status.workspace)] = status.model end
  show_in_chats(status, ctx.client_id)
  for buf in pairs(client and client.attached_buffers or {}) do
    if vim.uri_from_bufnr(buf) == uri then return show(buf, status) end
  end
end

--- Returns the model that a workspace's texts are counted for, if the server has reported it.
---@param root string
---@return string?
function M.model_of(root) return models[root] end

--- Clears the status in the buffers and chats of a server that has exited.
---@param buffers integer[]
---@param client_id integer
function M.clear(buffers, client_id)
  local chats = package.loaded['token_sidecar.integrations.chats']
  for _, buf in ipairs(vim.list_extend(chats and chats.in_front(client_id) or {}, buffers)) do
    if vim.api.nvim_buf_is_valid(buf) and vim.b[buf].token_sidecar_status then show(buf, nil) end
  end
end

--- Shows a warning on one line, because a longer message would cause a hit-enter prompt. If the warning does not fit, it
--- is shortened, and the full text is logged.
---@param warning token_sidecar.ContextWarning
function M.warn(warning)
  if warning.kind == 'cold' then -- the status shows it
    vim.api.nvim_exec_autocmds('User', { pattern = 'TokenSidecarCold', modeline = false, data = warning })
    return
  end
  local format = require('token_sidecar.format')
  local text = format.plain(warning.message)
  local line = format.on_a_line(text)
  if line ~= text then vim.lsp.log.warn('token-sidecar', text) end
  format.notify(line, vim.log.levels.WARN)
end

return M
