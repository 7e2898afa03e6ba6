"""Chat plugins, as stand-ins that have the members and events which ours reads."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.neovim.harness import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.neovim.harness import Editor

CODECOMPANION = """
local chat = {
  id = 7, bufnr = 1, callbacks = {},
  adapter = { name = 'openai', model = { name = 'gpt-4o' } },
  tool_registry = { schemas = { ['<tool>ls</tool>'] = {
    type = 'function',
    ['function'] = { name = 'ls', description = 'Lists', parameters = { type = 'object' } },
  } } },
  messages = {
    { role = 'system', content = 'You are brief.' },
    { role = 'user', content = 'What is in the folder?' },
  },
}
function chat:add_callback(name, fn)
  self.callbacks[name] = self.callbacks[name] or {}
  table.insert(self.callbacks[name], fn)
end
function chat:submit()
  for _, fn in ipairs(self.callbacks.on_before_submit or {}) do
    if fn(self) == false then return 'held' end
  end
  return 'sent'
end
package.loaded['codecompanion'] = { buf_get_chat = function(buf) return buf == 1 and chat or nil end }
_G.chat = chat
_G.fire = function(name)
  local data = { bufnr = 1, id = 7 }
  vim.api.nvim_exec_autocmds('User', { pattern = 'CodeCompanion' .. name, data = data })
end
"""


def usage(editor: Editor, session: str) -> dict[str, Any]:
    """What the server knows of a session."""
    answer = editor.lua(
        "return require('token_sidecar.server').clients()[1]:request_sync(...)",
        "context/usage", {"session": session}, 20000,
    )  # fmt: skip
    return dict(answer["result"])


def wait_turns(editor: Editor, session: str, turns: int) -> dict[str, Any]:
    """Waits until a session has this many turns; what the server knows of it."""
    wait_for(lambda: usage(editor, session).get("turns") == turns, f"{turns} turns of {session}")
    return usage(editor, session)


@pytest.fixture
def codecompanion(open_editor: Callable[..., Editor]) -> Editor:
    editor = open_editor(CODECOMPANION)
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    return editor


def test_codecompanion_is_followed(codecompanion: Editor) -> None:
    codecompanion.lua("fire('ChatSubmitted')")
    first = wait_turns(codecompanion, "codecompanion:7", 1)
    assert first["model"] == "gpt-4o"
    assert first["breakdown"]["system"] > 0
    assert first["breakdown"]["tools"] > 0
    codecompanion.lua("""
      vim.list_extend(chat.messages, {
        { role = 'llm', tools = { calls = {
          { id = 'c1', type = 'function', ['function'] = { name = 'ls', arguments = '{"path":"."}' } },
        } } },
        { role = 'tool', content = 'a.md', tools = { call_id = 'c1' } },
        { role = 'llm', content = 'One file: a.md.' },
      })
      chat.ui = { tokens = 321 }
      fire('ChatDone')""")
    after = wait_turns(codecompanion, "codecompanion:7", 4)
    assert after["tokens"] == 321
    codecompanion.lua("table.insert(chat.messages, { role = 'user', content = 'Thanks!' })")
    codecompanion.lua("fire('ChatSubmitted')")
    more = wait_turns(codecompanion, "codecompanion:7", 5)
    assert 321 < more["tokens"] < 340
    assert codecompanion.messages() == []


def test_a_chat_is_of_the_current_folder(open_editor: Callable[..., Editor]) -> None:
    """Its own buffer is of no project; where several are open, the current folder says which."""
    editor = open_editor(CODECOMPANION)
    for name in ("one", "two"):
        (editor.workspace / name / ".git").mkdir(parents=True)
        editor.edit(f"{name}/a.md", "Hello, world!\n")
        editor.wait_tokens(4)
    editor.command(f"cd {editor.workspace / 'two'}")
    editor.command("enew | set buftype=nofile")
    editor.lua("fire('ChatSubmitted')")
    shown = """
        return (vim.b[vim.fn.bufnr(...)].token_sidecar_status_dict or {}).context ~= vim.NIL"""
    wait_for(lambda: editor.lua(shown, "two/a.md"), "the chat's context")
    assert not editor.lua(shown, "one/a.md")
    # It stays with its server, wherever the user goes meanwhile.
    editor.command(f"cd {editor.workspace / 'one'}")
    editor.lua("table.insert(chat.messages, { role = 'llm', content = 'No.' }); fire('ChatDone')")
    floating = "TokenSidecar context"
    editor.command(f"cd {editor.workspace / 'two'}")

    def turns() -> bool:
        editor.command("only")
        editor.command(floating)
        editor.lua("vim.wait(200)")
        lines = editor.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, true)")
        return any("2 turns" in line for line in lines)

    wait_for(turns, "both turns in the second project")
    assert not editor.lua(shown, "one/a.md")


def test_a_chat_alone_is_followed_and_its_buffer_left_alone(
    open_editor: Callable[..., Editor],
) -> None:
    """No file was shown yet: a server is started for the folder, and for no buffer."""
    editor = open_editor(CODECOMPANION)
    editor.command(f"cd {editor.workspace}")
    editor.command("enew | set buftype=nofile | file [CodeCompanion]")
    editor.lua("fire('ChatSubmitted')")
    wait_for(editor.server_pids, "a server")
    wait_for(
        lambda: editor.lua("local c = require('token_sidecar.server').clients()[1]\n"
                           "return c ~= nil and c.initialized"),
        "its answer",
    )  # fmt: skip
    wait_turns(editor, "codecompanion:7", 1)
    attached = "return vim.tbl_count(require('token_sidecar.server').clients()[1].attached_buffers)"
    assert editor.lua(attached) == 0
    assert editor.status() == {}


def test_a_server_that_dies_while_it_is_told_is_told_again(codecompanion: Editor) -> None:
    (first,) = codecompanion.server_pids()
    os.kill(first, signal.SIGSTOP)
    codecompanion.lua("fire('ChatSubmitted')")
    os.kill(first, signal.SIGKILL)
    codecompanion.wait_message("started again (1 of 3)")
    wait_for(lambda: codecompanion.server_pids() not in ([], [first]), "another process")
    codecompanion.wait_tokens(4)
    codecompanion.lua("table.insert(chat.messages, { role = 'llm', content = 'No.' })")
    codecompanion.lua("fire('ChatDone')")
    wait_turns(codecompanion, "codecompanion:7", 2)


def test_codecompanion_forgets_what_was_removed(codecompanion: Editor) -> None:
    codecompanion.lua("table.insert(chat.messages, { role = 'llm', content = 'No.' })")
    codecompanion.lua("fire('ChatSubmitted')")
    before = wait_turns(codecompanion, "codecompanion:7", 2)
    codecompanion.lua("chat.messages = { { role = 'user', content = 'Anew' } }")
    codecompanion.lua("fire('ChatSubmitted')")
    after = wait_turns(codecompanion, "codecompanion:7", 1)
    assert after["tokens"] < before["tokens"]


def test_codecompanion_is_sent_again_to_a_new_server(codecompanion: Editor) -> None:
    codecompanion.lua("table.insert(chat.messages, { role = 'llm', content = 'No.' })")
    codecompanion.lua("fire('ChatSubmitted')")
    wait_turns(codecompanion, "codecompanion:7", 2)
    (first,) = codecompanion.server_pids()
    codecompanion.command("TokenSidecar restart")
    wait_for(lambda: codecompanion.server_pids() not in ([], [first]), "another process")
    codecompanion.wait_tokens(4)
    codecompanion.lua("table.insert(chat.messages, { role = 'user', content = 'More.' })")
    codecompanion.lua("fire('ChatSubmitted')")
    wait_turns(codecompanion, "codecompanion:7", 3)


def test_codecompanion_is_held_once_when_it_does_not_fit(codecompanion: Editor) -> None:
    codecompanion.lua("fire('ChatCreated')")
    wait_turns(codecompanion, "codecompanion:7", 1)
    assert codecompanion.lua("return chat:submit()") == "sent"
    codecompanion.lua(
        "chat.messages[2].content = ('seven words that fill the window up '):rep(40000)"
    )
    assert codecompanion.lua("return chat:submit()") == "held"
    assert "submit again" in codecompanion.wait_message("Not sent")
    assert codecompanion.lua("return chat:submit()") == "sent"
    assert codecompanion.lua("return #chat.callbacks.on_before_submit") == 1


def test_an_unknown_shape_is_silence(codecompanion: Editor) -> None:
    codecompanion.lua("chat.messages = 'another form'; chat.add_callback = nil")
    codecompanion.lua("fire('ChatSubmitted')")
    codecompanion.lua("package.loaded['codecompanion'] = nil; fire('ChatDone')")
    codecompanion.lua("vim.wait(200)")
    assert codecompanion.messages() == []


def test_it_can_be_switched_off(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor(CODECOMPANION + "vim.g.token_sidecar_integrations = false")
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    editor.lua("fire('ChatSubmitted')")
    loaded = "return package.loaded['token_sidecar.integrations.codecompanion']"
    assert editor.lua(loaded) is None


COPILOT = """
local called = {}
local chat = { config = { model = 'gpt-4o' }, messages = {} }
function chat:get_messages() return self.messages end
package.loaded['CopilotChat'] = {
  chat = chat,
  config = { model = 'gpt-4.1', callback = function(reply) table.insert(called, reply) return reply end },
}
_G.chat, _G.called = chat, called
"""


def test_copilotchat_is_followed(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor(COPILOT)
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    editor.lua("""
      vim.cmd.vnew()
      vim.bo.buftype = 'nofile'
      vim.bo.filetype = 'copilot-chat'
      vim.bo.filetype = 'copilot-chat'
      chat.messages = { { role = 'user', content = 'Hi' } }
      local reply = { role = 'assistant', content = 'Hello!' }
      assert(package.loaded['CopilotChat'].config.callback(reply) == reply)
      table.insert(chat.messages, reply)""")
    known = wait_turns(editor, "copilotchat", 2)
    assert known["model"] == "gpt-4o"
    assert editor.lua("return #called") == 1
    assert editor.messages() == []


AVANTE = """
local history = { filename = '3.json', messages = {} }
package.loaded['avante'] = { get = function() return { chat_history = history } end }
package.loaded['avante.config'] = { provider = 'claude', providers = { claude = { model = 'claude-sonnet-4-5' } } }
_G.history = history
_G.fire = function(name, data)
  vim.api.nvim_exec_autocmds('User', { pattern = 'Avante' .. name, data = data })
end
"""


def test_avante_is_followed(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor(AVANTE)
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    editor.lua("""
      history.messages = {
        { state = 'generated', message = { role = 'user', content = 'Which files?' } },
        { state = 'generated', message = { role = 'assistant', content = {
          { type = 'tool_use', id = 't1', name = 'ls', input = { path = '.' } },
        } } },
        { state = 'generated', message = { role = 'user', content = {
          { type = 'tool_result', tool_use_id = 't1', content = 'a.md' },
        } } },
        { state = 'generating', message = { role = 'assistant', content = 'One' } },
      }
      fire('ViewBufferUpdated')""")
    known = wait_turns(editor, "avante:3.json", 3)
    assert known["model"] == "claude-sonnet-4-5"
    editor.lua("""
      history.messages[4].message.content = 'One file.'
      history.messages[4].state = 'generated'
      fire('ViewBufferUpdated'); fire('ViewBufferUpdated'); fire('ViewBufferUpdated')""")
    wait_turns(editor, "avante:3.json", 4)
    assert editor.messages() == []
