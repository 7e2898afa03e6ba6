-- codecompanion.nvim: its conversation, its model, its reported tokens, and a guard on submit.
local M = {}

local sync = require('token_sidecar.integrations.sync')

local ROLES = { llm = 'assistant', assistant = 'assistant', user = 'user', tool = 'tool' }
local GUARD_MS, AGAIN_SECONDS = 1000, 30
local guarded, held_at = setmetatable({}, { __mode = 'k' }), setmetatable({}, { __mode = 'k' })

---@param chat table
---@return string?
local function model_of(chat)
  local adapter = chat.adapter or {}
  local named = type(adapter.model) == 'table' and adapter.model.name or adapter.model
  local metadata = (_G.codecompanion_chat_metadata or {})[chat.bufnr] or {}
  local name = named or (metadata.adapter or {}).model
  return type(name) == 'string' and name or nil
end

---@param message table
---@return table
local function turn(message)
  local content, tools = message.content, message.tools or {}
  if (message._meta or {}).tag == 'image' then
    local source = { type = 'base64', media_type = (message.context or {}).mimetype, data = content }
    content = { { type = 'image', source = source } }
  end
  return {
    role = assert(ROLES[message.role]),
    content = content,
    toolCalls = sync.tool_calls(message.tool_calls or tools.calls),
    toolCallId = message.tool_call_id or tools.call_id,
  }
end

---@param chat table
---@param reported? integer tokens of the last request and its reply
---@return token_sidecar.Snapshot
local function snapshot(chat, reported)
  local system, turns, tools = {}, {}, {}
  for _, message in ipairs(chat.messages) do
    if message.role == 'system' then
      table.insert(system, message.content)
    else
      table.insert(turns, turn(message))
    end
  end
  for _, schema in vim.spairs((chat.tool_registry or {}).schemas or {}) do
    table.insert(tools, schema)
  end
  return {
    model = model_of(chat),
    systemPrompt = table.concat(system, '\n\n'),
    tools = tools,
    turns = turns,
    usage = (reported or 0) > 0 and { inputTokens = reported } or nil,
  }
end

---@param chat table
---@return string
local function session_of(chat)
  return 'codecompanion:' .. tostring(assert(chat.id))
end

--- Asked before a chat is sent: false holds it, once; sent again within 30 seconds it goes.
---@param chat table
---@return false?
local function guard(chat)
  local answer
  sync.update(session_of(chat), snapshot(chat), function(client)
    client:request('context/preflight', { session = session_of(chat) }, function(_, result)
      answer = result
    end)
  end)
  vim.wait(GUARD_MS, function()
    return answer ~= nil
  end, 10)
  if not answer or answer.verdict == 'ok' then
    return
  end
  local why = answer.reasons[1] and answer.reasons[1].message or answer.verdict
  local insists = os.time() - (held_at[chat] or 0) < AGAIN_SECONDS
  local hold = answer.verdict == 'refuse' and not insists
  held_at[chat] = hold and os.time() or nil
  why = hold and why .. ' Not sent; submit again to send it all the same.' or why
  require('token_sidecar.notify').notify(why, vim.log.levels.WARN)
  if hold then
    return false
  end
end

--- Any of the plugin's `User CodeCompanion…` events.
M.on_event = sync.quietly(function(event)
  local chat = require('codecompanion').buf_get_chat(event.data.bufnr)
  if not guarded[chat] then
    guarded[chat] = true
    chat:add_callback('on_before_submit', sync.quietly(guard))
  end
  local reported = event.match == 'CodeCompanionChatDone' and (chat.tokens or (chat.ui or {}).tokens)
  sync.update(session_of(chat), snapshot(chat, tonumber(reported or nil)))
end)

return M
