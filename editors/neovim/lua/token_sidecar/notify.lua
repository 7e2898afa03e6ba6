local M = {}

--- One short message, from anywhere (an exit callback may not draw).
---@param text string
---@param level? integer vim.log.levels, INFO by default
function M.notify(text, level)
  vim.schedule(function()
    vim.notify('token-sidecar: ' .. text, level or vim.log.levels.INFO)
  end)
end

return M
