-- Integration for CopilotChat.nvim. Reports its requests and replies, and checks prompts before they are sent.
local M = { KNOWN = 'f0c2a23 of 2026-06-17' }

local chats = require('token_sidecar.integrations.chats')
local SESSION = 'copilotchat'
local unguarded ---@type boolean? whether the first prompt may have been sent before the hooks were set
local running = setmetatable({}, { __mode = 'k' }) ---@type table<thread, token_sidecar.Call> by coroutine
local function safely(read) return chats.safely('CopilotChat', read) end
local later = vim.schedule_wrap(safely(function(run) run() end))

--- Checks the first prompt, which has already been added to the chat.
local is_held = safely(function(opts)
  local prompt = { text = opts.history[#opts.history].content, model = opts.model }
  local held = require('plenary.async').wrap(function(done)
    local function send() done(false) end
    local function keep() done(true) end
    vim.schedule(function() chats.guard(SESSION, prompt, send, keep) end)
  end, 1)()
  if held then require('CopilotChat').chat:finish() end
  return held
end)

--- Records a call. Its HTTP requests run in the same coroutine, so the coroutine identifies the call.
local function around_ask(ask)
  return function(client, opts)
    local co = assert(coroutine.running())
    opts = opts or {}
    local headless = opts.headless
    local first = unguarded and not headless
    unguarded = unguarded and headless or false
    if first and is_held(opts) then return end
    local call = { session = headless and SESSION .. ':headless' or SESSION, lines = {} }
    call.category = headless and 'headless' or nil
    local model = (safely(function() return client:models() end)() or {})[opts.model] or {}
    call.limit, call.named = model.max_input_tokens, model.provider
    running[co] = call
    local ok, response = pcall(ask, client, opts)
    running[co] = nil
    local total = ok and response and response.token_count or 0
    later(function()
      if #call.lines > 0 then return chats.reply(call) end
      if ok and response and not headless then chats.append_reply(call, response.message, total) end
    end)
    if not ok then error(response, 0) end
    return response
  end
end

local function around_post(post)
  return function(url, args, ...)
    local call = running[coroutine.running() or {}]
    if not call or type(args) ~= 'table' or type(args.body) ~= 'table' then return post(url, args, ...) end
    call.body = args.body
    chats.set_provider(call, call.named, url)
    later(function() chats.request(call, call.limit) end)
    local stream = args.stream
    args = vim.tbl_extend('force', args, {
      stream = stream and function(err, line, job)
        chats.line(call, line)
        return stream(err, line, job)
      end,
    })
    local response, err = post(url, args, ...)
    if response and #call.lines == 0 then chats.line(call, response.body) end
    return response, err
  end
end

--- Checks a prompt before it is sent. If the user cancels, a prompt typed into the chat stays in the chat.
local function around_plugin(ask)
  return function(prompt, config)
    local merged = safely(function() return vim.tbl_extend('force', require('CopilotChat').config, config or {}) end)()
    if not merged or merged.headless or not prompt or prompt == '' then return ask(prompt, config) end
    local function send()
      unguarded = false
      ask(prompt, config)
    end
    chats.guard(SESSION, { text = prompt, model = merged.model, replaces = true }, send)
  end
end

local function around_stop(stop)
  return function(reset)
    if reset then chats.forget(SESSION, true) end
    return stop(reset)
  end
end

--- Called when the chat's buffer is shown.
M.on_event = safely(function(event)
  chats.show(event.buf, SESSION)
  if unguarded == nil then unguarded = true end
  local plugin = require('CopilotChat')
  chats.wrap(require('CopilotChat.utils.curl'), 'post', around_post)
  chats.wrap(require('CopilotChat.client'), 'ask', around_ask)
  chats.wrap(plugin, 'ask', around_plugin)
  chats.wrap(plugin, 'stop', around_stop)
end)

return M
