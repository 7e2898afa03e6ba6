-- A folder's token map, in a floating window with folds.
local M = {}

local format = require('token_sidecar.format')
local BAR_CELLS, MOST_LINES, DEPTH = 12, 2000, '12'
local EIGHTHS = { '▏', '▎', '▍', '▌', '▋', '▊', '▉' }

local function bar(share)
  local eighths = math.max(1, math.floor(share * BAR_CELLS * 8 + 0.5))
  local text = ('█'):rep(math.floor(eighths / 8)) .. (EIGHTHS[eighths % 8] or '')
  return text .. (' '):rep(BAR_CELLS - vim.fn.strdisplaywidth(text))
end

--- Adds lines for entries and their children.
local function add_lines(found, entries, level, into)
  for _, entry in ipairs(entries) do
    if #into.lines >= MOST_LINES then return end
    local name = entry.path:gsub('/$', ''):match('[^/]*$') .. (entry.path:sub(-1) == '/' and '/' or '')
    local tokens = (found.estimated and '~' or '') .. format.integer(entry.tokens)
    local indent = ('  '):rep(level)
    table.insert(into.lines, ('%12s  %s  %s%s'):format(tokens, bar(entry.tokens / math.max(1, found.tokens)), indent, format.plain(name)))
    table.insert(into.levels, #entry.children > 0 and '>' .. level + 1 or level)
    into.paths[#into.lines] = #entry.children == 0 and entry.path or nil
    add_lines(found, entry.children, level + 1, into)
  end
end

--- Returns a line's fold level, for 'foldexpr'.
function M.level(line) return (vim.b.token_sidecar_map_levels or {})[line] or 0 end

--- Returns a closed fold's text, with the number of hidden lines, for 'foldtext'.
function M.fold_text()
  local hidden = vim.v.foldend - vim.v.foldstart
  return ('%s  (%d more)'):format(vim.fn.getline(vim.v.foldstart), hidden)
end

--- Returns a function that says whether the user has neither typed nor moved the cursor since now.
local function watch_cursor()
  local function where()
    return { vim.api.nvim_get_current_win(), vim.api.nvim_get_current_buf(), vim.fn.getcurpos(), vim.b.changedtick }
  end
  local before = where()
  return function() return vim.fn.mode() == 'n' and vim.deep_equal(where(), before) end
end

--- Shows a map.
---@param folder string
---@param found table the map
---@param stays boolean whether the cursor stays in its window
local function show(folder, found, stays)
  local files = found.files == 1 and '1 file' or format.integer(found.files) .. ' files'
  local tokens = (found.estimated and '~' or '') .. format.integer(found.tokens)
  local head = ('%s tokens in %s for %s'):format(tokens, files, format.plain(found.model))
  local into = { lines = { head }, levels = { 0 }, paths = {} }
  add_lines(found, found.entries, 0, into)
  if #found.promptFiles > 0 then
    vim.list_extend(into.lines, { '', 'Sent with every agent request' })
    vim.list_extend(into.levels, { 0, 0 })
  end
  for _, file in ipairs(found.promptFiles) do
    local name, agents = format.plain(file.path), table.concat(vim.list_slice(file.agents, 1, 3), ', ')
    if #file.agents > 3 then agents = ('%s and %d more'):format(agents, #file.agents - 3) end
    local size = (file.estimated and '~' or '') .. format.integer(file.tokens)
    table.insert(into.lines, ('%12s  %s  %s'):format(size, name, agents))
    table.insert(into.levels, 0)
    into.paths[#into.lines] = file.path
  end
  local title = 'Tokens: ' .. vim.fn.fnamemodify(folder, ':~')
  local buf, window = require('token_sidecar.report').open(title, table.concat(into.lines, '\n'), stays)
  vim.b[buf].token_sidecar_map_levels = into.levels
  local at_first = vim.iter(into.levels):filter(function(level) return level == 0 or level == 1 or level == '>1' or level == '>2' end)
  local fits = #at_first:totable() <= vim.api.nvim_win_get_height(window)
  vim.api.nvim_win_call(window, function()
    vim.wo.foldmethod, vim.wo.foldexpr = 'expr', "v:lua.require'token_sidecar.map'.level(v:lnum)"
    vim.wo.foldtext = "v:lua.require'token_sidecar.map'.fold_text()"
    vim.wo.foldlevel, vim.wo.foldenable, vim.wo.cursorline = fits and 1 or 0, true, true
    vim.opt_local.fillchars:append('fold: ')
  end)
  vim.keymap.set('n', '<CR>', function()
    local path = into.paths[vim.fn.line('.')]
    if not path then return vim.fn.foldlevel('.') > 0 and vim.cmd.normal({ 'za', bang = true }) end
    vim.cmd.close()
    vim.cmd.edit(vim.fn.fnameescape(vim.fs.joinpath(folder, path)))
  end, { buffer = buf, nowait = true, silent = true })
  vim.keymap.set('n', '<Tab>', 'za', { buffer = buf, nowait = true, silent = true })
end

--- Runs the server's program to count a folder, and shows the token map. This can take seconds, so
--- the map does not take the cursor from a user who has gone on working.
---@param folder string
function M.open(folder)
  local server = require('token_sidecar.server')
  local argv = server.command()
  if not argv then return format.notify('no server found. To install it: ' .. server.INSTALL, vim.log.levels.WARN) end
  folder = vim.fs.abspath(folder)
  local command = vim.list_extend(vim.list_slice(argv, 1, #argv - 1), { 'map', folder, '--json', '--depth', DEPTH })
  local model = server.model_of(folder)
  if model then vim.list_extend(command, { '--model', model }) end
  format.notify(('counting the tokens in %s …'):format(vim.fn.fnamemodify(folder, ':~')))
  local is_waiting = watch_cursor()
  vim.system(command, { text = true, cwd = server.START_IN }, function(done)
    vim.schedule(function()
      local ok, found = pcall(vim.json.decode, done.stdout, { luanil = { object = true, array = true } })
      if not ok or type(found) ~= 'table' then
        local reason = vim.trim(done.stderr or ''):match('[^\n]*$')
        return format.notify('the map cannot be shown: ' .. reason, vim.log.levels.ERROR)
      end
      show(folder, found, not is_waiting())
    end)
  end)
end

return M
