-- Hands a chat plugin's conversation to the server: only what is new, one step after the other.
local M = {}

---@type table<string, {turns: string[], set: string, client: integer}> what a server has, by session
local sent = {}
local busy = {} ---@type table<string, {client: integer, chat?: table, done: fun()[]}> what waits while a session is sent

--- The requests that bring the server from what it has to this.
local function steps(session, chat, client)
  local had, todo = sent[session], {}
  if had and had.client ~= client.id then had = nil end -- another process knows nothing
  local turns = vim.tbl_map(vim.json.encode, chat.turns)
  local tools = chat.tools and #chat.tools > 0 and chat.tools or nil
  local params = { session = session, model = chat.model, systemPrompt = chat.systemPrompt, tools = tools }
  local set = vim.json.encode(params)
  if had and not vim.deep_equal(vim.list_slice(turns, 1, #had.turns), had.turns) then
    had = nil
    table.insert(todo, { 'context/reset', { session = session } })
  end
  if not had or had.set ~= set then table.insert(todo, { 'context/set', params }) end
  local fresh = vim.list_slice(chat.turns, had and #had.turns + 1 or 1)
  if #fresh > 0 or chat.usage then
    table.insert(todo, { 'context/append', { session = session, turns = fresh, usage = chat.usage } })
  end
  sent[session] = { turns = turns, set = set, client = client.id }
  return todo
end

local function run(client, todo, done)
  local step = table.remove(todo, 1)
  if not step then return done(true) end
  client:request(step[1], step[2], function(err)
    if err then return done(false) end
    run(client, todo, done)
  end)
end

--- A session stays with the server that it began at; the current folder says which that is.
local function with_client(session, run)
  local known = sent[session] and vim.lsp.get_client_by_id(sent[session].client)
  if known and not known:is_stopped() then return run(known) end
  require('token_sidecar.server').with_client(nil, run)
end

--- Brings the server up to date, then calls `done`. Calls for a session that is being sent wait.
---@param session string
---@param chat {model?: string, systemPrompt?: string, tools?: table[], turns: table[], usage?: table}
---@param done? fun(client: vim.lsp.Client)
function M.update(session, chat, done)
  with_client(session, function(client)
    local wait = busy[session]
    if wait and wait.client == client.id then -- the newest state will do; whoever waits for it is told
      wait.chat = chat
      return table.insert(wait.done, done or function() end)
    end
    wait = { client = client.id, done = {} }
    busy[session] = wait
    run(client, steps(session, chat, client), function(ok)
      busy[session], sent[session] = nil, ok and sent[session] or nil
      if ok and done then done(client) end
      local function tell(it) vim.tbl_map(function(each) each(it) end, wait.done) end
      if wait.chat then M.update(session, wait.chat, tell) end
    end)
  end)
end

--- A turn from a message with OpenAI's members, its tool calls in the protocol's form.
function M.turn(message, role, calls)
  local function tool_call(call)
    local named = call['function'] or call
    local ok, arguments = true, named.arguments
    if type(arguments) == 'string' then
      ok, arguments = pcall(vim.json.decode, arguments)
    end
    local object = ok and type(arguments) == 'table' and next(arguments) and arguments or vim.empty_dict()
    return { id = call.id or '', name = named.name, arguments = object }
  end
  calls = calls and vim.tbl_map(tool_call, calls)
  return { role = role, content = message.content, toolCalls = calls, toolCallId = message.tool_call_id }
end

--- The system prompt, and the turns that `turn` makes of the other messages.
function M.split(messages, turn)
  local system, turns = {}, {}
  for _, message in ipairs(messages) do
    local is_system = message.role == 'system'
    table.insert(is_system and system or turns, is_system and message.content or turn(message))
  end
  return table.concat(system, '\n\n'), turns
end

--- Runs what reads a plugin's insides; a shape that is not the known one makes no noise.
function M.quietly(read)
  return function(...)
    local ok, result = pcall(read, ...)
    if ok then return result end
    vim.lsp.log.info('token-sidecar', 'a chat plugin of unknown shape', result)
  end
end

return M
