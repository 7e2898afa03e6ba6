-- The subcommands of :TokenSidecar for conversations and endpoints.
local M = {}

local format = require('token_sidecar.format')
local notify = format.notify
local report = require('token_sidecar.report')

local NO_ENDPOINT = 'no endpoint is configured: `token-sidecar config init --user` creates a sample configuration'
local LABEL_COLUMNS, NUMBER_COLUMNS = 32, 8
local FIRST_SESSIONS = 100

---@alias token_sidecar.Ask fun(method: string, params: table, done: fun(result: any, client: vim.lsp.Client))

--- Truncates or pads text to the given number of columns.
local function to_columns(text, columns)
  text = format.truncate(text, columns)
  return text .. (' '):rep(columns - vim.fn.strdisplaywidth(text))
end

--- Lists the workspace's sessions in the user's picker. The status shows the chosen session until it ends.
---@param ask token_sidecar.Ask
---@param limit? integer the number of sessions to list, or nil for all
local function choose_session(ask, limit)
  ask('context/sessions', { all = true, limit = limit }, function(rows)
    if #rows == 0 then
      return notify('no sessions yet: they appear when a coding agent works in this folder or a chat plugin is used', vim.log.levels.WARN)
    end
    local columns, details = 1, 0
    for _, row in ipairs(rows) do
      columns = math.min(LABEL_COLUMNS, math.max(columns, vim.fn.strdisplaywidth(row.label)))
      details = math.max(details, vim.fn.strdisplaywidth(row.detail))
    end
    columns = math.max(12, math.min(columns, vim.o.columns - details - NUMBER_COLUMNS))
    local others = #rows > 0 and rows[#rows].others or 0
    local function line(row)
      if row == false then return '  Newest session (automatic)' end
      if row == others then return ('  Show %s more sessions'):format(format.integer(others)) end
      return ('%s %s  %s'):format(row.shown and '●' or ' ', to_columns(row.label, columns), row.detail)
    end
    local options = { prompt = 'Show in the status:', format_item = line, kind = 'token_sidecar_session' }
    local items = vim.list_extend({ false }, rows)
    if others > 0 then table.insert(items, others) end
    vim.ui.select(items, options, function(row)
      if row == nil then return end
      if row == others then return choose_session(ask) end
      ask('context/select', { session = row and row.id or vim.NIL }, function()
        notify(row and ('showing %s until it ends'):format(row.label) or 'showing the newest session')
      end)
    end)
  end)
end

---@param ask token_sidecar.Ask
function M.sessions(ask)
  choose_session(ask, FIRST_SESSIONS)
end

--- Shows a plan for pruning the conversation, and how many cached tokens would be lost. Applies the plan if the user
--- agrees.
---@param ask token_sidecar.Ask
function M.fit(ask)
  ask('context/fit', {}, function(plan)
    report.open('Fit the context', plan.text)
    if #plan.removed == 0 then return end
    vim.schedule(function()
      vim.cmd.redraw()
      vim.ui.select({ 'Fit the context', 'Cancel' }, { prompt = 'Apply this plan?' }, function(_, choice)
        if choice ~= 1 then return end
        local params = { planId = plan.planId, apply = true }
        ask('context/fit', params, function(done) notify('fitted: ' .. vim.split(done.text, '\n')[1]) end)
      end)
    end)
  end)
end

---@param ask token_sidecar.Ask
function M.undo(ask)
  ask('context/undo', {}, function(usage) notify(usage.text) end)
end

--- Probes all configured endpoints again.
---@param ask token_sidecar.Ask
function M.probe(ask)
  ask('capabilities/probe', {}, function(capabilities)
    if #capabilities == 0 then
      return notify(NO_ENDPOINT, vim.log.levels.WARN)
    end
    local lines = {}
    for _, capability in ipairs(capabilities) do
      local window = capability.limit and format.integer(capability.limit) or 'unknown'
      local summary = ('text %s, chat %s, window %s'):format(capability.text, capability.chat, window)
      local line = ('%s %s: %s'):format(capability.endpoint, capability.model, summary)
      table.insert(lines, format.plain(line))
      if capability.reason then table.insert(lines, '  ' .. format.plain(capability.reason)) end
    end
    report.open('Endpoints', table.concat(lines, '\n'))
  end)
end

return M
