-- codecompanion.nvim: each of its requests, in chats, inline and in the background, and a guard on submit.
local M = { KNOWN = 'f1afd02 of 2026-08-08' }

local chats = require('token_sidecar.integrations.chats')
local NAME = 'codecompanion'
local current, closed = nil, {}
local missed ---@type {call: token_sidecar.Call, name: string, id: any}? on its way before there were hooks
local followed = setmetatable({}, { __mode = 'k' }) -- each request has a copy of its adapter: of those with hooks
local function safely(read) return chats.safely(NAME, read) end

local function session_of(chat) return NAME .. ':' .. assert(chat.id, 'no member id') end
local function window_of(adapter) return require('codecompanion.adapters.shared').context_window(adapter) end

--- The call that a request is part of.
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
  if not call.body.model then -- Gemini's is in the address
    call.body = vim.tbl_extend('keep', { model = model_of(client.adapter) }, call.body)
  end
  chats.request(call, not call.category and window_of(client.adapter) or nil)
end)

--- Catches the body that a request is made with, and the lines of its reply.
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
    current = { call = call, begin = function() begin(client, call) end }
    local job = request(client, payload, tapped, opts)
    current = nil
    return job
  end
end

local function around_sync(send_sync)
  return function(client, payload, opts)
    local call = call_of(client, {})
    if not call then return send_sync(client, payload, opts) end
    current = { call = call }
    local response, err = send_sync(client, payload, opts)
    current = nil
    chats.line(call, response and response.body)
    chats.reply(call)
    return response, err
  end
end

local function around_body(merge_body)
  return function(adapter, ...)
    local body, now = merge_body(adapter, ...), current
    followed[adapter] = true
    if now then now.call.body, current = body, nil end
    if now and now.begin then now.begin() end
    return body
  end
end

--- What would be sent now, without what is being typed.
local function look(chat)
  if chat.adapter.type ~= 'http' then return end
  local copies = vim.tbl_map(function(message) return vim.tbl_extend('force', {}, message) end, chat.messages)
  local tools = chat.tool_registry.schemas
  local payload = { messages = chat.adapter:map_roles(copies), tools = next(tools) and { tools } or {} }
  local body = require('codecompanion.http').merge_body(vim.deepcopy(chat.adapter), payload)
  body.model = body.model or model_of(chat.adapter)
  chats.request({ session = session_of(chat), body = body, lines = {} }, window_of(chat.adapter))
end

--- What is typed: the lines below the user's header and its list of contexts. The plugin's own parser
--- takes seconds for a long prompt, and runs when the submit goes.
local function typed_in(chat)
  local header = assert(chat.header_line, 'no member header_line')
  local lines, first = vim.api.nvim_buf_get_lines(chat.bufnr, header, -1, false), 1
  while lines[first] and lines[first]:find('^%s*$') or (lines[first] or ''):find('^>') do
    first = first + 1
  end
  return vim.trim(table.concat(lines, '\n', first))
end

--- What is typed is in the buffer alone until the plugin has taken the submit.
local function around_submit(submit)
  return function(chat, opts)
    local typed = safely(function()
      if chat.current_request or (opts or {}).auto_submit or chat.adapter.type ~= 'http' then return nil end
      return typed_in(chat)
    end)()
    if not typed or typed == '' then return submit(chat, opts) end
    local model = safely(model_of)(chat.adapter)
    chats.guard(session_of(chat), { text = typed, model = model, replaces = true }, function() submit(chat, opts) end)
  end
end

--- The first event of all may be that of an inline or background request, which is sent by then: its
--- reply is seen where the plugin is done with it.
local function around_handler(call_handler)
  local take = safely(function(adapter, response)
    local call = missed.call
    missed = nil
    chats.set_provider(call, adapter.vendor or adapter.name, adapter.url)
    call.body = { model = model_of(adapter) }
    chats.line(call, response.body)
    chats.reply(call)
  end)
  return function(adapter, handler, data, ...)
    local ends = missed and handler == 'on_exit' and type(data) == 'table'
    if ends and adapter.name == missed.name and not followed[adapter] then take(adapter, data) end
    return call_handler(adapter, handler, data, ...)
  end
end

local function miss(data)
  local category = data.interaction or 'background'
  if category == 'chat' then return end
  local call = { session = NAME .. ':' .. category, category = category, lines = {} }
  missed = { call = call, name = (data.adapter or {}).name, id = data.id }
end

--- Whether it was done just now.
local function hook()
  local http = require('codecompanion.http')
  chats.wrap(http, 'merge_body', around_body)
  chats.wrap(http, 'request', around_request)
  chats.wrap(http, 'send_sync', around_sync)
  chats.wrap(require('codecompanion.adapters'), 'call_handler', around_handler)
  return chats.wrap(require('codecompanion.interactions.chat'), 'submit', around_submit)
end

local LOOKED_AT = { ChatCreated = true, ChatDone = true, ChatCleared = true, ChatModel = true, ChatAdapter = true }

--- Any of the plugin's `User CodeCompanion…` events.
M.on_event = safely(function(event)
  local name, data = event.match:sub(#'CodeCompanion' + 1), event.data or {}
  if hook() and name == 'RequestStarted' then miss(data) end
  if name == 'RequestFinished' and missed and missed.id == data.id then missed = nil end -- without a reply
  if name == 'ChatClosed' then
    closed[data.id] = true
    return chats.forget(NAME .. ':' .. data.id)
  end
  local chat = LOOKED_AT[name] and data.bufnr and require(NAME).buf_get_chat(data.bufnr)
  if not chat or closed[chat.id] or not chat.tool_registry then return end -- it is still being made
  chats.show(chat.bufnr, session_of(chat))
  look(chat)
end)

return M
