-- Starts and stops the server, and sends requests to it. As in vim.lsp.start(), each project root has one process.
local notify = require('token_sidecar.format').notify
local M = {}

local NAME = 'token_sidecar'
local HOME, WINDOWS = assert(vim.uv.os_homedir()), vim.fn.has('win32') == 1
M.START_IN = vim.fn.isdirectory(HOME) == 1 and HOME or '/' -- in containers, users may not have a home folder
-- The program is not on PyPI yet, so it is installed from the clone that contains this file.
M.INSTALL = 'pipx install ' .. vim.fn.fnamemodify(debug.getinfo(1, 'S').source:sub(2), ':p:h:h:h:h:h:~')
local MAX_RESTARTS, WITHIN_SECONDS, PATIENCE_MS = 3, 180, 3000

local waiting = {} ---@type {buf?: integer, run: fun(client: vim.lsp.Client)}[] requests that wait for a server to start
local chosen = {} ---@type table<string, string> models that the user chose, by root
local crashes = {} ---@type table<string, number[]> times of unexpected exits in seconds, by root
local warned_missing, enabled_once, module_found = false, false, false

---@param buf? integer
---@return vim.lsp.Client[] clients that are running or starting, but not stopping
function M.clients(buf)
  return vim.tbl_filter(
    function(client) return not (client:is_stopped() or client.rpc.token_sidecar_asked_to_end) end,
    vim.lsp.get_clients({ name = NAME, bufnr = buf, _uninitialized = true })
  )
end

local function current_root() return vim.fs.root(vim.fn.getcwd(), vim.lsp.config[NAME].root_markers or {}) end

--- Returns the client for a buffer. Chats and scratch buffers have no client of their own, so they use the client of the
--- current folder's project or, failing that, of any open project.
local function client_of(buf)
  local root = current_root()
  local here = vim.tbl_filter(function(client) return client.root_dir == root end, M.clients())
  return buf and M.clients(buf)[1] or here[1] or M.clients()[1]
end

--- Returns the repositories that contain the current file or folder. Programs in these repositories are never run,
--- because the authors of a repository are not trusted. A repository that contains the home folder is trusted.
local function repositories()
  local found = { vim.fn.getcwd() }
  for _, from in ipairs({ vim.fn.getcwd(), vim.fs.dirname(vim.api.nvim_buf_get_name(0)) }) do
    local marks = { upward = true, path = from, limit = math.huge }
    vim.list_extend(found, vim.tbl_map(vim.fs.dirname, vim.fs.find(vim.lsp.config[NAME].root_markers or {}, marks)))
  end
  found = vim.tbl_map(function(folder) return vim.uv.fs_realpath(folder) or folder end, found)
  return vim.tbl_filter(function(folder) return not vim.fs.relpath(folder, HOME) end, found)
end

--- Returns the absolute path of a program on $PATH. Relative and empty entries are ignored, because they refer to the
--- current folder.
local function on_path(name)
  local file, separator = WINDOWS and name .. '.exe' or name, WINDOWS and ';' or ':'
  local own = repositories()
  local function inside(path)
    return vim.iter(own):any(function(folder) return vim.fs.relpath(folder, path) ~= nil end)
  end
  for _, folder in ipairs(vim.split(vim.env.PATH or '', separator)) do
    local path = vim.fs.joinpath(vim.uv.fs_realpath(folder) or folder, file)
    local theirs = inside(path) or inside(vim.uv.fs_realpath(path) or path)
    if vim.fn.isabsolutepath(folder) == 1 and vim.fn.executable(path) == 1 and not theirs then return path end
  end
end

local function resolved(name, ...)
  local path = name:find('[/\\]') and vim.fs.abspath(name) or on_path(name)
  return path and vim.fn.executable(path) == 1 and { path, ... } or nil
end

--- Returns the command that starts the server. This is vim.g.token_sidecar_cmd or $TOKEN_SIDECAR_CMD if one of them is
--- set. Otherwise, it is the console script or, if there is none, the Python module.
---@return string[]? argv with the absolute path of an existing program
function M.command()
  local set = vim.g.token_sidecar_cmd or vim.env.TOKEN_SIDECAR_CMD or {}
  if type(set) == 'string' then
    set = vim.fn.executable(set) == 1 and { set } or vim.split(set, '%s+', { trimempty = true })
  end
  if #set > 0 then return resolved(set[1], unpack(#set == 1 and { 'serve' } or set, #set == 1 and 1 or 2)) end
  -- -P prevents Python from running a folder named `sidecar` in the workspace.
  local module = { '-P', '-m', 'sidecar', 'serve' }
  return resolved('token-sidecar', 'serve') or resolved('python3', unpack(module)) or resolved('python', unpack(module))
end

local function missing()
  waiting = {}
  if not warned_missing then
    warned_missing = true
    notify('no server found. To install it: ' .. M.INSTALL, vim.log.levels.WARN)
  end
end

--- Calls `found` if the server is installed. If not, shows how to install it, but only the first time.
local function when_installed(found)
  local argv = M.command()
  if not argv then
    return missing()
  elseif argv[3] ~= '-m' or module_found then
    return found()
  end
  local code = 'import sys, importlib.util as u; sys.exit(u.find_spec("sidecar.server") is None)'
  vim.system({ argv[1], '-P', '-c', code }, { cwd = M.START_IN }, function(done)
    module_found = done.code == 0
    vim.schedule(module_found and found or missing)
  end)
end

local function given_up(root) return #(crashes[root or ''] or {}) > MAX_RESTARTS end

--- Finds a buffer's project root. This is the `root_dir` function of the LSP configuration. `on_dir` is called only if
--- a server is installed and the buffer has a name, because a nameless buffer has no URI.
---@param on_dir fun(root?: string)
function M.root_dir(buf, on_dir)
  when_installed(function()
    if not vim.api.nvim_buf_is_valid(buf) or vim.api.nvim_buf_get_name(buf) == '' then return end
    local root = vim.fs.root(buf, vim.lsp.config[NAME].root_markers or {})
    if not given_up(root) then on_dir(root) end
  end)
end

--- Starts the server in the user's home folder, so that no program in the current folder can run. Every exit is reported
--- to Neovim as normal, because Neovim's own message in addition to ours would cause a hit-enter prompt.
function M.spawn(dispatchers)
  local function on_exit() dispatchers.on_exit(0, 0) end
  local argv, level = assert(M.command(), 'no server found'), vim.g.token_sidecar_log_level
  argv = level and vim.list_extend(vim.list_slice(argv), { '--log-level', level }) or argv
  local rpc = vim.lsp.rpc.start(argv, setmetatable({ on_exit = on_exit }, { __index = dispatchers }), { cwd = M.START_IN })
  local request, terminate = rpc.request, rpc.terminate
  rpc.token_sidecar_asked_to_end = false
  rpc.request = function(method, ...)
    rpc.token_sidecar_asked_to_end = rpc.token_sidecar_asked_to_end or method == 'shutdown'
    return request(method, ...)
  end
  rpc.terminate = function()
    rpc.token_sidecar_asked_to_end = true
    terminate()
  end
  return rpc
end

--- Remembers the model that the user chose for a project, so that a restarted server uses it. Nil forgets it.
function M.remember(client, model) chosen[client.root_dir or ''] = model end

--- Returns the model that texts of a folder's project are counted for: the user's choice, or what the server reported.
---@param folder string
---@return string?
function M.model_of(folder)
  folder = vim.fs.normalize(folder)
  local reported = require('token_sidecar.status').model_of
  local model = chosen[folder] or reported(folder)
  for parent in vim.fs.parents(folder) do
    model = model or chosen[parent] or reported(parent)
  end
  return model
end

local function run_waiting(client)
  local requests = waiting
  waiting = {}
  for _, request in ipairs(requests) do
    if client_of(request.buf) == client then request.run(client) else table.insert(waiting, request) end
  end
end

function M.on_init(client)
  local model = chosen[client.root_dir or '']
  if not model then return run_waiting(client) end
  client:request('context/set', { model = model }, function() run_waiting(client) end)
end

--- Starts the server for a buffer, unless one is already attached or the user has disabled it.
---@param buf integer
function M.attach(buf)
  if vim.g.token_sidecar_enabled ~= false and not enabled_once then
    enabled_once = true
    vim.lsp.enable(NAME)
  end
  local is_enabled = vim.lsp.is_enabled or function(name) return vim.lsp._enabled_configs[name] end
  if is_enabled(NAME) and #M.clients(buf) == 0 then
    local filetypes = vim.lsp.config[NAME].filetypes
    if not filetypes or vim.list_contains(filetypes, vim.bo[buf].filetype) then M.start(buf, true) end
  end
end

--- Closes and reopens a document on the server after the buffer's name or line endings have changed, because Neovim
--- does not report these changes. Reattaches at once, because Neovim stops listening to a buffer that is edited while it
--- is detached.
function M.reopen(buf)
  local old, uri = (vim.b[buf].token_sidecar_status_dict or {}).uri, vim.uri_from_bufnr(buf)
  for _, client in ipairs(M.clients(buf)) do
    if old and old ~= uri then client:notify('textDocument/didClose', { textDocument = { uri = old } }) end
    vim.lsp.buf_detach_client(buf, client.id)
    vim.lsp.buf_attach_client(buf, client.id)
  end
end

--- Starts a client with the configuration from vim.lsp.config, as vim.lsp.enable() does.
---@param attach boolean false if a command was run in a buffer that is not a file
function M.start(buf, attach)
  local config = vim.deepcopy(vim.lsp.config[NAME])
  local function start(root)
    if vim.api.nvim_buf_is_loaded(buf) and not given_up(root) then
      config.root_dir = root
      vim.lsp.start(config, { bufnr = buf, reuse_client = config.reuse_client, attach = attach })
    end
  end
  if not attach then
    when_installed(function() start(current_root()) end)
  elseif type(config.root_dir) == 'function' then
    config.root_dir(buf, start)
  else
    start(config.root_dir or vim.fs.root(buf, config.root_markers or {}))
  end
end

local function start_all(buffers) vim.tbl_map(function(buf) M.start(buf, true) end, buffers) end

--- Restarts the server after an unexpected exit, at most three times in three minutes.
local function recover(root, buffers)
  local now = vim.uv.hrtime() / 1e9
  crashes[root] = vim.tbl_filter(function(at) return now - at < WITHIN_SECONDS end, crashes[root] or {})
  table.insert(crashes[root], now)
  local nth, text = #crashes[root], 'the server exited unexpectedly; restarting (%d of %d)'
  local final = nth > MAX_RESTARTS and 'the server exits repeatedly; try :TokenSidecar restart'
  notify(final or text:format(nth, MAX_RESTARTS), vim.log.levels.WARN)
  if final then waiting = {} else start_all(buffers) end
end

function M.on_exit(code, signal, client_id)
  local client = vim.lsp.get_client_by_id(client_id)
  if not client then return end
  local buffers, expected = vim.tbl_keys(client.attached_buffers), client.rpc.token_sidecar_asked_to_end
  if expected == nil then -- started by the user's own `cmd`, not by spawn()
    expected = code == 0 and (signal == 0 or signal == 15)
  end
  vim.schedule(function()
    if vim.v.exiting ~= vim.NIL then return end
    local left = vim.tbl_filter(function(buf) return #M.clients(buf) == 0 end, buffers)
    require('token_sidecar.status').clear(left, client_id)
    if not expected then recover(client.root_dir or '', buffers) end
  end)
end

--- Calls `run` with an initialized client. If there is no client, one is started.
---@param buf? integer nil for the current folder's project
---@param run fun(client: vim.lsp.Client)
function M.with_client(buf, run)
  local client = client_of(buf)
  if client and client.initialized then return run(client) end
  if not (client or buf) and (warned_missing or given_up(current_root())) then return end -- not a user command
  table.insert(waiting, { buf = buf, run = run })
  if not client then
    local is_file = buf and vim.bo[buf].buftype == '' and vim.api.nvim_buf_get_name(buf) ~= ''
    M.start(buf or 0, is_file or false)
  end
end

--- Lets servers start again after too many crashes. Called whenever the user runs a command.
function M.revive()
  warned_missing = false
  for root in pairs(crashes) do
    crashes[root] = not given_up(root) and crashes[root] or nil
  end
end

--- Sends a request. If the request fails, a single message shows the error.
---@param params table
---@param done fun(result: any, client: vim.lsp.Client)
function M.request(buf, method, params, done)
  M.with_client(buf, function(client)
    client:request(method, params, function(err, result)
      if err then return notify(err.message, vim.log.levels.ERROR) end
      done(result, client)
    end, buf)
  end)
end

--- Restarts all servers. The new servers are started before the old ones have exited, because Neovim would stop
--- listening to a buffer that is edited while it has no client. Servers that hang are killed.
function M.restart()
  crashes, warned_missing = {}, false
  local buffers = {}
  for _, client in ipairs(M.clients()) do
    vim.list_extend(buffers, vim.tbl_keys(client.attached_buffers))
    client:stop()
    vim.defer_fn(client.rpc.terminate, PATIENCE_MS)
  end
  if #buffers == 0 then buffers = { vim.api.nvim_get_current_buf() } end
  start_all(buffers)
  M.with_client(buffers[1], function() notify('the server was restarted') end)
end

return M
