-- :TokenSidecar and its subcommands.
local M = {}

local notify = require('token_sidecar.notify').notify

---@param count {tokens: integer, method: string, model: string, characters: integer, errorPercent?: number}
---@return string such as `~1,234 tokens (estimate, claude-opus-4)`
local function describe(count)
  local digits = tostring(count.tokens)
  local grouped = digits:reverse():gsub('(%d%d%d)', '%1,'):reverse():gsub('^,', '')
  local about = (count.method == 'estimate' or count.method == 'calibrated') and '~' or ''
  return ('%s%s tokens (%s, %s)'):format(about, grouped, count.method, count.model)
end

---@param opts vim.api.keyset.create_user_command.command_args
local function count(opts)
  local server, buf = require('token_sidecar.server'), vim.api.nvim_get_current_buf()
  local text = require('token_sidecar.selection').of_command(opts)
  server.with_client(buf, function(client)
    local params = { text = text }
    if not text and client.attached_buffers[buf] then
      params = { textDocument = { uri = vim.uri_from_bufnr(buf) } }
    elseif not text then
      params = { text = require('token_sidecar.selection').document(buf) }
    end
    server.request(buf, 'tokens/count', params, function(result)
      notify((text and 'selection: ' or '') .. describe(result))
    end)
  end)
end

---@type table<string, fun(opts: vim.api.keyset.create_user_command.command_args)>
local SUBCOMMANDS = {
  count = count,
  restart = function()
    require('token_sidecar.server').restart()
  end,
}

---@param opts vim.api.keyset.create_user_command.command_args
function M.run(opts)
  local name = opts.fargs[1] or 'count'
  local subcommand = SUBCOMMANDS[name]
  if not subcommand then
    local known = vim.tbl_keys(SUBCOMMANDS)
    table.sort(known)
    return notify(('no command %s: %s'):format(name, table.concat(known, ', ')), vim.log.levels.ERROR)
  end
  subcommand(opts)
end

---@param lead string
---@param line string
---@return string[]
function M.complete(lead, line)
  local words = vim.split(line, '%s+')
  if #words > 2 then
    return {}
  end
  local names = vim.tbl_filter(function(name)
    return vim.startswith(name, lead)
  end, vim.tbl_keys(SUBCOMMANDS))
  table.sort(names)
  return names
end

return M
