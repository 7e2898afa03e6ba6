-- CopilotChat.nvim: its conversation and its model, after each reply.
local M = {}

local sync = require('token_sidecar.integrations.sync')
local hooked = false

---@param message table
---@return table
local function turn(message)
  return {
    role = assert(message.role),
    content = message.content,
    toolCalls = sync.tool_calls(message.tool_calls),
    toolCallId = message.tool_call_id,
  }
end

local send = sync.quietly(function()
  local plugin = require('CopilotChat')
  local chat = plugin.chat
  local messages = chat.get_messages and chat:get_messages() or assert(chat.messages)
  local system, turns = {}, {}
  for _, message in ipairs(messages) do
    if message.role == 'system' then
      table.insert(system, message.content)
    else
      table.insert(turns, turn(message))
    end
  end
  sync.update('copilotchat', {
    model = (chat.config or {}).model or plugin.config.model,
    systemPrompt = #system > 0 and table.concat(system, '\n\n') or nil,
    turns = turns,
  })
end)

--- Chains the plugin's own callback, once: called when its chat buffer appears.
M.attach = sync.quietly(function()
  local config = require('CopilotChat').config
  if hooked or type(config) ~= 'table' then
    return
  end
  hooked = true
  local before = config.callback
  config.callback = function(...)
    vim.schedule(send) -- the reply joins the messages after this call
    if before then
      return before(...)
    end
  end
end)

return M
