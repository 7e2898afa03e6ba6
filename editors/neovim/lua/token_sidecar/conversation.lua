-- What :TokenSidecar does about conversations and endpoints.
local M = {}

local format = require('token_sidecar.format')
local notify = format.notify
local report = require('token_sidecar.report')

local NO_ENDPOINT = 'no endpoint is declared: `token-sidecar config init --user` writes a sample'
local AUTOMATIC = '   automatic: the newest session'

---@alias token_sidecar.Ask fun(method: string, params: table, done: fun(result: any))

--- The sessions of the workspace: `<CR>` lets the status show the one under the cursor, the first line
--- the newest again; the list comes again with the choice in it.
---@param ask token_sidecar.Ask of the buffer's workspace
function M.sessions(ask)
  ask('context/sessions', { all = true }, function(rows)
    if #rows == 0 then
      return notify('no session is known: a chat plugin or a coding agent makes one', vim.log.levels.WARN)
    end
    local lines = vim.tbl_map(function(row) return row.text end, rows)
    table.insert(lines, 1, AUTOMATIC)
    report.open('Sessions: <CR> shows one', table.concat(lines, '\n'), function(line)
      local chosen = line > 1 and rows[line - 1].id or vim.NIL
      ask('context/select', { session = chosen }, function() M.sessions(ask) end)
    end)
  end)
end

--- Shows what would be taken out of the conversation and what that costs in cache; asks before it is.
---@param ask token_sidecar.Ask
function M.fit(ask)
  ask('context/fit', {}, function(plan)
    report.open('Fit the context', plan.text)
    if #plan.removed == 0 then return end
    vim.schedule(function()
      vim.cmd.redraw()
      vim.ui.select({ 'Fit the context', 'Leave it' }, { prompt = 'Apply this plan?' }, function(_, choice)
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

--- Asks each declared endpoint again what it can count.
---@param ask token_sidecar.Ask
function M.probe(ask)
  ask('capabilities/probe', {}, function(found)
    if #found == 0 then
      return notify(NO_ENDPOINT, vim.log.levels.WARN)
    end
    local lines = {}
    for _, each in ipairs(found) do
      local window = each.limit and format.integer(each.limit) or 'not known'
      local able = ('text %s, chat %s, window %s'):format(each.text, each.chat, window)
      local line = ('%s %s: %s'):format(each.endpoint, each.model, able)
      table.insert(lines, format.plain(line))
      if each.reason then table.insert(lines, '  ' .. format.plain(each.reason)) end
    end
    report.open('Endpoints', table.concat(lines, '\n'))
  end)
end

return M
