-- Formats numbers and short messages.
local M = {}

-- Patterns that match these characters in UTF-8: C0 (except line feed), DEL, C1, bidirectional controls, invisible
-- characters and line separators.
local CONTROLS = {
  '[%z\1-\9\11-\31\127]',
  '\194[\128-\159]',
  '\216\156',
  '\226\128[\139\142\143\168-\174]',
  '\226\129[\160-\175]',
  '\239\187\191',
}

--- Escapes the control characters in untrusted text.
---@return string
function M.plain(text)
  for _, pattern in ipairs(CONTROLS) do
    text = text:gsub(pattern, function(one)
      return ('\\u%04x'):format(#one == 1 and one:byte() or vim.fn.char2nr(one, true))
    end)
  end
  return text
end

local PREFIX = 'token-sidecar: '

--- Cuts off the end of text that is wider than the given number of columns.
---@return string
function M.truncate(text, columns)
  if vim.fn.strdisplaywidth(text) <= columns then return text end
  return vim.fn.printf(('%%.%dS…'):format(columns - 1), text)
end

--- Shortens text to fit on one line of Neovim's message area. Cuts it at the end of a sentence if possible.
---@return string
function M.on_a_line(text)
  local room = vim.v.echospace - #PREFIX
  local part = M.truncate(text, room)
  return part == text and text or part:match('^.*%.%f[ ]') or part
end

--- Schedules a message instead of showing it at once. Callbacks that must not redraw can therefore call this function.
---@param level? integer vim.log.levels, INFO by default
function M.notify(text, level)
  vim.schedule(function() vim.notify(PREFIX .. M.plain(text), level or vim.log.levels.INFO) end)
end

---@return string `1,234,567`
function M.integer(number)
  return (('%d'):format(number):reverse():gsub('(%d%d%d)', '%1,'):reverse():gsub('^(-?),', '%1'))
end

---@return string `1,234`, or `~1,234` if it is not exact
function M.tokens(tokens, method)
  return ((method == 'estimate' or method == 'calibrated') and '~' or '') .. M.integer(tokens)
end

---@return string `812`, `12k`, `~1.2M`
function M.short(tokens, method)
  local mark = (method == 'estimate' or method == 'calibrated') and '~' or ''
  for _, unit in ipairs({ { 1e6, 'M' }, { 1e3, 'k' } }) do
    if tokens >= unit[1] then
      local text = ('%.1f'):format(tokens / unit[1])
      return mark .. (tokens >= 10 * unit[1] and ('%.0f'):format(tokens / unit[1]) or text) .. unit[2]
    end
  end
  return mark .. tokens
end

---@return string `1 token`, `~1,234 tokens`
function M.tokens_text(tokens, method)
  return M.tokens(tokens, method) .. (tokens == 1 and ' token' or ' tokens')
end

---@param count token_sidecar.Count
---@return string `1,234 tokens (exact, gpt-5)` or `~1,234 tokens (estimate ±9.2 %, claude-opus-4-1)`
function M.count(count)
  local percent = count.errorPercent or 0
  local band = percent > 0 and (percent >= 10 and ' ±%.0f %%' or ' ±%.1f %%'):format(percent) or ''
  return ('%s (%s%s, %s)'):format(M.tokens_text(count.tokens, count.method), count.method, band, count.model)
end

return M
