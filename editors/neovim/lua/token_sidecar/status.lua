local M = {}

--- JSON's null goes missing in a Lua table: put it back, so that the dictionary is what was sent.
local NULLABLE = {
  [''] = { 'workspace', 'uri', 'version', 'document', 'context', 'cost' },
  document = { 'percent', 'budget' },
  context = { 'tokens', 'percent' },
  cost = { 'costUsd' },
}

---@param status table a `status/update`, changed in place
---@return table
local function with_nulls(status)
  for part, keys in pairs(NULLABLE) do
    local target = part == '' and status or status[part]
    for _, key in ipairs(type(target) == 'table' and keys or {}) do
      if target[key] == nil then
        target[key] = vim.NIL
      end
    end
  end
  return status
end

---@param client vim.lsp.Client
---@param uri string
---@return integer? buf
local function buffer_of(client, uri)
  for buf in pairs(client.attached_buffers) do
    if vim.uri_from_bufnr(buf) == uri then
      return buf
    end
  end
end

--- Redraws the status lines if any window shows the buffer.
local function redraw(buf)
  if vim.fn.bufwinid(buf) ~= -1 then
    vim.cmd.redrawstatus({ bang = buf ~= vim.api.nvim_get_current_buf() })
  end
end

---@param buf integer
---@param status? table nil takes it away
local function show(buf, status)
  vim.b[buf].token_sidecar_status = status and status.text
  vim.b[buf].token_sidecar_status_dict = status
  vim.api.nvim_exec_autocmds('User', {
    pattern = 'TokenSidecarStatus',
    modeline = false,
    data = { buf = buf, status = status },
  })
  redraw(buf)
end

--- Keeps a `status/update` in the variables of its buffer.
---@param status table
---@param client_id integer
function M.update(status, client_id)
  local client = vim.lsp.get_client_by_id(client_id)
  local buf = client and status.uri and buffer_of(client, status.uri)
  if buf then
    show(buf, with_nulls(status))
  end
end

--- Without a server there is no number: an old one would be a wrong one.
---@param buffers integer[]
function M.clear(buffers)
  for _, buf in ipairs(buffers) do
    if vim.api.nvim_buf_is_valid(buf) and vim.b[buf].token_sidecar_status then
      show(buf, nil)
    end
  end
end

---@param warning {message: string} a `context/warning`
function M.warn(warning)
  require('token_sidecar.notify').notify(warning.message, vim.log.levels.WARN)
end

return M
