-- A demo that needs no terminal: types text into the buffer, and prints the status line after each edit. The
-- exit code is 0 if the correct count appeared after each edit.
local WAIT_MS, POLL_MS = tonumber(vim.env.TOKEN_SIDECAR_TRY_WAIT_MS) or 30000, 20

---@return string
local function drawn_status_line()
  vim.cmd.redraw()
  local row, cells = vim.o.lines - vim.o.cmdheight, {}
  for column = 1, vim.o.columns do
    cells[column] = vim.fn.screenstring(row, column)
  end
  return vim.trim(table.concat(cells):gsub('%s%s+', '  '))
end

local function finish(code, message)
  if message then io.stderr:write(message .. '\n') end
  vim.cmd(code == 0 and 'qall!' or code .. 'cquit!')
end

---@return string
local function buffer_text() return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, true), '\n') .. '\n' end

---@return integer? tokens of the buffer's text, counted by a separate request
local function recount()
  local client = vim.lsp.get_clients({ name = 'token_sidecar' })[1]
  local answer = client and client:request_sync('tokens/count', { text = buffer_text() }, WAIT_MS)
  return answer and answer.result and answer.result.tokens
end

--- Polls until `done()` returns true, while the event loop runs. Must be called in a coroutine.
---@param done fun(): boolean
---@return boolean
local function wait(done)
  local me, deadline = coroutine.running(), vim.uv.now() + WAIT_MS
  while not done() do
    if vim.uv.now() > deadline then return false end
    vim.defer_fn(function() coroutine.resume(me) end, POLL_MS)
    coroutine.yield()
  end
  return true
end

local EDITS = {
  { 'open the file', '' },
  { 'type a line', 'GoHello, sidecar: how many tokens is this?<Esc>' },
  { 'type Chinese and emoji', 'o你好，世界 🦜🦜 — naïve café<Esc>' },
  { 'paste it 500 times', 'yy500p' },
  { 'undo', '<Cmd>silent undo<CR>' },
  { 'delete a word', 'gg0wdw' },
}

---@return integer? tokens shown, once they are exact
local function shown()
  local status = vim.b.token_sidecar_status_dict
  local document = type(status) == 'table' and status.document
  return type(document) == 'table' and document.method == 'exact' and document.tokens or nil
end

---@param name string
---@param keys string
---@return string? problem
local function try(name, keys)
  local before = vim.b.changedtick
  vim.api.nvim_input(keys)
  local edited = wait(
    function() return keys == '' or (vim.b.changedtick > before and vim.fn.mode() == 'n') end
  )
  if not (edited and wait(shown)) then
    return ('no exact count within %d s after: %s'):format(WAIT_MS / 1000, name)
  end
  local expected = recount()
  local right = wait(function() return shown() == expected end)
  io.stdout:write(('%-24s | %s |\n'):format(name, drawn_status_line()))
  if not right then return ('shown: %s, recounted: %s'):format(shown(), expected) end
end

local function run()
  for _, edit in ipairs(EDITS) do
    local problem = try(unpack(edit))
    if problem then return finish(1, problem) end
  end
  finish(vim.v.errmsg == '' and 0 or 1, vim.v.errmsg ~= '' and vim.v.errmsg or nil)
end

coroutine.wrap(function()
  local ok, problem = xpcall(run, debug.traceback)
  if not ok then finish(1, problem) end
end)()
