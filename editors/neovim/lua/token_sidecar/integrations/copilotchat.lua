-- CopilotChat.nvim: its conversation and its model, after each reply.
local M = {}

local sync = require('token_sidecar.integrations.sync')
local hooked = false

local function turn(message) return sync.turn(message, assert(message.role), message.tool_calls) end

local send = sync.quietly(function()
  local plugin = require('CopilotChat')
  local chat = plugin.chat
  local messages = chat.get_messages and chat:get_messages() or assert(chat.messages)
  local system, turns = sync.split(messages, turn)
  local model = (chat.config or {}).model or plugin.config.model
  sync.update('copilotchat', { model = model, systemPrompt = system, turns = turns })
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
