-- :TokenSidecar and its subcommands.
local M = {}

local format = require('token_sidecar.format')
local notify = require('token_sidecar.notify').notify
local report = require('token_sidecar.report')
local selection = require('token_sidecar.selection')
local server = require('token_sidecar.server')

local COMPARED = { 'gpt-5', 'claude-sonnet-4-5', 'gemini-2.5-pro' }
local FIT_TITLE = '^Fit to budget'
local COMPLETION_MS = 2000

---@alias token_sidecar.Command vim.api.keyset.create_user_command.command_args

--- What a command is about: its range's text, else the buffer.
---@param opts token_sidecar.Command
---@param client vim.lsp.Client
---@return table params with `text` or `textDocument`
local function target(opts, client)
  local buf = vim.api.nvim_get_current_buf()
  local text = selection.of_command(opts)
  if not text and client.attached_buffers[buf] then
    return { textDocument = { uri = vim.uri_from_bufnr(buf) } }
  end
  return { text = text or selection.document(buf) }
end

--- Asks the server about the range or the buffer.
---@param opts token_sidecar.Command
---@param method string
---@param extra table further params
---@param done fun(result: any)
local function ask(opts, method, extra, done)
  local buf = vim.api.nvim_get_current_buf()
  server.with_client(buf, function(client)
    local params = vim.tbl_extend('force', target(opts, client), extra)
    server.request(buf, method, params, done)
  end)
end

--- Asks the server about the workspace of the buffer.
---@param method string
---@param extra table
---@param done fun(result: any)
local function ask_workspace(method, extra, done)
  local status = vim.b.token_sidecar_status_dict
  local workspace = status and status.workspace ~= vim.NIL and status.workspace or nil
  local params = vim.tbl_extend('force', vim.empty_dict(), { workspace = workspace }, extra)
  server.request(vim.api.nvim_get_current_buf(), method, params, done)
end

---@param opts token_sidecar.Command
local function count(opts)
  local what = opts.range > 0 and 'selection: ' or ''
  ask(opts, 'tokens/count', {}, function(result)
    notify(what .. format.count(result))
  end)
end

---@param opts token_sidecar.Command
local function compare(opts)
  local models = vim.list_slice(opts.fargs, 2)
  if #models == 0 then
    models = vim.g.token_sidecar_compare or COMPARED
  end
  ask(opts, 'tokens/count', { models = models }, function(result)
    report.open('Tokens by model', report.compare_lines(result.models))
  end)
end

local function context()
  ask_workspace('context/usage', {}, function(usage)
    report.open('Context', report.context_lines(usage))
  end)
end

local function cost()
  ask_workspace('cost/detail', {}, function(detail)
    report.open('Cost', report.cost_lines(detail))
  end)
end

local function reset()
  ask_workspace('context/reset', {}, function()
    notify('context forgotten')
  end)
end

---@param name string
local function set_model(name)
  ask_workspace('context/set', { model = name }, function()
    notify('counting for ' .. name)
  end)
end

---@param opts token_sidecar.Command
local function model(opts)
  if opts.fargs[2] then
    return set_model(opts.fargs[2])
  end
  server.request(vim.api.nvim_get_current_buf(), 'models/list', vim.empty_dict(), function(known)
    vim.ui.select(known, {
      prompt = 'Count for the model',
      format_item = function(each)
        local bare = each.id:find('/', 1, true) or not each.provider
        return bare and each.id or each.provider .. '/' .. each.id
      end,
    }, function(chosen)
      return chosen and set_model(chosen.id)
    end)
  end)
end

--- Lines of a fitted text as the buffer would hold them, without the line ends.
---@param text string
---@return string[]
local function to_lines(text)
  local lines = vim.split((text:gsub('\r\n?', '\n')), '\n', { plain = true })
  if lines[#lines] == '' and #lines > 1 then
    table.remove(lines)
  end
  return lines
end

--- Fits lines to a number of tokens. Neovim ends the last line, so the text is asked for again,
--- smaller by that line end, where it came without one.
---@param opts token_sidecar.Command
---@param max integer
---@param mode string
local function fit_to(opts, max, mode)
  local buf, tick = vim.api.nvim_get_current_buf(), vim.b.changedtick
  local first = opts.range > 0 and opts.line1 or 1
  local last = opts.range > 0 and opts.line2 or vim.api.nvim_buf_line_count(buf)
  local text = selection.lines(buf, first, last)
  local function fit(tokens, retry)
    local params = { text = text, maxTokens = tokens, mode = mode }
    server.request(buf, 'tokens/fit', params, function(fitted)
      if not fitted.changed and not retry then
        return notify(('it fits: %s tokens'):format(format.integer(fitted.tokens)))
      end
      local bare = not fitted.text:find('[\r\n]$') and fitted.text ~= ''
      if bare and vim.bo[buf].eol and not retry then
        return fit(math.max(0, max - 1), true)
      end
      if vim.api.nvim_buf_get_changedtick(buf) ~= tick then
        return notify('the buffer changed meanwhile: try again', vim.log.levels.WARN)
      end
      vim.api.nvim_buf_set_lines(buf, first - 1, last, true, to_lines(fitted.text))
    end)
  end
  fit(max, false)
end

--- `fit` applies the server's own fix of an exceeded budget; `fit N [start|middle|end]` a size.
---@param opts token_sidecar.Command
local function fit(opts)
  local max = tonumber(opts.fargs[2])
  if max then
    return fit_to(opts, max, opts.fargs[3] or 'middle')
  end
  server.with_client(vim.api.nvim_get_current_buf(), function()
    local last = vim.api.nvim_buf_line_count(0)
    vim.lsp.buf.code_action({
      apply = true,
      range = { start = { 1, 0 }, ['end'] = { last, 0 } },
      filter = function(action)
        return action.title:find(FIT_TITLE) ~= nil
      end,
    })
  end)
end

local function probe()
  server.request(vim.api.nvim_get_current_buf(), 'capabilities/probe', vim.empty_dict(), function(found)
    local rows = { { 'endpoint', 'server', 'text', 'chat', 'window' } }
    for _, each in ipairs(found) do
      local window = each.limit and format.integer(each.limit) or '?'
      table.insert(rows, { each.endpoint, each.server or '?', each.text, each.chat, window })
    end
    local none = 'None was asked: no endpoint is set, or use-endpoint is off.'
    report.open('Endpoints', #found > 0 and format.table(rows) or { none })
  end)
end

---@type table<string, fun(opts: token_sidecar.Command)>
local SUBCOMMANDS = {
  compare = compare,
  context = context,
  cost = cost,
  count = count,
  fit = fit,
  log = function()
    vim.cmd.tabedit(vim.fn.fnameescape(vim.lsp.log.get_filename()))
  end,
  model = model,
  probe = probe,
  reset = reset,
  restart = function()
    server.restart()
  end,
}

---@param opts token_sidecar.Command
function M.run(opts)
  local name = opts.fargs[1] or 'count'
  local subcommand = SUBCOMMANDS[name]
  if subcommand then
    return subcommand(opts)
  end
  local known = vim.tbl_keys(SUBCOMMANDS)
  table.sort(known)
  local text = ('no command %s, only %s'):format(name, table.concat(known, ', '))
  notify(text, vim.log.levels.ERROR)
end

--- Model ids that begin like this; none when no server runs.
---@param lead string
---@return string[]
local function model_names(lead)
  local client = server.clients()[1]
  local answer = client and client:request_sync('models/list', { query = lead }, COMPLETION_MS)
  return vim.tbl_map(function(each)
    return each.id
  end, answer and answer.result or {})
end

---@param lead string
---@param line string up to the cursor
---@return string[]
function M.complete(lead, line)
  local words = vim.split(line:gsub('^.-TokenSidecar%s*', ''), '%s+')
  local candidates = {}
  if #words < 2 then
    candidates = vim.tbl_keys(SUBCOMMANDS)
  elseif words[1] == 'model' and #words == 2 or words[1] == 'compare' then
    candidates = model_names(lead)
  elseif words[1] == 'fit' and #words == 3 then
    candidates = { 'start', 'middle', 'end' }
  end
  candidates = vim.tbl_filter(function(name)
    return vim.startswith(name, lead)
  end, candidates)
  table.sort(candidates)
  return vim.fn.uniq(candidates)
end

return M
