-- codecompanion.nvim: its conversation, its model, its reported tokens, and a guard on submit.
local M = {}

local sync = require('token_sidecar.integrations.sync')

local ROLES = { llm = 'assistant', assistant = 'assistant', user = 'user', tool = 'tool' }
local GUARD_MS, AGAIN_SECONDS = 1000, 30
local guarded, held_at = setmetatable({}, { __mode = 'k' }), setmetatable({}, { __mode = 'k' })

local function model_of(chat)
  local model = (chat.adapter or {}).model
  local metadata = (_G.codecompanion_chat_metadata or {})[chat.bufnr] or {}
  local name = type(model) == 'table' and model.name or model or (metadata.adapter or {}).model
  return type(name) == 'string' and name or nil
end

local function turn(message)
  local tools = message.tools or {}
  local made = sync.turn(message, assert(ROLES[message.role]), message.tool_calls or tools.calls)
  made.toolCallId = made.toolCallId or tools.call_id
  if (message._meta or {}).tag == 'image' then
    local mime = (message.context or {}).mimetype
    local source = { type = 'base64', media_type = mime, data = made.content }
    made.content = { { type = 'image', source = source } }
  end
  return made
end

local function snapshot(chat)
  local system, turns = sync.split(chat.messages, turn)
  local schemas = (chat.tool_registry or {}).schemas or {}
  local names = vim.tbl_keys(schemas)
  table.sort(names)
  local tools = vim.tbl_map(function(name) return schemas[name] end, names)
  return { model = model_of(chat), systemPrompt = system, tools = tools, turns = turns }
end

local function session_of(chat) return 'codecompanion:' .. tostring(assert(chat.id)) end

--- Asked before a chat is sent: false holds it; sent again within 30 seconds it goes.
local function guard(chat)
  local answer
  local function keep(_, result) answer = result end
  local function ask(client) client:request('context/preflight', { session = session_of(chat) }, keep) end
  sync.update(session_of(chat), snapshot(chat), ask)
  vim.wait(GUARD_MS, function() return answer ~= nil end, 10)
  if not answer or answer.verdict == 'ok' then return end
  local why = answer.reasons[1] and answer.reasons[1].message or answer.verdict
  local insists = os.time() - (held_at[chat] or 0) < AGAIN_SECONDS
  local hold = answer.verdict == 'refuse' and not insists
  held_at[chat] = hold and os.time() or nil
  why = hold and why .. ' Not sent; submit again to send it all the same.' or why
  require('token_sidecar.format').notify(why, vim.log.levels.WARN)
  if hold then return false end
end

--- Any of the plugin's `User CodeCompanion…` events.
M.on_event = sync.quietly(function(event)
  local chat = require('codecompanion').buf_get_chat(event.data.bufnr)
  if not guarded[chat] then
    guarded[chat] = true
    chat:add_callback('on_before_submit', sync.quietly(guard))
  end
  local now = snapshot(chat)
  local tokens = event.match == 'CodeCompanionChatDone' and (chat.tokens or (chat.ui or {}).tokens)
  now.usage = tonumber(tokens or 0) > 0 and { inputTokens = tokens } or nil
  sync.update(session_of(chat), now)
end)

return M
