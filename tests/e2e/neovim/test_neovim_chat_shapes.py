"""Tests that unexpected plugin versions cause no errors, only a line in :checkhealth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.neovim.chat_conversation import (
    EACH,
    WEATHER,
    say,
    sent_back,
    wait_calls,
    wait_tokens,
)
from tests.e2e.neovim.chat_plugins import CODECOMPANION, ChatPlugin
from tests.e2e.neovim.harness import Editor, wait_for

pytestmark = pytest.mark.plugins

CHANGED = {
    "codecompanion": ("codecompanion.http", "send_sync"),
    "CopilotChat": ("CopilotChat", "stop"),
    "avante": ("avante.llm", "curl"),
}


def health(editor: Editor) -> str:
    """Return the output of :checkhealth for this plugin."""
    editor.command("checkhealth token_sidecar")
    lines = "\n".join(editor.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)"))
    editor.command("bdelete")
    return lines


EVENTS = {
    "codecompanion": "'User', { pattern = 'CodeCompanionChatDone', data = { bufnr = chat.bufnr } }",
    "CopilotChat": "'FileType', { pattern = 'copilot-chat', group = 'token_sidecar' }",
    "avante": "'FileType', { pattern = 'AvanteInput', group = 'token_sidecar' }",
}


@EACH
def test_an_unexpected_plugin_api_is_only_reported_in_checkhealth_until_it_is_restored(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    module, member = CHANGED[plugin.name]
    before = f"_G.kept = require('{module}').{member}; require('{module}').{member} = nil"
    editor, server, session = begin(plugin, waits=False, before=before)
    line = f"{plugin.name} is not supported: no function {member}; supported: "
    assert line in health(editor)
    assert editor.messages() == []
    editor.lua(f"require('{module}').{member} = _G.kept")
    editor.lua(f"vim.api.nvim_exec_autocmds({EVENTS[plugin.name]})")
    assert "is not supported" not in health(editor)
    say(editor, plugin, server, 0)
    right = sent_back(server.received[1])
    wait_tokens(editor, session, right.__eq__, str(right))
    wait_calls(editor, 2)


def test_a_reloaded_plugin_is_followed(begin: Callable[..., Any]) -> None:
    editor, server, _ = begin(CODECOMPANION, waits=False)
    say(editor, CODECOMPANION, server, 0)
    editor.lua("""
      for name in pairs(package.loaded) do
        if name:find('^codecompanion') then package.loaded[name] = nil end
      end""")
    session = CODECOMPANION.start(editor, server)
    say(editor, CODECOMPANION, server, 1)
    right = sent_back(server.received[3])
    wait_tokens(editor, session, right.__eq__, str(right))
    wait_calls(editor, 4)


def test_a_request_that_we_cannot_read_is_still_sent(begin: Callable[..., Any]) -> None:
    editor, server, _ = begin(CODECOMPANION, waits=False)
    editor.lua("require('codecompanion').buf_get_chat = function() error('gone') end")
    editor.lua(CODECOMPANION.submit, WEATHER.format(0))
    wait_for(lambda: len(server.received) == 2, "both requests")
    assert "codecompanion is not supported: gone; " in health(editor)
