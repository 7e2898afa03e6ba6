-- Integration for codecompanion.nvim. Reports its chat, inline and background requests, and checks prompts before they
-- are submitted.
local M = { KNOWN = 'f1afd02 of 2026-08-08' }

local chats = require('token_sidecar.integrations.chats')
local NAME = 'codecompanion'
-- The kinds of editor context (such as `#{buffer}`) that can be read before a prompt is submitted. Other kinds have
-- side effects or are defined by the user.
local READABLE = { 'buffer', 'buffers', 'diagnostics', 'messages', 'quickfix', 'selection', 'viewport' }

local current ---@type {call: token_sidecar.Call, begin?: fun()}? the request whose body is built next
local missed ---@type {call: token_sidecar.Call, name: string, id: any}? a request sent before the hooks were set
local followed = setmetatable({}, { __mode = 'k' }) -- adapters of recorded requests; each request has its own
local closed = {} ---@type table<integer, true> ids of closed chats
local changed = {} ---@type table<table, true> chats with new context that was not reported yet
local function safely(read) return chats.safely(NAME, read) end

local function session_of(chat) return NAME .. ':' .. assert(chat.id, 'no member id') end
local function window_of(adapter) return require('codecompanion.adapters.shared').context_window(adapter) end

--- Returns the call that a request belongs to.
local call_of = safely(function(client, opts)
  local chat = opts.interaction == 'chat' and require(NAME).buf_get_chat(opts.bufnr)
  local category = not chat and (opts.interaction or 'background') or nil
  local call = { session = chat and session_of(chat) or NAME .. ':' .. category, category = category, lines = {} }
  local adapter = client.adapter
  chats.set_provider(call, adapter.vendor or adapter.name, adapter.url)
  return call
end)

local function model_of(adapter)
  local model = adapter.schema.model.default
  return type(model) == 'function' and model(adapter) or model
end

local begin = safely(function(client, call)
  if not call.body.model then -- Gemini requests specify the model in the URL
    call.body = vim.tbl_extend('keep', { model = model_of(client.adapter) }, call.body)
  end
  chats.request(call, not call.category and window_of(client.adapter) or nil)
end)

--- Runs a plugin function. If it creates a request body, the body belongs to `request`.
local function making(request, run, ...)
  local before = current
  current = request
  local results = vim.F.pack_len(pcall(run, ...))
  current = before
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2, results.n)
end

--- Records a request's body and the lines of its reply.
local function around_request(request)
  return function(client, payload, actions, opts)
    local call = call_of(client, opts or {})
    if not call then return request(client, payload, actions, opts) end
    local tapped = vim.tbl_extend('force', actions, {
      callback = function(err, data, ...)
        chats.line(call, type(data) == 'table' and data.body or data)
        if type(data) == 'table' then chats.reply(call) end
        return actions.callback(err, data, ...)
      end,
      done = function(...)
        chats.reply(call)
        if actions.done then return actions.done(...) end
      end,
    })
    local made = { call = call, begin = function() begin(client, call) end }
    return making(made, request, client, payload, tapped, opts)
  end
end

local function around_sync(send_sync)
  return function(client, payload, opts)
    local call = call_of(client, {})
    if not call then return send_sync(client, payload, opts) end
    local response, err = making({ call = call }, send_sync, client, payload, opts)
    chats.line(call, response and response.body)
    chats.reply(call)
    return response, err
  end
end

local function around_body(merge_body)
  return function(adapter, ...)
    local request = current
    current = nil
    local body = merge_body(adapter, ...)
    followed[adapter] = true
    if request then request.call.body = body end
    if request and request.begin then request.begin() end
    return body
  end
end

--- Tells the server what a chat's next request will contain, except for the typed prompt.
---@return string? model the model of the request
local function report(chat)
  if chat.adapter.type ~= 'http' then return end
  local copies = vim.tbl_map(function(message) return vim.tbl_extend('force', {}, message) end, chat.messages)
  local tools, adapter = chat.tool_registry.schemas, vim.deepcopy(chat.adapter):map_schema_to_params(chat.settings)
  local payload = { messages = adapter:map_roles(copies), tools = next(tools) and { tools } or {} }
  local body = require('codecompanion.http').merge_body(adapter, payload)
  body.model = body.model or model_of(adapter)
  chats.request({ session = session_of(chat), body = body, lines = {} }, window_of(adapter))
  return body.model
end

local function lines_below_header(chat)
  return vim.api.nvim_buf_get_lines(chat.bufnr, assert(chat.header_line, 'no member header_line'), -1, false)
end

--- Returns the typed prompt, which is below the user's header and the list of attached context. The plugin's own parser
--- takes seconds for long prompts, so it runs only when a prompt is sent.
local function typed_in(chat)
  local lines, first = lines_below_header(chat), 1
  while lines[first] and lines[first]:find('^%s*$') or (lines[first] or ''):find('^>') do
    first = first + 1
  end
  return vim.trim(table.concat(lines, '\n', first))
end

--- Returns the ids of the attached context items whose lines are still in the buffer.
local function listed_context(chat)
  local ids = {}
  for _, line in ipairs(lines_below_header(chat)) do
    local entry = line:match('^> %- (.-)%s*$')
    for _, item in ipairs(entry and chat.context_items or {}) do
      if vim.endswith(entry, item.id) then table.insert(ids, item.id) end -- the entry is an icon followed by the id
    end
  end
  return ids
end

--- Copies a chat for a trial run: submitting a prompt to the copy leaves the chat unchanged. Copies only the parts that
--- submitting would change.
local function trial_copy(chat)
  local context = { add = function() end, get_from_chat = function() return listed_context(chat) end }
  local registry, trial = {}, { messages = vim.list_slice(chat.messages) }
  for _, member in ipairs({ 'flags', 'groups', 'in_use', 'schemas' }) do
    registry[member] = vim.tbl_extend('force', {}, chat.tool_registry[member])
  end
  registry.chat = trial
  trial.context = setmetatable(context, { __index = chat.context })
  trial.tool_registry = setmetatable(registry, { __index = chat.tool_registry })
  return setmetatable(trial, { __index = chat })
end

--- Returns whether a prompt may name tools (`@{…}`) or editor context (`#{…}`). If not, the plugin's slow search for
--- every known name is skipped.
---@param kind 'tools'|'editor_context'
local function may_name(kind, typed)
  return typed:find(require('codecompanion.triggers').mappings[kind] .. '{', 1, true) ~= nil
end

--- Adds the tools that a prompt names. The user's autocommands run later, when the plugin itself adds the tools.
local function add_tools(chat, typed)
  if not may_name('tools', typed) then return end
  local ignored = vim.o.eventignore
  vim.o.eventignore = 'all'
  local ok, err = pcall(chat.tools.parse, chat.tools, chat, { content = typed })
  vim.o.eventignore = ignored
  if not ok then error(err, 0) end
end

--- Attaches watched buffers and the buffers that a prompt names, as the plugin would.
---@return table[] turns
local function attach(chat, typed)
  local before, is_new = #chat.messages, {}
  for _, message in ipairs(chat.messages) do
    local id = (message.context or {}).id
    if id and (message._meta or {}).cycle == chat.cycle then is_new[id] = true end
  end
  for _, item in ipairs(chat.context_items) do
    if item.opts.sync_all and not is_new[item.id] then
      local command = require(item.source).new({ Chat = chat })
      command:output({ path = item.path, bufnr = item.bufnr, params = item.params }, { sync_all = true })
    end
  end
  if may_name('editor_context', typed) then
    local readable = setmetatable({ editor_context = {} }, { __index = chat.editor_context })
    for _, name in ipairs(READABLE) do
      readable.editor_context[name] = chat.editor_context.editor_context[name]
    end
    readable:parse(chat, { content = typed })
  end
  return vim.tbl_map(
    function(message) return { role = message.role, content = message.content } end,
    vim.list_slice(chat.messages, before + 1)
  )
end

--- Returns the prompt to check, and reports the rest of its request to the server. Returns nil if no check is needed.
---@return token_sidecar.Prompt?
local prompt_of = safely(function(chat, opts)
  if chat.current_request or opts.auto_submit or chat.adapter.type ~= 'http' then return nil end
  local trial, typed = trial_copy(chat), typed_in(chat)
  if typed ~= '' then
    trial:check_context() -- removes context whose line the user has deleted
    add_tools(trial, typed)
  end
  return {
    text = typed,
    model = report(trial),
    turns = typed ~= '' and attach(trial, typed) or nil,
    attached = vim.tbl_map(function(item) return item.id end, trial.context_items),
    replaces = true,
  }
end)

--- Checks a prompt. It remains in the buffer until the plugin sends it.
local function around_submit(submit)
  local function guarded_submit(chat, opts)
    local prompt = prompt_of(chat, opts or {})
    if not prompt then return submit(chat, opts) end
    chats.guard(session_of(chat), prompt, function()
      if closed[chat.id] then return end
      -- The buffer may be edited during the check, but only the checked prompt may be sent.
      if safely(typed_in)(chat) ~= prompt.text then return guarded_submit(chat, opts) end
      submit(chat, opts)
    end)
  end
  return guarded_submit
end

--- Reports attached context at most once per tick, because a picker may attach many files.
local report_change = safely(function(chat)
  changed[chat] = nil
  if not (closed[chat.id] or chat.current_request) and chat.tool_registry then report(chat) end
end)

local function around_message(add_message)
  return function(chat, data, opts)
    local is_attached = (opts or {}).context ~= nil
    local result = add_message(chat, data, opts)
    -- Ignore the copies made by trial_copy().
    if is_attached and not changed[chat] and rawget(chat, 'bufnr') then
      changed[chat] = true
      vim.schedule(function() report_change(chat) end)
    end
    return result
  end
end

--- Wraps the function through which the plugin calls an adapter's handlers. The handler `on_exit` gets complete replies.
--- Replies to inline and background requests that were sent before the hooks were set are recorded here.
local function around_handler(call_handler)
  local record = safely(function(adapter, response)
    local call = missed.call
    missed = nil
    chats.set_provider(call, adapter.vendor or adapter.name, adapter.url)
    call.body = { model = model_of(adapter) }
    chats.line(call, response.body)
    chats.reply(call)
  end)
  return function(adapter, handler, data, ...)
    local is_end = missed and handler == 'on_exit' and type(data) == 'table'
    if is_end and adapter.name == missed.name and not followed[adapter] then record(adapter, data) end
    return call_handler(adapter, handler, data, ...)
  end
end

local function set_missed(data)
  local category = data.interaction or 'background'
  if category == 'chat' then return end
  local call = { session = NAME .. ':' .. category, category = category, lines = {} }
  missed = { call = call, name = (data.adapter or {}).name, id = data.id }
end

---@return boolean whether this call set the hooks
local function hook()
  local http, chat = require('codecompanion.http'), require('codecompanion.interactions.chat')
  chats.wrap(http, 'merge_body', around_body)
  chats.wrap(http, 'request', around_request)
  chats.wrap(http, 'send_sync', around_sync)
  chats.wrap(require('codecompanion.adapters'), 'call_handler', around_handler)
  chats.wrap(chat, 'add_message', around_message)
  return chats.wrap(chat, 'submit', around_submit)
end

local REPORTED = { ChatCreated = true, ChatDone = true, ChatCleared = true, ChatModel = true, ChatAdapter = true }

--- Handles each of the plugin's `User CodeCompanion…` events.
M.on_event = safely(function(event)
  local name, data = event.match:sub(#'CodeCompanion' + 1), event.data or {}
  if hook() and name == 'RequestStarted' then set_missed(data) end
  if name == 'RequestFinished' and missed and missed.id == data.id then missed = nil end -- there was no reply
  if name == 'ChatClosed' then
    closed[data.id] = true
    return chats.forget(NAME .. ':' .. data.id)
  end
  local chat = REPORTED[name] and data.bufnr and require(NAME).buf_get_chat(data.bufnr)
  if not chat or closed[chat.id] or not chat.tool_registry then return end -- the chat is not fully created yet
  chats.show(chat.bufnr, session_of(chat))
  report(chat)
end)

return M
