-- :TokenSidecar's subcommands for conversations and endpoints.
local M = {}

local format = require('token_sidecar.format')
local notify = format.notify
local report = require('token_sidecar.report')

local NO_ENDPOINT = 'no endpoint is configured: `token-sidecar config init --user` creates a sample configuration'
local AUTOMATIC = '   automatic: newest session'

---@alias token_sidecar.Ask fun(method: string, params: table, done: fun(result: any, client: vim.lsp.Client))

--- Lists the sessions of the workspace. `<CR>` shows the session under the cursor in the status (the newest on the
--- first line) and opens the list again.
---@param ask token_sidecar.Ask
function M.sessions(ask)
  ask('context/sessions', { all = true }, function(rows)
    if #rows == 0 then
      return notify('no sessions yet: they appear when a coding agent works in this folder or a chat plugin is used', vim.log.levels.WARN)
    end
    local lines = vim.tbl_map(function(row) return row.text end, rows)
    table.insert(lines, 1, AUTOMATIC)
    report.open('Sessions: <CR> shows one', table.concat(lines, '\n'), function(line)
      local chosen = line > 1 and rows[line - 1].id or vim.NIL
      ask('context/select', { session = chosen }, function() M.sessions(ask) end)
    end)
  end)
end

--- Shows the pruning plan for the conversation and its cost in cached tokens, and asks before applying it.
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
