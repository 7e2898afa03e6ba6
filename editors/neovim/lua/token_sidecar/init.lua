-- Functions for status lines. They only read values that the server has already sent.
local M = {}

local PARTS = { tokens = 'document', context = 'context', cost = 'cost', cache = 'cache' }
local ORDER = { 'tokens', 'context', 'cost', 'cache' }
local WIDE = 100 -- in editors with fewer columns, the status text is shorter

--- Returns one part of a buffer's status, or nil if that part is unknown.
local function status_part(name, buf)
  local status = vim.b[buf or 0].token_sidecar_status_dict
  local part = status and status.text ~= '' and status[PARTS[name]]
  return type(part) == 'table' and part or nil
end

--- Returns a buffer's status text.
---@param buf? integer default: the current buffer
---@return string text such as `12,345 tokens`, or `` before the first count
function M.statusline(buf) return vim.b[buf or 0].token_sidecar_status or '' end

--- Returns one part of the status: the document's tokens, the context, the cost or the cache. In editors with fewer than
--- 100 columns, the text is short: `12k`, `45 %`, `$1.92`, `cold: next input $4.10`.
---@param name 'tokens'|'context'|'cost'|'cache'
---@param buf? integer default: the current buffer
---@return string text or `` if it is unknown
function M.part(name, buf)
  local part, status = status_part(name, buf), vim.b[buf or 0].token_sidecar_status_dict
  if not part then
    local is_unknown = name == 'tokens' and status and status.text ~= '' and type(status.uri) == 'string'
    return is_unknown and '?' or ''
  end
  if vim.o.columns >= WIDE then return part.text end
  if name == 'tokens' then return require('token_sidecar.format').short(part.tokens, part.method) end
  return (part.text:gsub('^ctx ', ''):gsub(' today$', ''):gsub(' instead of .*$', ''))
end

--- Returns the highlight group for the severity of a part of the status.
---@param name 'tokens'|'context'|'cost'|'cache'
---@param buf? integer default: the current buffer
---@return string group such as `TokenSidecarWarning`
function M.highlight(name, buf)
  local part = status_part(name, buf)
  return 'TokenSidecar' .. (part and part.severity or 'ok'):gsub('^%l', string.upper)
end

--- Returns the status as a statusline or winbar item for `%{%…%}`. Parts that are near or over a limit are colored.
---@param buf? integer default: the current buffer
---@return string item `12,345 tokens · %#TokenSidecarWarning#ctx 85 %%%*`, or `` before the first count
function M.winbar(buf)
  local items = {}
  for _, name in ipairs(ORDER) do
    local text, group = M.part(name, buf):gsub('%%', '%%%%'), M.highlight(name, buf)
    local item = group == 'TokenSidecarOk' and text or ('%%#%s#%s%%*'):format(group, text)
    if text ~= '' then table.insert(items, item) end
  end
  return table.concat(items, ' · ')
end

return M
