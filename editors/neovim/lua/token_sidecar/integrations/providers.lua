-- Maps the provider names in chat plugins and users' settings to provider ids.
local M = {}

local IDS = {
  azure_openai = 'azure',
  bedrock = 'aws',
  claude = 'anthropic',
  copilot = 'github-copilot',
  gemini = 'google',
  gemini_interactions = 'google',
  github_models = 'github-models',
  githubmodels = 'github-models',
  glm = 'zhipuai',
  kimi = 'moonshotai',
  moonshot = 'moonshotai',
  openai_responses = 'openai',
  vertex = 'google',
  vertex_claude = 'google',
  xai = 'x-ai',
}
-- stylua: ignore
for _, id in ipairs({
  'anthropic', 'azure', 'cerebras', 'cohere', 'deepseek', 'fireworks', 'google', 'groq', 'huggingface',
  'mistral', 'novita', 'openai', 'openrouter', 'perplexity', 'together',
  'koboldcpp', 'llamacpp', 'lmstudio', 'localai', 'ollama', 'sglang', 'tgi', 'vllm',
}) do
  IDS[id] = id
end

--- Only the address identifies these two providers, because many compatible servers use their names.
local ADDRESSES = { anthropic = '://api.anthropic.com', openai = '://api.openai.com' }

--- Returns a provider's id, or nil if it is unknown. In that case, the server uses the model's name instead.
---@param name? string
---@param url? string the URL of the request
---@return string?
function M.id(name, url)
  local id = type(name) == 'string' and IDS[name:lower()] or nil
  local address = ADDRESSES[id or '']
  if address and not tostring(url):find(address, 1, true) then return nil end
  return id
end

return M
