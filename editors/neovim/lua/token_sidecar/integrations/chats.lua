-- Functions shared by the chat plugins. They report new messages to the server before each request, and the usage
-- after each reply. Before a prompt is sent, they ask the server whether it fits.
local M = {}

local HOLD_MS, GRACE_MS = 950, 50
-- A placeholder for a reply that was already reported. It matches any assistant message, because the next request
-- contains the reply in another format.
local REPLY = {}
local ROLES = { function_call_output = 'tool', custom_tool_call_output = 'tool' }

---@class token_sidecar.Call a plugin's request, and the lines of the reply that report usage
---@field session string
---@field category? string only for requests that are not part of a conversation
---@field body table the body as it is sent
---@field provider? string the provider that serves the model
---@field lines string[]

---@class token_sidecar.Prompt a prompt to check, in addition to the session that the server knows
---@field text string
---@field model? string
---@field turns? table[] turns that the plugin adds when it sends the prompt
---@field attached? string[] ids of attached context; prompts with different context are not the same
---@field replaces? boolean whether this prompt replaces an earlier prompt that is still being checked

---@class token_sidecar.GuardedPrompt
---@field prompt token_sidecar.Prompt
---@field send fun()
---@field keep fun() runs when the prompt is not sent

---@class token_sidecar.Sent what has been sent about a session; after an error, everything is sent again
---@field client integer
---@field set table
---@field messages table[]
---@field call token_sidecar.Call
---@field is_unknown? boolean whether a request failed

local sent = {} ---@type table<string, token_sidecar.Sent> by session
local unanswered = {} ---@type table<{client: integer, is_late: boolean}, true> requests
local queues = {} ---@type table<string, token_sidecar.GuardedPrompt[]> by session; the first prompt is being checked
local held = {} ---@type table<string, token_sidecar.Prompt> refused prompts by session; resubmitting sends them
local buffers = {} ---@type table<integer, string> sessions by chat buffer
local front = {} ---@type {session?: string, client?: integer} the chat that the status shows
local warned_slow ---@type boolean?
local faults = {} ---@type table<string, table<string, string>> errors by plugin and function
local wrapped = setmetatable({}, { __mode = 'k' }) ---@type table<table, table<string, boolean>> wrapped functions by owner

--- Sends a request. If the response is late, `on_late` is called, and `done` may still be called afterwards. A short
--- grace period after the timeout lets Neovim read a response that arrived while the editor was busy.
---@param done? fun(err: table?, result: any)
---@param on_late? fun()
local function ask(client, method, params, done, on_late)
  local request = { client = client.id, is_late = false }
  unanswered[request] = true
  local function expire()
    if not unanswered[request] then return end
    request.is_late = true
    if on_late then on_late() end
  end
  vim.defer_fn(function() vim.defer_fn(expire, GRACE_MS) end, vim.g.token_sidecar_hold_ms or HOLD_MS)
  client:request(method, params, function(err, result)
    unanswered[request] = nil
    if done then done(err, result) end
  end)
end

local function is_hanging(client)
  return vim.iter(pairs(unanswered)):any(function(request)
    return request.client == client.id and request.is_late
  end)
end

--- Calls `run` with the client for a session. A new session uses the client of the current folder.
local function with_client(session, run)
  local known = sent[session] and vim.lsp.get_client_by_id(sent[session].client)
  if known and not known:is_stopped() then return run(known) end
  require('token_sidecar.server').with_client(nil, run)
end

local function system_text(system)
  if type(system) ~= 'table' then return system end
  local texts = vim.tbl_map(function(part) return part.text or part end, system.parts or system)
  return table.concat(texts, '\n')
end

--- Converts a message in any vendor's format to a turn. An item without a role, as in OpenAI's Responses API, becomes a
--- turn with a single block.
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

--- Converts messages to turns. In OpenAI's Responses format, all items of a reply become one turn.
local function turns(messages, are_items)
  local converted = {}
  for _, message in ipairs(messages) do
    local next_turn, last = turn(message), converted[#converted]
    if are_items and last and last.role == 'assistant' and next_turn.role == 'assistant' then
      last.content = vim.list_extend(vim.list_slice(blocks(last.content)), blocks(next_turn.content))
    else
      table.insert(converted, next_turn)
    end
  end
  return converted
end

--- Splits a request body in any vendor's format into its system prompt, messages and tools.
---@return string? system, table[] messages, table[]? tools
local function split_body(body)
  local messages = body.messages or body.input or body.contents or {}
  if type(messages) == 'string' then messages = { { role = 'user', content = messages } } end
  local system = body.system or body.instructions or body.systemInstruction or body.system_instruction
  local first = messages[1] or {}
  if not system and (first.role == 'system' or first.role == 'developer') then
    system, messages = first.content, vim.list_slice(messages, 2)
  end
  local function name(tool) return tool.name or (tool['function'] or {}).name or '' end
  local tools = body.tools and vim.list_slice(body.tools)
  if tools then table.sort(tools, function(left, right) return name(left) < name(right) end) end
  return system_text(system), messages, tools and #tools > 0 and tools or nil
end

--- Returns how many messages are known, or nil if `messages` does not start with the known messages.
local function count_known(known, messages)
  for index, message in ipairs(known) do
    local same = message == REPLY and (messages[index] or {}).role == 'assistant'
    if not same and not vim.deep_equal(message, messages[index]) then return nil end
  end
  return #known
end

--- Sets a call's provider.
---@param name? string the plugin's name for the provider
---@param url? string the URL of the request
function M.set_provider(call, name, url)
  call.provider = require('token_sidecar.integrations.providers').id(name, url)
end

--- Reports a request to the server before it is sent.
---@param call token_sidecar.Call
---@param limit? integer the model's context window, according to the plugin
function M.request(call, limit)
  if call.category then return end
  with_client(call.session, function(client)
    front = { session = call.session, client = client.id }
    local state, session = sent[call.session], call.session
    if state and state.client ~= client.id then state = nil end -- a restarted server has lost the messages
    local function check(err)
      if err and sent[session] then sent[session].is_unknown = true end
    end
    local system, messages, tools = split_body(call.body)
    local known = state and not state.is_unknown and count_known(state.messages, messages)
    if state and not known then ask(client, 'context/reset', { session = session }, check) end
    local set = { session = session, model = call.body.model, tools = tools, limit = limit }
    set.systemPrompt = system
    if not known or not vim.deep_equal(state.set, set) then
      local params = vim.tbl_extend('keep', set, { tools = vim.NIL, systemPrompt = vim.NIL, limit = vim.NIL })
      ask(client, 'context/set', params, check)
    end
    local new = turns(vim.list_slice(messages, (known or 0) + 1), call.body.input ~= nil)
    if #new > 0 then ask(client, 'context/append', { session = session, turns = new }, check) end
    sent[session] = { client = client.id, set = set, messages = messages, call = call }
  end)
end

--- Stores a line of a reply if it contains usage.
function M.line(call, line)
  if type(line) ~= 'string' then return end
  if line:find('"usage', 1, true) or line:find('eval_count"', 1, true) then table.insert(call.lines, line) end
end

--- Reads a reply's usage, id and model from its lines.
local function reported(lines)
  local reply = {}
  for _, line in ipairs(lines) do
    local ok, data = pcall(vim.json.decode, (line:gsub('^data:%s*', '')), { luanil = { object = true } })
    data = ok and type(data) == 'table' and (data.message or data.response or data) or {}
    local usage = data.usage or data.usageMetadata or data.prompt_eval_count and data
    reply = vim.tbl_deep_extend('force', reply, { id = data.id or data.responseId, model = data.model, usage = usage })
  end
  return reply
end

--- Reports a reply and its usage. If the next request has already been sent, its messages include the reply, so only
--- the usage is reported.
function M.reply(call)
  local lines = call.lines
  call.lines = {}
  if #lines == 0 then return end
  with_client(call.session, function(client)
    local session, state = call.session, sent[call.session]
    if state and state.call == call then
      local params = { session = session, response = lines, provider = call.provider }
      return ask(client, 'context/response', params)
    end
    local reply = reported(lines)
    if not reply.usage then return end
    local model = (call.body or {}).model or reply.model
    local record = { session = session, model = model, usage = reply.usage, requestId = reply.id }
    record.category, record.provider = call.category, call.provider
    ask(client, 'cost/record', record)
    if state and not call.category then
      ask(client, 'context/append', { session = session, turns = {}, usage = reply.usage })
    end
  end)
end

--- Reports a reply whose usage is missing or is only a total token count. No cost is recorded for its call.
---@param message table in OpenAI's format; the next request is expected to contain it
function M.append_reply(call, message, total)
  local state = sent[call.session]
  local client = state and state.call == call and vim.lsp.get_client_by_id(state.client)
  if not client then return end
  local usage = total > 0 and { totalTokens = total } or nil
  ask(client, 'context/append', { session = call.session, turns = { turn(message) }, usage = usage })
  state.messages = vim.list_extend(vim.list_slice(state.messages), { REPLY })
end

function M.warn(text) require('token_sidecar.format').notify(text, vim.log.levels.WARN) end

--- Sends or holds a prompt, depending on the server's verdict.
local function apply_verdict(session, guarded, verdict)
  if not (verdict and verdict.verdict == 'refuse') then
    held[session] = nil
    return guarded.send()
  end
  held[session] = guarded.prompt
  local tokens = require('token_sidecar.format').integer(verdict.promptTokens)
  local reason = verdict.fits and 'a cost cap is reached' or tokens .. ' tokens do not fit'
  M.warn(('held: %s. Resubmit to send'):format(reason))
  guarded.keep()
end

--- Returns whether two prompts are the same.
local function is_same_prompt(one, other)
  local function sent_parts(prompt) return { prompt.text, prompt.model or '', prompt.turns or {}, prompt.attached or {} } end
  return one ~= nil and vim.deep_equal(sent_parts(one), sent_parts(other))
end

--- Checks the prompts in a session's queue, in order.
local function judge_first(session)
  local queue, guarded = queues[session], queues[session][1]
  local state = sent[session]
  local client = state and vim.lsp.get_client_by_id(state.client) or require('token_sidecar.server').clients()[1]
  local function decide(verdict)
    if queue[1] ~= guarded then return end -- the prompt has already been sent or held
    table.remove(queue, 1)
    if queue[1] then vim.schedule(function() judge_first(session) end) end
    apply_verdict(session, guarded, verdict)
  end
  local function give_up()
    if queue[1] == guarded and not warned_slow then
      warned_slow = true
      M.warn('the server does not respond; prompts are sent unchecked')
    end
    decide(nil)
  end
  local is_ready = client and client.initialized and not client:is_stopped()
  if not is_ready or is_same_prompt(held[session], guarded.prompt) then return decide(nil) end
  if is_hanging(client) then return give_up() end
  local prompt = guarded.prompt
  local params = { session = session, text = prompt.text, model = prompt.model, turns = prompt.turns }
  ask(client, 'context/preflight', params, function(_, verdict) decide(verdict) end, give_up)
end

--- Holds a prompt until the server has checked whether it fits, for at most a second (vim.g.token_sidecar_hold_ms).
--- If there is no server, the prompt is sent immediately. A refused prompt is sent if it is submitted again.
---@param session string
---@param prompt token_sidecar.Prompt
---@param send fun()
---@param keep? fun() runs when the prompt is not sent
function M.guard(session, prompt, send, keep)
  local queue = queues[session] or {}
  queues[session] = queue
  local guarded = { prompt = prompt, send = send, keep = keep or function() end }
  local is_repeated = vim.iter(queue):any(function(other) return is_same_prompt(other.prompt, prompt) end)
  if is_repeated then return guarded.keep() end
  local replaced = prompt.replaces and table.remove(queue)
  if replaced then replaced.keep() end
  table.insert(queue, guarded)
  if #queue == 1 then judge_first(session) end
end

local function select(session)
  with_client(session, function(client)
    front = { session = session, client = client.id }
    ask(client, 'context/select', { session = session })
  end)
end

--- Registers a chat's buffer. When the buffer is entered, the status shows the chat's session.
function M.show(buf, session)
  if buffers[buf] == session then return end
  buffers[buf] = session
  local group = vim.api.nvim_create_augroup('token_sidecar_chat_' .. buf, {})
  local function enter() select(session) end
  vim.api.nvim_create_autocmd('BufEnter', { group = group, buffer = buf, callback = enter })
  -- Warm up the server, because its first verdict is the slowest.
  with_client(session, function(client) ask(client, 'context/preflight', { session = session }) end)
end

--- Returns the buffers of the chat that a server's status shows.
---@param client_id integer
---@return integer[]
function M.in_front(client_id)
  if client_id ~= front.client then return {} end
  return vim.tbl_filter(
    function(buf) return buffers[buf] == front.session and vim.api.nvim_buf_is_valid(buf) end,
    vim.tbl_keys(buffers)
  )
end

--- Forgets the session of a closed or cleared chat.
---@param is_open? boolean whether the chat was only cleared and is still open
function M.forget(session, is_open)
  local state = sent[session]
  local client = state and vim.lsp.get_client_by_id(state.client)
  sent[session], held[session] = nil, nil
  if client then ask(client, 'context/reset', { session = session }) end
  if is_open then return end
  for buf, of_session in pairs(buffers) do
    if of_session == session then buffers[buf] = nil end
  end
  if client then ask(client, 'context/select', { session = vim.NIL }) end
end

--- Wraps a function of a plugin, unless it is already wrapped. Raises an error if the plugin has no such function.
---@return boolean whether this call wrapped the function
function M.wrap(owner, name, make)
  local done = wrapped[owner or {}] or {}
  if done[name] then return false end
  local original = type(owner) == 'table' and owner[name] or nil
  if type(original) ~= 'function' then error('no function ' .. name, 0) end
  done[name], wrapped[owner] = true, done
  owner[name] = make(original)
  return true
end

--- Wraps a function that reads a plugin's internals. Its errors are logged, and :checkhealth shows them until it
--- succeeds again.
function M.safely(plugin, read)
  local info = debug.getinfo(read, 'S')
  local reader = info.short_src .. ':' .. info.linedefined
  return function(...)
    local errors = faults[plugin] or {}
    local ok, result = pcall(read, ...)
    if ok then
      errors[reader] = nil
      return result
    end
    errors[reader] = tostring(result):gsub('^.-:%d+: ', '')
    faults[plugin] = errors
    vim.lsp.log.info('token-sidecar', 'unsupported version of a chat plugin', plugin, result)
  end
end

--- Returns an error message for each plugin whose version is not supported, keyed by plugin.
---@return table<string, string>
function M.unknown()
  local missing = {}
  for plugin, errors in pairs(faults) do
    local reasons = vim.tbl_values(errors)
    table.sort(reasons)
    missing[plugin] = reasons[1] and table.concat(reasons, '; ') or nil
  end
  return missing
end

return M
