"""Tests files, buffers and tools attached to codecompanion's chats, and a change of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.neovim.chat_conversation import WEATHER, ask, say, sent_back, tokens, wait_tokens
from tests.e2e.neovim.chat_plugins import SMALL, SMALL_MODEL, TOO_LONG
from tests.e2e.neovim.harness import Editor, wait_for
from tests.truth import truth

pytestmark = pytest.mark.plugins

CODECOMPANION = SMALL[0]
FILE = """
  local command = require('codecompanion.config').interactions.chat.slash_commands.file
  require('codecompanion.interactions.chat.slash_commands.builtin.file')
    .new({ Chat = chat, config = command, context = {} })
    :output({ path = ..., relative_path = ... }, { silent = true })"""
"""Attaches a file in the same way as `/file`."""
PROMPT = """
  local lines = vim.api.nvim_buf_get_lines(chat.bufnr, 0, -1, false)
  while #lines > 0 and lines[#lines] == '' do table.remove(lines) end
  local first = #lines
  while first > 0 and not lines[first]:find('^## Me') and not lines[first]:find('^>') do
    first = first - 1
  end
  vim.api.nvim_buf_set_lines(chat.bufnr, first, -1, false, { '', ... })"""
"""Types a prompt below the header and the attachments."""
SUBMIT = PROMPT + "\nchat:submit()"


def attach(editor: Editor, name: str, text: str) -> None:
    """Attach a new file."""
    editor.lua(FILE, str(editor.write(name, text)))


def test_prompts_with_attached_files_that_do_not_fit_are_held(begin: Callable[..., Any]) -> None:
    """codecompanion can also send attached files with a blank prompt."""
    editor, server, session = begin(CODECOMPANION, waits=False)
    empty = wait_for(lambda: tokens(editor, session), "the chat")
    attach(editor, "long.md", TOO_LONG)
    size = truth(TOO_LONG)
    wait_tokens(editor, session, lambda known: 0 < known - empty - size < 100, f"{size} more")
    editor.lua("chat:submit()")
    editor.wait_message("held")
    editor.lua(SUBMIT, "What is in the file?")
    assert "tokens do not fit" in editor.wait_message("held", 2)
    attach(editor, "longer.md", TOO_LONG)
    editor.lua("chat:submit()")
    editor.wait_message("held", 3)
    assert server.received == []
    editor.lua("chat:submit()")
    wait_for(lambda: server.received, "the resubmitted prompt")


def test_prompt_goes_once_the_attached_file_is_taken_away(begin: Callable[..., Any]) -> None:
    """The user removes the file by deleting its line. The plugin notices this when it sends the
    prompt.
    """
    editor, server, session = begin(CODECOMPANION, waits=False)
    attach(editor, "long.md", TOO_LONG)
    attach(editor, "short.md", "Short.\n")
    editor.lua(SUBMIT, WEATHER.format(0))
    editor.wait_message("held")
    editor.lua("""
      for number, line in ipairs(vim.api.nvim_buf_get_lines(chat.bufnr, 0, -1, false)) do
        if line:find('long.md', 1, true) then
          return vim.api.nvim_buf_set_lines(chat.bufnr, number - 1, number, false, {})
        end
      end""")
    editor.lua("chat:submit()")
    (received,) = wait_for(lambda: server.received, "the prompt")
    assert "Short." in str(received.body)
    assert "seven words" not in str(received.body)
    right = sent_back(received)
    wait_tokens(editor, session, lambda known: abs(known - right) < 10, str(right))


def test_buffer_that_the_prompt_names_is_judged(begin: Callable[..., Any]) -> None:
    """codecompanion attaches `#{buffer}` only when it sends the prompt."""
    editor, server, _ = begin(CODECOMPANION, waits=False)
    path = editor.write("long.md", TOO_LONG)
    editor.lua(
        "vim.fn.bufload(vim.fn.bufadd(...)); vim.bo[vim.fn.bufadd(...)].buflisted = true", str(path)
    )
    editor.lua(SUBMIT, "What is in #{buffer:long.md}?")
    editor.wait_message("held")
    assert server.received == []
    assert editor.lua("return #chat.context_items") == 0
    editor.lua("chat:submit()")
    (received,) = wait_for(lambda: server.received, "the resubmitted prompt")
    assert str(received.body).count(TOO_LONG[:200].splitlines()[0]) == len(TOO_LONG.splitlines())


TOOL = """
  vim.api.nvim_create_autocmd('User', { pattern = 'CodeCompanionChatToolAdded', callback = function()
    _G.added = (_G.added or 0) + 1
  end })
  local schema = { type = 'function', ['function'] = {
    name = 'archive', description = ('seven words that fill the window up '):rep(5000),
    parameters = { type = 'object', properties = vim.empty_dict() } } }
  require('codecompanion.config').interactions.chat.tools.archive = { description = 'Archive',
    callback = function() return { name = 'archive', schema = schema, cmds = {} } end }"""


def test_tool_that_the_prompt_names_is_judged(begin: Callable[..., Any]) -> None:
    """codecompanion adds the tool `@{archive}` only when it sends the prompt."""
    editor, server, _ = begin(CODECOMPANION, waits=False, before=TOOL)
    editor.lua(SUBMIT, "Look into @{archive}.")
    editor.wait_message("held")
    assert server.received == []
    assert editor.lua("return { vim.tbl_count(chat.tool_registry.in_use), _G.added or 0 }") == [
        0,
        0,
    ]
    editor.lua("chat:submit()")
    wait_for(lambda: server.received, "the resubmitted prompt")
    assert editor.lua("return _G.added") == 1


def test_watched_buffer_is_counted_with_its_current_text(begin: Callable[..., Any]) -> None:
    """With each prompt, codecompanion resends the buffers that are attached with `{all}`."""
    editor, server, _ = begin(CODECOMPANION, waits=False)
    path = str(editor.write("grows.md", "Short.\n"))
    editor.lua(
        "vim.fn.bufload(vim.fn.bufadd(...)); vim.bo[vim.fn.bufadd(...)].buflisted = true", path
    )
    editor.lua(SUBMIT, "What is in #{buffer:grows.md}{all}?")
    wait_for(lambda: server.received and editor.lua(CODECOMPANION.idle), "the reply")
    before = len(server.received)
    editor.lua("""
      local path, text = ...
      vim.api.nvim_buf_set_lines(vim.fn.bufadd(path), 0, -1, false, vim.split(text, '\\n'))""",
      path, TOO_LONG)  # fmt: skip
    editor.lua(SUBMIT, "And now?")
    editor.wait_message("held")
    assert len(server.received) == before


def test_changed_model_is_shown_at_once(begin: Callable[..., Any]) -> None:
    editor, server, session = begin(CODECOMPANION, waits=False)
    say(editor, CODECOMPANION, server, 0)

    def model() -> Any:
        return ask(editor, "context/usage", {"session": session})["model"]

    assert model() == SMALL_MODEL
    editor.lua("chat:change_model({ model = 'gpt-4o-mini' })")
    wait_for(lambda: model() == "gpt-4o-mini", model)
    assert len(server.received) == 2
