-- Hands a chat plugin's conversation to the server: only what is new, one step after the other.
local M = {}

---@class token_sidecar.Snapshot
---@field model? string
---@field systemPrompt? string
---@field tools? table[]
---@field turns table[] as of `context/append`
---@field usage? table

---@type table<string, {turns: string[], set: string}> what the server has, by session
local sent = {}
---@type table<string, fun()|true> a session that is being sent, and what to do after it
local busy = {}

---@param had string[]
---@param have string[]
---@return boolean
local function begins_with(have, had)
  return vim.deep_equal(vim.list_slice(have, 1, #had), had)
end

--- The requests that bring the server from what it has to this.
---@param session string
---@param chat token_sidecar.Snapshot
---@return {[1]: string, [2]: table}[] requests
local function steps(session, chat)
  local had = sent[session]
  local turns = vim.tbl_map(vim.json.encode, chat.turns)
  local params = {
    session = session,
    model = chat.model,
    systemPrompt = chat.systemPrompt,
    tools = chat.tools and #chat.tools > 0 and chat.tools or nil,
  }
  local set, todo = vim.json.encode(params), {}
  if had and not begins_with(turns, had.turns) then
    had = nil
    table.insert(todo, { 'context/reset', { session = session } })
  end
  if not had or had.set ~= set then
    table.insert(todo, { 'context/set', params })
  end
  local fresh = vim.list_slice(chat.turns, had and #had.turns + 1 or 1)
  if #fresh > 0 or chat.usage then
    table.insert(todo, { 'context/append', { session = session, turns = fresh, usage = chat.usage } })
  end
  sent[session] = { turns = turns, set = set }
  return todo
end

---@param client vim.lsp.Client
---@param todo {[1]: string, [2]: table}[]
---@param done fun(ok: boolean)
local function run(client, todo, done)
  local step = table.remove(todo, 1)
  if not step then
    return done(true)
  end
  client:request(step[1], step[2], function(err)
    if err then
      return done(false)
    end
    run(client, todo, done)
  end)
end

--- Brings the server up to date, then calls `done`. Calls for a session that is being sent wait.
---@param session string
---@param chat token_sidecar.Snapshot
---@param done? fun(client: vim.lsp.Client)
function M.update(session, chat, done)
  if busy[session] then
    busy[session] = function()
      M.update(session, chat, done)
    end
    return
  end
  require('token_sidecar.server').with_client(0, function(client)
    busy[session] = true
    run(client, steps(session, chat), function(ok)
      local after = busy[session]
      busy[session] = nil
      if not ok then
        sent[session] = nil
      elseif done then
        done(client)
      end
      if type(after) == 'function' then
        after()
      end
    end)
  end)
end

--- Tool calls in the contract's form from OpenAI's (`function`) or a flat one.
---@param calls? table[]
---@return table[]?
function M.tool_calls(calls)
  return calls
    and vim.tbl_map(function(call)
      local named = call['function'] or call
      local arguments = named.arguments
      if type(arguments) == 'string' then
        local ok, decoded = pcall(vim.json.decode, arguments)
        arguments = ok and decoded or nil
      end
      local object = type(arguments) == 'table' and next(arguments) and arguments or vim.empty_dict()
      return { id = call.id or '', name = named.name, arguments = object }
    end, calls)
end

--- Runs what reads a plugin's insides; a shape that is not the known one makes no noise.
---@param read fun(...)
---@return fun(...)
function M.quietly(read)
  return function(...)
    local ok, result = pcall(read, ...)
    if ok then
      return result
    end
    vim.lsp.log.info('token-sidecar', 'a chat plugin of unknown shape', result)
  end
end

return M
