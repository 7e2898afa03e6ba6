-- CopilotChat.nvim: what its client sends and gets, and a guard on what is asked.
local M = { KNOWN = 'f0c2a23 of 2026-06-17' }

local chats = require('token_sidecar.integrations.chats')
local SESSION = 'copilotchat'
local unguarded ---@type boolean? what opened the chat may be a prompt, asked before there was a guard
local running = setmetatable({}, { __mode = 'k' }) ---@type table<thread, token_sidecar.Call> by coroutine
local function quietly(read) return chats.quietly('CopilotChat', read) end
local later = vim.schedule_wrap(quietly(function(run) run() end))

--- Whether the first prompt is held; it waits here, where it stands in the chat already.
local is_held = quietly(function(opts)
  local messages = opts.history
  local held = require('plenary.async').wrap(function(done)
    local function go() done(false) end
    local function stay() done(true) end
    vim.schedule(function() chats.guard(SESSION, messages[#messages].content, opts.model, go, stay) end)
  end, 1)()
  if held then require('CopilotChat').chat:finish() end
  return held
end)

--- One answer: the client runs in a coroutine, and so does what it posts.
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
    local model = (quietly(function() return client:models() end)() or {})[opts.model] or {}
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
    chats.serve(call, call.named, url)
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

--- What is asked may come from the chat, where it stays while it is held, or from a command.
local function around_plugin(ask)
  return function(prompt, config)
    local merged = quietly(function() return vim.tbl_extend('force', require('CopilotChat').config, config or {}) end)()
    if not merged or merged.headless or not prompt or prompt == '' then return ask(prompt, config) end
    chats.guard(SESSION, prompt, merged.model, function()
      unguarded = false
      ask(prompt, config)
    end)
  end
end

local function around_stop(stop)
  return function(reset)
    if reset then chats.forget(SESSION, true) end
    return stop(reset)
  end
end

--- Called when its chat's buffer appears.
M.on_event = quietly(function(event)
  chats.show(event.buf, SESSION)
  if unguarded == nil then unguarded = true end
  local plugin = require('CopilotChat')
  chats.wrap(require('CopilotChat.utils.curl'), 'post', around_post)
  chats.wrap(require('CopilotChat.client'), 'ask', around_ask)
  chats.wrap(plugin, 'ask', around_plugin)
  chats.wrap(plugin, 'stop', around_stop)
end)

return M
