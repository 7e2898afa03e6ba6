-- The :TokenSidecar command and its subcommands.
local M = {}

local format = require('token_sidecar.format')
local notify = format.notify
local report = require('token_sidecar.report')
local selection = require('token_sidecar.selection')
local server = require('token_sidecar.server')

local COMPARED = { 'gpt-5', 'claude-sonnet-4-5', 'gemini-2.5-pro' }
local COMPLETION_MS = 2000
local MODES = { 'start', 'middle', 'end' }

---@alias token_sidecar.Command vim.api.keyset.create_user_command.command_args

--- Sends a request about a text in a buffer, or about the whole buffer if `text` is nil. The server counts for the model
--- that the buffer's status shows.
local function ask_text(buf, text, method, extra, done)
  server.with_client(buf, function(client)
    local document = client.attached_buffers[buf] and { uri = vim.uri_from_bufnr(buf) } or nil
    local params = { textDocument = document, text = text or not document and selection.lines(buf) or nil }
    server.request(buf, method, vim.tbl_extend('force', params, extra), done)
  end)
end

--- Returns a function that sends requests about the current buffer's workspace, even if another buffer has become
--- current by then.
---@return token_sidecar.Ask
local function workspace_ask()
  local buf, status = vim.api.nvim_get_current_buf(), vim.b.token_sidecar_status_dict
  local workspace = status and status.workspace ~= vim.NIL and status.workspace or nil
  return function(method, extra, done)
    local params = vim.tbl_extend('force', vim.empty_dict(), { workspace = workspace }, extra)
    server.request(vim.api.nvim_buf_is_valid(buf) and buf or vim.api.nvim_get_current_buf(), method, params, done)
  end
end

local function show_report(method, params, title, member)
  workspace_ask()(method, params, function(result) report.open(title, result[member]) end)
end

local function count(opts)
  local what = opts.range > 0 and 'selection: ' or ''
  local buf, text = vim.api.nvim_get_current_buf(), selection.of_command(opts)
  ask_text(buf, text, 'tokens/count', {}, function(result) notify(what .. format.count(result)) end)
end

local function compare(opts)
  local named = vim.list_slice(opts.fargs, 2)
  local models = #named > 0 and named or vim.g.token_sidecar_compare or COMPARED
  local function show(result) report.open('Tokens by model', result.text) end
  local buf, text = vim.api.nvim_get_current_buf(), selection.of_command(opts)
  ask_text(buf, text, 'tokens/count', { models = models }, show)
end

local AUTOMATIC, MOST_MODELS = 'automatic', 50

---@param ask token_sidecar.Ask
---@param name string a model, or `automatic` to undo the choice
local function set_model(ask, name)
  local is_choice = name ~= AUTOMATIC
  ask('context/set', { model = is_choice and name or vim.NIL }, function(_, client)
    server.remember(client, is_choice and name or nil)
    notify(is_choice and 'counting for ' .. name or "counting for the configured model, or the shown session's")
  end)
end

---@param ask token_sidecar.Ask
---@param most integer
local function choose_model(ask, query, most)
  ask('models/list', { query = query, choices = true }, function(models)
    if #models == 0 then return notify(('no model matches %s'):format(query), vim.log.levels.WARN) end
    local others = #models - most
    local names = vim.tbl_map(function(choice) return choice.id end, vim.list_slice(models, 1, math.min(most, #models)))
    if query == '' then table.insert(names, 1, AUTOMATIC) end
    local prompt = 'Count for the model'
    if others > 0 then prompt = ('%s (%d more: type part of the name)'):format(prompt, others) end
    vim.ui.select(names, { prompt = prompt, format_item = format.plain }, function(name)
      if name then set_model(ask, name) end
    end)
  end)
end

--- Lets the user choose a model. There are thousands of models, and Neovim's built-in list cannot be filtered, so the
--- user first types part of the name. Picker plugins can filter, so they get the full list.
local function model(opts)
  local ask = workspace_ask()
  if opts.fargs[2] then return set_model(ask, opts.fargs[2]) end
  local is_builtin = debug.getinfo(vim.ui.select, 'S').source:find('vim/ui.lua', 1, true)
  if not is_builtin then return choose_model(ask, '', math.huge) end
  vim.ui.input({ prompt = "Part of the model's name: " }, function(query)
    if query then choose_model(ask, query, MOST_MODELS) end
  end)
end

--- Shortens a range of lines, or the whole buffer, to at most `max` tokens. Neovim writes a line break after the last
--- line. If the shortened text does not end with one, the limit is lowered by one token to make room for it.
local function fit_to(opts, max, mode)
  local buf, tick = vim.api.nvim_get_current_buf(), vim.b.changedtick
  local first = opts.range > 0 and opts.line1 or 1
  local last = opts.range > 0 and opts.line2 or vim.api.nvim_buf_line_count(buf)
  local function fit(tokens)
    local extra = { maxTokens = tokens, mode = mode }
    ask_text(buf, selection.lines(buf, first, last), 'tokens/fit', extra, function(fitted)
      local text = fitted.text:gsub('\r\n?', '\n')
      if not fitted.changed then
        return notify(('nothing to remove: it already fits (%s)'):format(format.tokens_text(fitted.tokens)))
      elseif vim.bo[buf].eol and text ~= '' and text:sub(-1) ~= '\n' and tokens == max then
        return fit(max - 1)
      elseif vim.api.nvim_buf_get_changedtick(buf) ~= tick then
        return notify('the buffer has changed; try again', vim.log.levels.WARN)
      end
      local lines = vim.split(text:gsub('\n$', ''), '\n', { plain = true })
      vim.api.nvim_buf_set_lines(buf, first - 1, last, true, lines)
    end)
  end
  fit(max)
end

local function ask_size(opts)
  local buf = vim.api.nvim_get_current_buf()
  vim.ui.input({ prompt = 'No budget is exceeded. Fit to how many tokens? ' }, function(size)
    local same = vim.api.nvim_get_current_buf() == buf
    if same and size and size:match('^%d+$') then fit_to(opts, tonumber(size), 'middle') end
  end)
end

--- `fit` applies the server's fix for an exceeded budget. `fit N [start|middle|end]` shortens the text to N tokens.
local function fit(opts)
  local size, last = opts.fargs[2], vim.api.nvim_buf_line_count(0)
  local mode = opts.fargs[3] or 'middle'
  if not vim.bo.modifiable then return notify('this buffer cannot be changed', vim.log.levels.WARN) end
  if size and not (size:match('^%d+$') and vim.list_contains(MODES, mode)) then
    return notify('fit takes a number of tokens, then start, middle or end', vim.log.levels.WARN)
  end
  if size then return fit_to(opts, tonumber(size), mode) end
  local buf, tick = vim.api.nvim_get_current_buf(), vim.b.changedtick
  if #server.clients(buf) == 0 then return ask_size(opts) end
  local function is_fit(action) return vim.startswith(action.title, 'Fit to budget') end
  local whole = { start = { line = 0, character = 0 }, ['end'] = { line = last, character = 0 } }
  local asked = { textDocument = vim.lsp.util.make_text_document_params(), range = whole }
  asked.context = { diagnostics = {}, only = { 'quickfix' } }
  server.request(buf, 'textDocument/codeAction', asked, function(found)
    if vim.api.nvim_get_current_buf() ~= buf or vim.b.changedtick ~= tick then return end
    if #vim.tbl_filter(is_fit, found) == 0 then return ask_size(opts) end
    local range = { start = { 1, 0 }, ['end'] = { last, #vim.fn.getline(last) } }
    vim.lsp.buf.code_action({ apply = true, range = range, filter = is_fit })
  end)
end

local function conversation(name)
  return function() require('token_sidecar.conversation')[name](workspace_ask()) end
end

--- Shows the cost report. If the editor is too narrow for the table, the report shows fewer columns.
local function cost()
  workspace_ask()('cost/detail', { charts = true, width = report.columns() }, function(result)
    report.open('Cost', result.overview)
  end)
end

---@type table<string, fun(opts: token_sidecar.Command)>
local SUBCOMMANDS = {
  compare = compare,
  context = function() show_report('context/usage', { contents = true }, 'Context', 'text') end,
  cost = cost,
  count = count,
  fit = fit,
  fitcontext = conversation('fit'),
  footprint = function(opts)
    local params = { agent = opts.fargs[2], width = report.columns() }
    show_report('context/footprint', params, 'What your agent loads', 'text')
  end,
  log = function()
    local name = vim.lsp.log.get_filename()
    if vim.fn.filereadable(name) == 0 then return notify('the log is empty') end
    vim.cmd.tabedit(vim.fn.fnameescape(name))
  end,
  map = function(opts) require('token_sidecar.map').open(opts.fargs[2] or vim.fn.getcwd()) end,
  model = model,
  reset = function() workspace_ask()('context/reset', {}, function(usage) notify(usage.text) end) end,
  probe = conversation('probe'),
  restart = function() server.restart() end,
  sessions = conversation('sessions'),
  undofit = conversation('undo'),
}

---@param opts token_sidecar.Command
function M.run(opts)
  local name = opts.fargs[1] or 'count'
  server.revive()
  if SUBCOMMANDS[name] then return SUBCOMMANDS[name](opts) end
  local known = table.concat(M.complete('', 'TokenSidecar '), ', ')
  notify(('no command %s, only %s'):format(name, known), vim.log.levels.ERROR)
end

--- Returns the model ids that match `lead`, or an empty list if no server is running.
local function model_names(lead)
  local client = server.clients()[1]
  local params = { query = lead, choices = true }
  local answer = client and client:request_sync('models/list', params, COMPLETION_MS)
  return vim.tbl_map(function(choice) return choice.id end, answer and answer.result or {})
end

---@param line string up to the cursor
function M.complete(lead, line)
  local words = vim.split(line:gsub('^.-TokenSidecar%s*', ''), '%s+')
  local candidates = #words < 2 and vim.tbl_keys(SUBCOMMANDS) or {}
  if words[1] == 'model' and #words == 2 or words[1] == 'compare' and #words > 1 then
    candidates = model_names(lead)
    if words[1] == 'model' then table.insert(candidates, AUTOMATIC) end
  elseif words[1] == 'map' and #words == 2 then
    return vim.fn.getcompletion(lead, 'dir')
  elseif words[1] == 'fit' and #words == 3 then
    candidates = MODES
  end
  candidates = vim.tbl_filter(function(name) return vim.startswith(name, lead) end, candidates)
  table.sort(candidates)
  return vim.fn.uniq(candidates)
end

return M
