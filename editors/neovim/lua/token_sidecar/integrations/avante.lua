-- avante.nvim: what it is about to send, whole, what comes back, and a guard on submit.
local M = { KNOWN = 'a933431 of 2026-08-21' }

local chats = require('token_sidecar.integrations.chats')
local prompts = setmetatable({}, { __mode = 'k' }) ---@type table<table, table> by the options that they are made of
local current ---@type string? the session of a request that is being made
local function quietly(read) return chats.quietly('avante', read) end

--- A chat is a file of a project's: neither name alone tells which.
local function session_of(sidebar)
  local root = require('avante.utils').root.get({ buf = sidebar.code.bufnr })
  local file = assert(sidebar.chat_history.filename, 'no member chat_history.filename')
  return ('avante:%s:%s'):format(vim.fn.sha256(tostring(root)):sub(1, 12), file)
end

--- What the settings call a provider, which does not know its own name.
local function name_of(provider)
  for name, each in pairs(require('avante.providers')) do
    if each == provider then return name end
  end
end

local function begin(call, provider, spec)
  call.body = vim.tbl_extend('keep', spec.body, { model = provider.model })
  chats.serve(call, name_of(provider), spec.url)
  chats.request(call, provider.context_window)
end

--- The provider with what it makes of a prompt, and the lines of the reply, caught.
local function tapped(provider, call)
  local tap = setmetatable({}, { __index = provider })
  function tap:parse_curl_args(prompt)
    local spec = provider:parse_curl_args(prompt)
    if spec then quietly(begin)(call, provider, spec) end
    return spec
  end
  for _, name in ipairs({ 'parse_response', 'parse_stream_data', 'parse_response_without_stream' }) do
    tap[name] = provider[name]
      and function(_, ...)
        for index = 1, select('#', ...) do
          chats.line(call, (select(index, ...)))
        end
        if call.stopped then chats.reply(call) end -- usage may come behind what ends the reply
        return provider[name](provider, ...)
      end
  end
  return tap
end

--- Catches what a request is made with, and its reply.
local catch = quietly(function(opts)
  local provider, handlers = assert(opts.provider, 'no provider'), assert(opts.handler_opts, 'no handler_opts')
  local session, on_stop = current, handlers.on_stop
  local call = { session = session or 'avante:other', category = not session and 'other' or nil, lines = {} }
  opts.provider = tapped(provider, call)
  handlers.on_stop = function(stop, ...)
    if not (stop and stop.streaming_tool_use) then
      call.stopped = true
      chats.reply(call)
    end
    if on_stop then return on_stop(stop, ...) end
  end
end)

local function around_curl(curl)
  return function(opts)
    catch(opts)
    return curl(opts)
  end
end

local function around_stream(stream)
  return function(opts)
    local before = current
    current = opts.token_sidecar_session
    local ok, result = pcall(stream, opts)
    current = before
    if not ok then error(result, 0) end
    return result
  end
end

local function provider_now() return require('avante.providers')[require('avante.config').provider] end

--- The plugin makes the prompts of a long chat to count them itself: they are not made twice.
local function around_prompts(generate)
  return function(opts)
    local made = generate(opts)
    if type(opts) == 'table' then prompts[opts] = made end
    return made
  end
end

--- What would be sent now, without what is being typed.
local look = quietly(function(session, opts)
  local provider = provider_now()
  local made = prompts[opts] or require('avante.llm').generate_prompts(opts)
  prompts[opts] = nil
  local last = provider.last_response_id -- which a request that is sent uses up
  local spec = provider:parse_curl_args(made)
  provider.last_response_id = last
  begin({ session = session, lines = {} }, provider, spec)
end)

local function around_options(get_options)
  return function(sidebar, request, cb)
    local session = quietly(session_of)(sidebar)
    get_options(sidebar, request, function(opts)
      opts.token_sidecar_session = session
      if cb then return cb(opts) end
      if session then look(session, opts) end
    end)
  end
end

--- Where it is held the prompt goes back to where it was typed.
local function around_submit(submit)
  return function(sidebar, request)
    local is_prompt = request ~= '' and request:sub(1, 1) ~= '/' and not sidebar.is_generating
    local session = is_prompt and quietly(session_of)(sidebar)
    if not session then return submit(sidebar, request) end
    local input = (sidebar.containers or {}).input
    local function put(lines)
      if input and vim.api.nvim_buf_is_valid(input.bufnr) then
        vim.api.nvim_buf_set_lines(input.bufnr, 0, -1, false, lines)
      end
    end
    put(vim.split(request, '\n'))
    local model = (quietly(provider_now)() or {}).model
    chats.guard(session, request, model, function()
      put({})
      submit(sidebar, request)
    end)
  end
end

--- Called when one of its windows appears.
M.on_event = quietly(function(event)
  local llm, class = require('avante.llm'), require('avante.sidebar')
  chats.wrap(llm, 'generate_prompts', around_prompts)
  chats.wrap(llm, 'curl', around_curl)
  chats.wrap(llm, '_stream', around_stream)
  chats.wrap(class, 'get_generate_prompts_options', around_options)
  chats.wrap(class, 'handle_submit', around_submit)
  local sidebar = require('avante').get()
  if sidebar and sidebar.chat_history and sidebar.chat_history.filename then chats.show(event.buf, session_of(sidebar)) end
end)

return M
