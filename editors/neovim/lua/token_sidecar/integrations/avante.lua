-- Integration for avante.nvim. Reports its requests and replies, and checks prompts before they are submitted.
local M = { KNOWN = 'a933431 of 2026-08-21' }

local chats = require('token_sidecar.integrations.chats')
local prompts = setmetatable({}, { __mode = 'k' }) ---@type table<table, table> generated prompts, by their options
local current ---@type string? session of the request that is being built
local function safely(read) return chats.safely('avante', read) end

--- Returns a chat's id. It combines the project and the file name, because neither is unique by itself.
local function session_of(sidebar)
  local root = require('avante.utils').root.get({ buf = sidebar.code.bufnr })
  local file = assert(sidebar.chat_history.filename, 'no member chat_history.filename')
  return ('avante:%s:%s'):format(vim.fn.sha256(tostring(root)):sub(1, 12), file)
end

--- Looks up a provider's name in the settings, because the provider object does not contain it.
local function name_of(provider)
  for name, configured in pairs(require('avante.providers')) do
    if configured == provider then return name end
  end
end

local function begin(call, provider, spec)
  call.body = vim.tbl_extend('keep', spec.body, { model = provider.model })
  chats.set_provider(call, name_of(provider), spec.url)
  chats.request(call, provider.context_window)
end

--- Wraps a provider to record the request and the reply lines of a call.
local function tapped(provider, call)
  local tap = setmetatable({}, { __index = provider })
  function tap:parse_curl_args(prompt)
    local spec = provider:parse_curl_args(prompt)
    if spec then safely(begin)(call, provider, spec) end
    return spec
  end
  for _, name in ipairs({ 'parse_response', 'parse_stream_data', 'parse_response_without_stream' }) do
    tap[name] = provider[name]
      and function(_, ...)
        for index = 1, select('#', ...) do
          chats.line(call, (select(index, ...)))
        end
        if call.stopped then chats.reply(call) end -- usage may arrive after the end of the reply
        return provider[name](provider, ...)
      end
  end
  return tap
end

--- Records a request and its reply.
local follow = safely(function(opts)
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
    follow(opts)
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

local function current_provider() return require('avante.providers')[require('avante.config').provider] end

--- Caches the prompts that the plugin generates for its own token count. In long chats, generating them again would be
--- slow.
local function around_prompts(generate)
  return function(opts)
    local generated = generate(opts)
    if type(opts) == 'table' then prompts[opts] = generated end
    return generated
  end
end

--- Reports the next request to the server, without the text in the input window.
local report = safely(function(session, opts)
  local provider = current_provider()
  local generated = prompts[opts] or require('avante.llm').generate_prompts(opts)
  prompts[opts] = nil
  local last = provider.last_response_id -- parse_curl_args() clears this field, but the next request needs its value
  local spec = provider:parse_curl_args(generated)
  provider.last_response_id = last
  begin({ session = session, lines = {} }, provider, spec)
end)

local function around_options(get_options)
  return function(sidebar, request, cb)
    local session = safely(session_of)(sidebar)
    get_options(sidebar, request, function(opts)
      opts.token_sidecar_session = session
      if cb then return cb(opts) end
      if session then report(session, opts) end
    end)
  end
end

--- Puts a prompt back into the input window, above any text that has been typed since.
local function put_back(sidebar, prompt)
  local input = (sidebar.containers or {}).input
  if not (input and vim.api.nvim_buf_is_valid(input.bufnr)) then return end
  local typed = vim.api.nvim_buf_get_lines(input.bufnr, 0, -1, false)
  local is_empty = #typed == 1 and typed[1] == ''
  vim.api.nvim_buf_set_lines(input.bufnr, 0, is_empty and -1 or 0, false, vim.split(prompt, '\n'))
end

--- Checks a prompt that the plugin has removed from the input window.
local function around_submit(submit)
  return function(sidebar, request)
    local is_prompt = request ~= '' and request:sub(1, 1) ~= '/' and not sidebar.is_generating
    local session = is_prompt and safely(session_of)(sidebar)
    if not session then return submit(sidebar, request) end
    local prompt = { text = request, model = (safely(current_provider)() or {}).model }
    local function send()
      local is_open = safely(function() return sidebar:is_open() end)()
      if is_open == false then return chats.warn('avante was closed, so its prompt was not sent') end
      submit(sidebar, request)
    end
    local function keep() put_back(sidebar, request) end
    chats.guard(session, prompt, send, keep)
  end
end

--- Called when one of the plugin's windows is opened.
M.on_event = safely(function(event)
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
