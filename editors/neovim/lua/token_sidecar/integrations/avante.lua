-- avante.nvim: its conversation and its model, whenever its view changes.
local M = {}

local sync = require('token_sidecar.integrations.sync')

---@return string?
local function model()
  local config = require('avante.config')
  local provider = (config.providers or {})[config.provider] or config[config.provider] or {}
  return type(provider.model) == 'string' and provider.model or nil
end

--- Messages that are still being written are left for later.
M.on_event = sync.quietly(function()
  local history = assert(require('avante').get().chat_history)
  local turns = {}
  for _, entry in ipairs(history.messages) do
    if entry.state ~= 'generating' and not entry.just_for_display then
      local message = entry.message
      table.insert(turns, { role = assert(message.role), content = message.content })
    end
  end
  sync.update('avante:' .. tostring(history.filename or history.timestamp or ''), {
    model = model(),
    systemPrompt = type(history.system_prompt) == 'string' and history.system_prompt or nil,
    turns = turns,
  })
end)

return M
