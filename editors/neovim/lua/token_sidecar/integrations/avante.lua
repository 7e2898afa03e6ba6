-- avante.nvim: its conversation and its model, whenever its view changes.
local M = {}

local sync = require('token_sidecar.integrations.sync')

local function model_of(config)
  local provider = (config.providers or {})[config.provider] or config[config.provider] or {}
  return type(provider.model) == 'string' and provider.model or nil
end

--- Messages that are still being written are left for later.
M.on_event = sync.quietly(function()
  local history = assert(require('avante').get().chat_history)
  local turns = {}
  for _, entry in ipairs(history.messages) do
    local done = entry.state ~= 'generating' and not entry.just_for_display
    if done then table.insert(turns, sync.turn(entry.message, assert(entry.message.role))) end
  end
  local system = type(history.system_prompt) == 'string' and history.system_prompt or nil
  local chat = { model = model_of(require('avante.config')), systemPrompt = system, turns = turns }
  sync.update('avante:' .. tostring(history.filename or history.timestamp or ''), chat)
end)

return M
