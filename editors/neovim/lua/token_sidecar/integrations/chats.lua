-- What the chat plugins share: the server is given each request as it is about to be sent, only what is
-- new of it, and what its reply reports; and it is asked whether a prompt fits before that is sent.
local M = {}

local HOLD_MS, GRACE_MS = 950, 50
local REPLY = {} -- stands for what the server has of a reply in the form of its own
local ROLES = { function_call_output = 'tool', custom_tool_call_output = 'tool' }

---@class token_sidecar.Call a request of a plugin's, and what of its reply tells of usage
---@field session string
---@field category? string of a request that is no part of a conversation
---@field body table as the model's server gets it
---@field provider? string who serves it
---@field lines string[]

---@type table<string, {client: integer, set: table, messages: table[], call: table}> what a server has, by session
local sent = {}
local asked = {} ---@type table<table, {client: integer, late: boolean}> what is not answered yet
local held, deciding = {}, {} ---@type table<string, string?>, table<string, boolean?> prompts, by session
local buffers = {} ---@type table<integer, string> the session of a chat's buffer
local front, warned_slow ---@type string?, boolean?
local faults = {} ---@type table<string, table<string, string>> what could not be read, by plugin and reader
local wrapped = setmetatable({}, { __mode = 'k' }) ---@type table<table, table<string, boolean>> by owner

--- Runs a function when a server has had its time: the pause at the end is for answers that lay there
--- while the editor itself was busy.
local function when_late(run)
  vim.defer_fn(function() vim.defer_fn(run, GRACE_MS) end, vim.g.token_sidecar_hold_ms or HOLD_MS)
end

local function ask(client, method, params, done)
  local token, it = {}, { client = client.id, late = false }
  asked[token] = it
  when_late(function() it.late = true end)
  client:request(method, params, function(err, result)
    asked[token] = nil
    if done then done(err, result) end
  end)
end

local function hangs(client)
  return vim.iter(pairs(asked)):any(function(_, each)
    return each.client == client.id and each.late
  end)
end

--- A session stays with the server that it began at; the current folder says which that is.
local function with_client(session, run)
  local known = sent[session] and vim.lsp.get_client_by_id(sent[session].client)
  if known and not known:is_stopped() then return run(known) end
  require('token_sidecar.server').with_client(nil, run)
end

local function text_of(system)
  if type(system) ~= 'table' then return system end
  local texts = vim.tbl_map(function(part) return part.text or part end, system.parts or system)
  return table.concat(texts, '\n')
end

--- A message of any vendor as a turn: what is a message and an item at once (OpenAI Responses) is a block.
local function turn(message)
  local content = message.content or message.parts
  if not message.role then content = { message } end
  return {
    role = message.role or ROLES[message.type] or 'assistant',
    content = type(content) == 'table' and not next(content) and '' or content,
    name = message.name,
    tool_calls = message.tool_calls,
    tool_call_id = message.tool_call_id,
  }
end

local function blocks(content)
  if type(content) ~= 'string' then return content end
  return content ~= '' and { { type = 'text', text = content } } or {}
end

--- Messages as turns. Of OpenAI's Responses each part of a reply is an item: together they are one turn.
local function turns(messages, are_items)
  local found = {}
  for _, message in ipairs(messages) do
    local it, last = turn(message), found[#found]
    if are_items and last and last.role == 'assistant' and it.role == 'assistant' then
      last.content = vim.list_extend(vim.list_slice(blocks(last.content)), blocks(it.content))
    else
      table.insert(found, it)
    end
  end
  return found
end

--- What a body carries beside its messages, and the messages.
local function read(body)
  local messages = body.messages or body.input or body.contents or {}
  if type(messages) == 'string' then messages = { { role = 'user', content = messages } } end
  local system = body.system or body.instructions or body.systemInstruction or body.system_instruction
  local first = messages[1] or {}
  if not system and (first.role == 'system' or first.role == 'developer') then
    system, messages = first.content, vim.list_slice(messages, 2)
  end
  local function name(tool) return tool.name or (tool['function'] or {}).name or '' end
  local tools = body.tools and vim.list_slice(body.tools)
  if tools then table.sort(tools, function(one, other) return name(one) < name(other) end) end
  return text_of(system), messages, tools and #tools > 0 and tools or nil
end

--- How many messages a server has of these: nil where it has others.
local function known_of(had, messages)
  for index, message in ipairs(had) do
    local same = message == REPLY and (messages[index] or {}).role == 'assistant'
    if not same and not vim.deep_equal(message, messages[index]) then return nil end
  end
  return #had
end

--- Notes who serves a call.
---@param named? string as the plugin names it
---@param url? string where it goes
function M.serve(call, named, url) call.provider = require('token_sidecar.integrations.providers').id(named, url) end

--- Brings the server up to the request that is about to be sent.
---@param call token_sidecar.Call
---@param limit? integer the model's window as the plugin knows it
function M.request(call, limit)
  if call.category then return end
  front = call.session
  with_client(call.session, function(client)
    local had, session = sent[call.session], call.session
    if had and had.client ~= client.id then had = nil end -- another process knows nothing
    local function forget(err) sent[session] = not err and sent[session] or nil end
    local system, messages, tools = read(call.body)
    local known = had and known_of(had.messages, messages)
    if had and not known then ask(client, 'context/reset', { session = session }, forget) end
    local set = { session = session, model = call.body.model, tools = tools, limit = limit }
    set.systemPrompt = system
    if not known or not vim.deep_equal(had.set, set) then
      local params = vim.tbl_extend('keep', set, { tools = vim.NIL, systemPrompt = vim.NIL, limit = vim.NIL })
      ask(client, 'context/set', params, forget)
    end
    local fresh = turns(vim.list_slice(messages, (known or 0) + 1), call.body.input ~= nil)
    if #fresh > 0 then ask(client, 'context/append', { session = session, turns = fresh }, forget) end
    sent[session] = { client = client.id, set = set, messages = messages, call = call }
  end)
end

--- A line of a reply as it came: kept where it tells of usage.
function M.line(call, line)
  if type(line) ~= 'string' then return end
  if line:find('"usage', 1, true) or line:find('eval_count"', 1, true) then table.insert(call.lines, line) end
end

--- The usage of a reply with its id and model, out of the objects that tell of it.
local function reported(lines)
  local found = {}
  for _, line in ipairs(lines) do
    local ok, it = pcall(vim.json.decode, (line:gsub('^data:%s*', '')), { luanil = { object = true } })
    it = ok and type(it) == 'table' and (it.message or it.response or it) or {}
    local usage = it.usage or it.usageMetadata or it.prompt_eval_count and it
    found = vim.tbl_deep_extend('force', found, { id = it.id or it.responseId, model = it.model, usage = usage })
  end
  return found
end

--- What a reply has reported so far goes to the context and to the ledger. Where the next request is
--- already on its way, its turns hold the reply: the number anchors what stands behind it.
function M.reply(call)
  local lines = call.lines
  call.lines = {}
  if #lines == 0 then return end
  with_client(call.session, function(client)
    local session, now = call.session, sent[call.session]
    if now and now.call == call then
      local params = { session = session, response = lines, provider = call.provider }
      return ask(client, 'context/response', params)
    end
    local it = reported(lines)
    if not it.usage then return end
    local record = { session = session, model = (call.body or {}).model or it.model, usage = it.usage, requestId = it.id }
    record.category, record.provider = call.category, call.provider
    ask(client, 'cost/record', record)
    if now and not call.category then ask(client, 'context/append', { session = session, turns = {}, usage = it.usage }) end
  end)
end

--- A reply of which no usage is known, or its sum alone: it anchors the number, and is not billed.
---@param message table with OpenAI's members; stands for the assistant's message in the next request
function M.append_reply(call, message, total)
  local now = sent[call.session]
  local client = now and now.call == call and vim.lsp.get_client_by_id(now.client)
  if not client then return end
  local usage = total > 0 and { totalTokens = total } or nil
  ask(client, 'context/append', { session = call.session, turns = { turn(message) }, usage = usage })
  now.messages = vim.list_extend(vim.list_slice(now.messages), { REPLY })
end

local function notify(text) require('token_sidecar.format').notify(text, vim.log.levels.WARN) end

local function decided(session, text, result, go, stay)
  if result and result.verdict == 'refuse' then
    held[session] = text
    local tokens = require('token_sidecar.format').integer(result.promptTokens)
    local why = result.fits and 'a cost cap' or tokens .. ' tokens do not fit'
    notify(('held, %s. Resubmit to send'):format(why))
    return stay and stay()
  end
  held[session] = nil
  go()
end

--- Holds a prompt until the server says whether it fits: nothing waits for a server that is not there,
--- and no prompt for more than a second (or vim.g.token_sidecar_hold_ms). The same prompt submitted again goes.
---@param go fun() sends it
---@param stay? fun() is called where it is held
function M.guard(session, text, model, go, stay)
  local known = sent[session] and vim.lsp.get_client_by_id(sent[session].client)
  local client = known or require('token_sidecar.server').clients()[1]
  if deciding[session] then return stay and stay() end
  if not client or not client.initialized or client:is_stopped() or held[session] == text then
    held[session] = nil
    return go()
  end
  local function decide(result, late)
    if not deciding[session] then return end
    deciding[session] = nil
    if late and not warned_slow then
      warned_slow = true
      notify('the server does not answer: prompts go unchecked')
    end
    decided(session, text, result, go, stay)
  end
  deciding[session] = true
  if hangs(client) then return decide(nil, true) end
  local params = { session = session, text = text, model = model }
  ask(client, 'context/preflight', params, function(_, result) decide(result) end)
  when_late(function() decide(nil, true) end)
end

local function select(session)
  front = session
  with_client(session, function(client) ask(client, 'context/select', { session = session or vim.NIL }) end)
end

--- The chat in a buffer: its session is the one that is shown as soon as the buffer is entered.
function M.show(buf, session)
  if buffers[buf] == session then return end
  buffers[buf] = session
  local group = vim.api.nvim_create_augroup('token_sidecar_chat_' .. buf, {})
  local function enter() select(session) end
  vim.api.nvim_create_autocmd('BufEnter', { group = group, buffer = buf, callback = enter })
  -- The first verdict takes the server longest: let it have been given before a prompt waits for one.
  with_client(session, function(client) ask(client, 'context/preflight', { session = session }) end)
end

--- The buffers of the chat whose numbers the status shows.
function M.in_front()
  return vim.tbl_filter(
    function(buf) return buffers[buf] == front and vim.api.nvim_buf_is_valid(buf) end,
    vim.tbl_keys(buffers)
  )
end

--- A chat that was cleared (`keep`) or closed leaves the status.
function M.forget(session, keep)
  local known = sent[session]
  local client = known and vim.lsp.get_client_by_id(known.client)
  sent[session], held[session] = nil, nil
  if client then ask(client, 'context/reset', { session = session }) end
  if keep then return end
  for buf, its in pairs(buffers) do
    if its == session then buffers[buf] = nil end
  end
  if client then ask(client, 'context/select', { session = vim.NIL }) end
end

--- Puts a function of ours around a plugin's, once; one that it lacks is an error that names it. A
--- plugin that was loaded again has other owners. Whether it was put there just now.
---@return boolean
function M.wrap(owner, name, make)
  local done = wrapped[owner or {}] or {}
  if done[name] then return false end
  local original = type(owner) == 'table' and owner[name] or nil
  if type(original) ~= 'function' then error('no function ' .. name, 0) end
  done[name], wrapped[owner] = true, done
  owner[name] = make(original)
  return true
end

--- Runs what reads a plugin's insides; another shape is silent, :checkhealth names what is missing
--- until it is there again.
function M.quietly(plugin, read)
  local info = debug.getinfo(read, 'S')
  local reader = info.short_src .. ':' .. info.linedefined
  return function(...)
    local known = faults[plugin] or {}
    local ok, result = pcall(read, ...)
    if ok then
      known[reader] = nil
      return result
    end
    known[reader] = tostring(result):gsub('^.-:%d+: ', '')
    faults[plugin] = known
    vim.lsp.log.info('token-sidecar', 'a chat plugin of unknown shape', plugin, result)
  end
end

--- What each plugin of unknown shape lacks.
---@return table<string, string>
function M.unknown()
  local found = {}
  for plugin, known in pairs(faults) do
    local lacks = vim.tbl_values(known)
    table.sort(lacks)
    found[plugin] = lacks[1] and table.concat(lacks, '; ') or nil
  end
  return found
end

return M
