"""Lua code that opens each chat plugin with a local model server, types prompts and reads the
results.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from tests.e2e.neovim.harness import Editor
from tests.e2e.neovim.plugins import on_path
from tests.model_server import ModelServer, Reply

WEATHER = '{"city": "Lisbon"}'
ANSWER = "It is 21 degrees and sunny there, with a light wind from the sea."
PATIENT = "\nvim.g.token_sidecar_hold_ms = 60000"
"""A setting that holds a prompt for up to a minute while a slow server checks it."""


class ChatPlugin(msgspec.Struct, frozen=True):
    """A chat plugin under test. All fields except `name` and `usage` contain Lua code."""

    name: str
    lua: str
    """Code for init.lua that adds the plugin to the runtimepath, and defines `_G.setup(url)`."""
    open: str
    session: str
    """Return the session's id."""
    submit: str
    """Type the argument (`...`) as a prompt, and submit it."""
    typed: str
    """Return the text in the plugin's input field."""
    display: str
    """Return the token count that the plugin itself displays."""
    idle: str
    """Return whether the reply is complete."""
    fill: str
    """Add messages to the chat, as if they had been sent and received.

    Their text is the argument (`...`).
    """
    usage: str = "own chunk"

    def answer(self, body: dict[str, Any]) -> Reply:
        """Answer each prompt with a tool call, and each tool result with text."""
        last = body["messages"][-1]
        if last["role"] == "tool":
            return Reply(ANSWER, reasoning=40)
        names = [tool["function"]["name"] for tool in body.get("tools") or ()]
        if "weather" in names:
            return Reply("", (("weather", WEATHER),))
        return Reply("Fine.")

    def start(self, editor: Editor, server: ModelServer, before: str = "") -> str:
        """Set up the plugin, run `before`, open the chat, and return the session's id."""
        editor.lua("setup(...)", server.url)
        editor.lua(before)
        editor.lua(self.open)
        return str(editor.lua(self.session))


class Avante(ChatPlugin, frozen=True):
    """The plugin avante, whose model completes a task by calling one of the plugin's tools."""

    def answer(self, body: dict[str, Any]) -> Reply:
        """Answer each prompt with a tool call, and each tool result with the call that completes the
        task.
        """
        if body["messages"][-1]["role"] == "tool":
            return Reply("", (("attempt_completion", '{"result": "It is sunny."}'),), reasoning=40)
        return Reply("I look.", (("think", '{"thought": "Where is Lisbon? In Portugal."}'),))


CODECOMPANION = ChatPlugin(
    name="codecompanion",
    lua=on_path("plenary.nvim", "codecompanion.nvim")
    + """
_G.setup = function(url)
  local schema = { type = 'function', ['function'] = {
    name = 'weather', description = 'Tells the weather of a city.',
    parameters = { type = 'object', required = { 'city' }, properties = {
      city = { type = 'string', description = 'The name of the city' } } } } }
  local weather = { description = 'Weather', opts = { require_approval_before = false },
    callback = function()
      return {
        name = 'weather', schema = schema,
        cmds = { function(_, args) return { status = 'success', data = 'Sunny in ' .. args.city } end },
        output = { success = function(tool, out, meta)
          meta.tools.chat:add_tool_output(tool, tostring(out[1]))
        end },
      }
    end }
  local function adapter()
    return require('codecompanion.adapters').extend('openai_compatible', {
      env = { url = url, api_key = 'x' },
      schema = { model = { default = 'gpt-4o', choices = { ['gpt-4o'] = {} } } } })
  end
  require('codecompanion').setup({
    opts = { log_level = 'ERROR' },
    adapters = { http = { mine = adapter } },
    interactions = { chat = { adapter = 'mine', tools = { weather = weather } },
      inline = { adapter = 'mine' } } })
end""",
    open="""
      vim.cmd('CodeCompanionChat')
      _G.chat = require('codecompanion').last_chat()
      _G.header = function()
        local lines = vim.api.nvim_buf_get_lines(chat.bufnr, 0, -1, false)
        for number = #lines, 1, -1 do
          if lines[number]:find('^## Me') or lines[number]:find('^> ') then return number end
        end
      end""",
    session="return 'codecompanion:' .. chat.id",
    submit="""
      local lines = vim.split('\\nUse @{weather}. ' .. ..., '\\n')
      vim.api.nvim_buf_set_lines(chat.bufnr, header(), -1, false, lines)
      chat:submit()""",
    typed="return table.concat(vim.api.nvim_buf_get_lines(chat.bufnr, header(), -1, false), '\\n')",
    display="return chat.tokens or 0",
    idle="return chat.current_request == nil and chat.status == ''",
    fill="""
      local count, text = ...
      for number = 1, count do
        chat:add_message({ role = number % 2 == 1 and 'user' or 'llm', content = number .. ' ' .. text },
          { visible = false })
      end""",
)

COPILOTCHAT = ChatPlugin(
    name="CopilotChat",
    lua=on_path("plenary.nvim", "CopilotChat.nvim")
    + """
_G.setup = function(url)
  local copilot = require('CopilotChat.config.providers').copilot
  local mine = {
    prepare_input = copilot.prepare_input, prepare_output = copilot.prepare_output,
    get_url = function() return url .. '/v1/chat/completions' end,
    get_headers = function() return { ['X-Test'] = '1' } end,
    get_models = function()
      return vim.tbl_map(function(id)
        return { id = id, name = id, tools = true, streaming = true,
          max_input_tokens = 128000, tokenizer = 'o200k_base' }
      end, { 'gpt-4o', 'gpt-4o-mini' })
    end }
  require('CopilotChat').setup({
    model = 'gpt-4o', tools = { 'weather' }, trusted_tools = { 'weather' },
    providers = { copilot = { disabled = true }, github_models = { disabled = true }, mine = mine },
    functions = { weather = {
      description = 'Tells the weather of a city.', trusted = true,
      schema = { type = 'object', required = { 'city' }, properties = {
        city = { type = 'string', description = 'The name of the city' } } },
      resolve = function(input) return { { data = 'Sunny in ' .. input.city } } end } } })
end""",
    open="require('CopilotChat').open()",
    session="return 'copilotchat'",
    submit="""
      local plugin = require('CopilotChat')
      plugin.chat:add_message({ role = 'user', content = ... }, true)
      plugin.ask(plugin.chat:get_message('user', true).content)""",
    typed="""
      local typed = require('CopilotChat').chat:get_message('user', true)
      return typed and typed.content or ''""",
    display="return require('CopilotChat').chat.token_count or 0",
    idle="return not require('CopilotChat.client'):running()",
    fill="""
      local count, text = ...
      local chat = require('CopilotChat').chat
      for number = 1, count do
        chat:add_message({ role = number % 2 == 1 and 'user' or 'assistant', content = number .. ' ' .. text })
      end""",
    usage="last chunk",
)

AVANTE = Avante(
    name="avante",
    lua=on_path("plenary.nvim", "nui.nvim", "avante.nvim")
    + f"""
local python = '{sys.executable}'"""
    + """
local render = [[
import json, sys, jinja2
folder, name, values = json.load(sys.stdin)
env = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), trim_blocks=True, lstrip_blocks=True)
sys.stdout.write(env.get_template(name).render(**values))
]]
local folder, rendered = nil, {}
package.preload['avante_templates'] = function()
  return {
    initialize = function(cache) folder = cache end,
    render = function(name, values)
      local input = vim.json.encode({ folder, name, values })
      rendered[input] = rendered[input]
        or vim.system({ python, '-c', render }, { stdin = input, text = true }):wait().stdout
      return rendered[input]
    end }
end
package.preload['avante_tokenizers'] = function()
  return { from_pretrained = function() end, encode = function(text) return {}, #text / 4, #text end }
end
-- avante adds to a table while iterating over it. In some processes a log level is then missing, and
-- avante does not load.
package.preload['avante.utils.log'] = function()
  local path = vim.api.nvim_get_runtime_file('lua/avante/utils/log.lua', false)[1]
  local text = table.concat(vim.fn.readfile(path), string.char(10))
  return assert(loadstring((text:gsub('in pairs%(log_levels%)', 'in pairs(vim.log.levels)')), '@' .. path))()
end
package.preload['avante_repo_map'] = function() return {} end
package.preload['avante_html2md'] = function() return {} end
vim.o.columns, vim.o.lines, vim.o.laststatus = 120, 40, 3
_G.setup = function(url)
  vim.env.OPENAI_API_KEY = 'x'
  vim.g.avante_login = true
  require('avante').setup({
    provider = 'openai', mode = 'agentic', disabled_tools = { 'web_search' },
    behaviour = { auto_set_keymaps = false },
    providers = { openai = { endpoint = url .. '/v1', model = 'gpt-4o', context_window = 128000,
      extra_request_body = { max_completion_tokens = 16384 } } } })
end""",
    open="vim.cmd('AvanteAsk'); vim.wait(60000, function() return require('avante').get() ~= nil end)",
    session="""
      local sidebar = require('avante').get()
      local root = tostring(require('avante.utils').root.get({ buf = sidebar.code.bufnr }))
      return ('avante:%s:%s'):format(vim.fn.sha256(root):sub(1, 12), sidebar.chat_history.filename)""",
    submit="""
      local sidebar = require('avante').get()
      vim.api.nvim_buf_set_lines(sidebar.containers.input.bufnr, 0, -1, false, vim.split(..., '\\n'))
      sidebar:submit_input()""",
    typed="""
      local input = require('avante').get().containers.input.bufnr
      return table.concat(vim.api.nvim_buf_get_lines(input, 0, -1, false), '\\n')""",
    display="""
      local used = require('avante').get().chat_history.tokens_usage
      return used and used.prompt_tokens + used.completion_tokens or 0""",
    idle="return require('avante').get().current_state == 'succeeded'",
    fill="""
      local count, text = ...
      local Message, messages = require('avante.history').Message, {}
      for number = 1, count do
        local role = number % 2 == 1 and 'user' or 'assistant'
        table.insert(messages, Message:new(role, number .. ' ' .. text))
      end
      require('avante').get():add_history_messages(messages)""",
)

ALL = (CODECOMPANION, COPILOTCHAT, AVANTE)


SMALL_MODEL = "gpt-4o-realtime-preview"
"""A model with the tokenizer of gpt-4o, and a window of 32,000 tokens."""
SMALL = tuple(
    msgspec.structs.replace(
        plugin, lua=plugin.lua.replace("gpt-4o", SMALL_MODEL).replace("128000", "32000")
    )
    for plugin in ALL
)
"""The plugins with a window that is exceeded by `TOO_LONG`."""
TOO_LONG = "seven words that fill the window up\n" * 5_000
