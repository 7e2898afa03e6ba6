-- :checkhealth token_sidecar
local M = {}

local INSTALL = {
  require('token_sidecar.server').INSTALL,
  "or name the command: vim.g.token_sidecar_cmd = { '/path/to/token-sidecar', 'serve' }",
}
local TIMEOUT_MS = 20000

--- Runs the server's command with the given arguments instead of `serve`.
---@return boolean ok
---@return string output
---@return string errors
local function run(argv, arguments, folder)
  local command = vim.list_extend(vim.list_slice(argv, 1, #argv - 1), arguments)
  local ok, done = pcall(function() return vim.system(command, { text = true, cwd = folder }):wait(TIMEOUT_MS) end)
  if not ok then return false, '', tostring(done) end
  return done.code == 0, done.stdout or '', done.stderr or ''
end

local function check_server(server, argv)
  local ok, output, errors = run(argv, { '--version' }, server.START_IN)
  local report = ok and vim.health.ok or vim.health.error
  report(('%s: %s'):format(table.concat(argv, ' '), vim.trim(output .. errors)), INSTALL)
  for _, client in ipairs(server.clients()) do
    local version = vim.tbl_get(client, 'server_info', 'version') or 'starting'
    local root, buffers = client.root_dir or '(no root)', vim.tbl_count(client.attached_buffers)
    vim.health.ok(('%s, %s, buffers: %d, positions in %s'):format(version, root, buffers, client.offset_encoding))
  end
  if #server.clients() == 0 then vim.health.info('not running: it starts when a file is shown') end
  return ok
end

local function check_configuration(found)
  local plain = require('token_sidecar.format').plain
  local configuration = found.configuration
  vim.health.start('token-sidecar: configuration')
  local state = configuration.userFileExists and '' or ' (missing; `token-sidecar config init --user` creates it)'
  vim.health.info('user file: ' .. plain(configuration.userFile) .. state)
  vim.health.info('project root: ' .. plain(configuration.root))
  for _, problem in ipairs(configuration.problems) do
    local report = vim.list_contains(configuration.warnings, problem) and vim.health.warn or vim.health.error
    report(plain(problem))
  end
  if #configuration.problems == 0 then vim.health.ok('no problems') end
  if configuration.stateProblem then
    vim.health.error('the state folder cannot be used: ' .. plain(configuration.stateProblem))
  else
    vim.health.ok('state folder: ' .. plain(configuration.stateFolder))
  end
end

local function check_model(client)
  local answer = client and client.initialized and client:request_sync('tokens/count', { text = 'one' }, TIMEOUT_MS)
  local count = answer and answer.result
  if count then
    local text = ('%s, counted by %s (%s)'):format(count.model, count.tokenizer, count.method)
    vim.health.ok('model: ' .. require('token_sidecar.format').plain(text))
  end
end

local function check_agents(found)
  vim.health.start('token-sidecar: coding agents')
  local format = require('token_sidecar.format')
  for _, agent in ipairs(found.agents) do
    local text = ('%s: %d session file(s), newest %s'):format(agent.agent, agent.stores, (agent.newestAt or '?'):sub(1, 10))
    if agent.problem then
      vim.health.warn(text .. ', ' .. format.plain(agent.problem))
    elseif (agent.skipped or 0) > 0 then
      vim.health.warn(('%s, %d broken lines'):format(text, agent.skipped))
    else
      vim.health.ok(text)
    end
  end
  if #found.agents == 0 then vim.health.info('none found; their sessions appear when they are used here') end
end

local function check_endpoints(found)
  vim.health.start('token-sidecar: endpoints')
  local plain, endpoints = require('token_sidecar.format').plain, found.endpoints
  if #endpoints.declared == 0 then
    return vim.health.info('none configured; no text leaves this machine')
  end
  for _, one in ipairs(endpoints.capabilities) do
    local report = one.reason and vim.health.warn or vim.health.ok
    local reason = one.reason and ': ' .. one.reason or ''
    report(plain(('%s %s: text %s, chat %s%s'):format(one.endpoint, one.model, one.text, one.chat, reason)))
  end
end

--- Shows the last error in the server's log.
local function check_log()
  vim.health.start('token-sidecar: last error')
  local name = vim.lsp.log.get_filename()
  local last
  for line in vim.fn.filereadable(name) == 1 and io.lines(name) or function() end do
    if line:find('token.sidecar') and line:find('^%[ERROR%]') then last = line end
  end
  if not last then return vim.health.ok('none in ' .. name) end
  -- Neovim logs the server's stderr output as a Lua string.
  local text = (last:match('"stderr"%s+"(.*)"$') or last):gsub('\\n$', ''):gsub('.*\\n', '')
  vim.health.warn(require('token_sidecar.format').plain(text:sub(1, 500)), 'The log: ' .. name)
end

function M.check()
  local server, health = require('token_sidecar.server'), vim.health
  health.start('token-sidecar')
  if vim.fn.has('nvim-0.11') == 0 then health.error('Neovim 0.11 or later is needed') end
  local argv = server.command()
  if not argv then return health.error('no server found', INSTALL) end
  if not check_server(server, argv) then return end
  check_model(server.clients()[1])
  local chats = package.loaded['token_sidecar.integrations.chats']
  for plugin, lacks in vim.spairs(chats and chats.unknown() or {}) do
    local known = require('token_sidecar.integrations.' .. plugin:lower()).KNOWN
    health.warn(('%s is not supported: %s; supported: %s'):format(plugin, lacks, known))
  end
  local client = server.clients()[1]
  local root = client and client.root_dir or vim.fn.getcwd()
  local _, output, errors = run(argv, { 'doctor', '--workspace', root, '--json' }, server.START_IN)
  local ok, found = pcall(vim.json.decode, output, { luanil = { object = true, array = true } })
  if not ok then return health.error('`token-sidecar doctor` failed: ' .. vim.trim(errors)) end
  check_configuration(found)
  check_agents(found)
  check_endpoints(found)
  check_log()
end

return M
