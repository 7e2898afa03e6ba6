-- Provider ids, by the names that chat plugins and users' settings give to providers.
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

--- Many servers are compatible with these two and carry their names, so they are recognised by address only.
local ADDRESSES = { anthropic = '://api.anthropic.com', openai = '://api.openai.com' }

--- Returns a provider's id; nil if it is unknown, in which case the model's name decides.
---@param name? string
---@param url? string where the request goes
---@return string?
function M.id(name, url)
  local id = type(name) == 'string' and IDS[name:lower()] or nil
  local address = ADDRESSES[id or '']
  if address and not tostring(url):find(address, 1, true) then return nil end
  return id
end

return M
