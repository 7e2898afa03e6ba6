-- CopilotChat.nvim: its conversation and its model, after each reply.
local M = {}

local sync = require('token_sidecar.integrations.sync')
local hooked = false

local send = sync.quietly(function()
  local plugin = require('CopilotChat')
  local chat, system, turns = plugin.chat, {}, {}
  for _, message in ipairs(chat.get_messages and chat:get_messages() or assert(chat.messages)) do
    local is_system = message.role == 'system'
    local turn = not is_system and sync.turn(message, assert(message.role), message.tool_calls)
    table.insert(is_system and system or turns, turn or message.content)
  end
  sync.update('copilotchat', {
    model = (chat.config or {}).model or plugin.config.model,
    systemPrompt = table.concat(system, '\n\n'),
    turns = turns,
  })
end)

--- Chains the plugin's own callback, once: called when its chat buffer appears.
M.on_event = sync.quietly(function()
  local config = require('CopilotChat').config
  if hooked or type(config) ~= 'table' then return end
  hooked = true
  local before = config.callback
  config.callback = function(...)
    vim.schedule(send) -- the reply joins the messages after this call
    if before then return before(...) end
  end
end)

return M
