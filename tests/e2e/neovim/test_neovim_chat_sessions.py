"""Tests which chat's context is displayed, which window applies, and how one-off calls are
recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.e2e.neovim.chat_conversation import (
    EACH,
    ask,
    say,
    sent_back,
    tokens,
    wait_calls,
    wait_tokens,
)
from tests.e2e.neovim.chat_plugins import CODECOMPANION, COPILOTCHAT, ChatPlugin
from tests.e2e.neovim.harness import Editor, wait_for

pytestmark = pytest.mark.plugins

SMALLER = 96_000
"""A context window that differs from gpt-4o's, so that it can only come from the plugin."""


def with_window(plugin: ChatPlugin) -> ChatPlugin:
    """Return the plugin, configured with another context window for the model."""
    meta = f"{{ ['gpt-4o'] = {{ meta = {{ context_window = {SMALLER} }} }} }}"
    lua = plugin.lua.replace("{ ['gpt-4o'] = {} }", meta).replace("128000", str(SMALLER))
    return msgspec.structs.replace(plugin, lua=lua)


@EACH
def test_the_window_configured_in_the_plugin_applies(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, session = begin(with_window(plugin), waits=False)
    say(editor, plugin, server, 0)
    last = sent_back(server.received[-1])
    wait_tokens(editor, session, last.__eq__, str(last))
    usage = ask(editor, "context/usage", {"session": session})
    assert (usage["limit"], usage["limitSource"]) == (SMALLER, "request")


def wait_shown(editor: Editor, session: str) -> None:
    """Wait until the status shows the session."""
    wait_for(lambda: (ask(editor, "context/usage")["session"] or {}).get("id") == session, session)


def test_the_focused_chat_is_the_shown_session(begin: Callable[..., Any]) -> None:
    editor, server, first = begin(CODECOMPANION, waits=False)
    say(editor, CODECOMPANION, server, 0)
    right = sent_back(server.received[-1])
    wait_tokens(editor, first, right.__eq__, str(right))
    editor.lua("_G.other = chat; " + CODECOMPANION.open)
    second = str(editor.lua(CODECOMPANION.session))
    assert second != first
    wait_for(lambda: tokens(editor, second), "the second chat")
    for chat, session in (("other", first), ("chat", second), ("other", first)):
        editor.lua(f"vim.api.nvim_set_current_buf({chat}.bufnr)")
        wait_shown(editor, session)


def test_a_background_request_is_recorded_but_not_in_a_conversation(
    begin: Callable[..., Any],
) -> None:
    editor, server, session = begin(CODECOMPANION, waits=False)
    chat = wait_for(lambda: tokens(editor, session), "the chat")
    for calls, how in enumerate(("sync", "async"), 1):
        editor.lua(
            """
            local how = ...
            local adapter = require('codecompanion.adapters').resolve('mine')
            local made = require('codecompanion.interactions.background').new({ adapter = adapter })
            made:ask({ { role = 'user', content = 'Name the sea.' } },
              { method = how, on_done = function() end })""",
            how,
        )
        wait_calls(editor, calls)
    (row,) = ask(editor, "cost/detail")["rows"]
    assert row["category"] == "background"
    assert row["promptTokens"] == sum(request.prompt for request in server.received)
    assert tokens(editor, session) == chat


def test_headless_copilotchat_requests_are_recorded_but_not_in_a_conversation(
    begin: Callable[..., Any],
) -> None:
    editor, server, session = begin(COPILOTCHAT, waits=False)
    say(editor, COPILOTCHAT, server, 0)
    right = sent_back(server.received[-1])
    wait_tokens(editor, session, right.__eq__, str(right))
    editor.lua("""
      require('CopilotChat').ask('Name the sea.', { headless = true,
        callback = function(reply) _G.replied = reply.content end })""")
    wait_for(lambda: editor.lua("return _G.replied ~= nil"), "the caller's callback")
    wait_calls(editor, 3)
    rows = {row["category"]: row for row in ask(editor, "cost/detail")["rows"]}
    assert rows["headless"]["promptTokens"] == server.received[-1].prompt
    assert tokens(editor, session) == right
