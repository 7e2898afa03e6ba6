"""Tests which prompts are held in the real chat plugins, and which are sent without a check."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from tests.e2e.neovim.chat_conversation import (
    EACH_SMALL,
    USUAL_SMALL,
    WEATHER,
    say,
    sent_back,
    wait_tokens,
)
from tests.e2e.neovim.chat_plugins import SMALL, TOO_LONG, ChatPlugin
from tests.e2e.neovim.harness import Editor, wait_for

pytestmark = pytest.mark.plugins

NO_SERVER = {"TOKEN_SIDECAR_CMD": "/nowhere/token-sidecar"}
CODECOMPANION, COPILOTCHAT, AVANTE = SMALL
HUGE = TOO_LONG.replace("\n", " ")
"""A prompt that does not fit."""


@contextmanager
def suspended_servers(editor: Editor) -> Iterator[None]:
    """Suspend the editor's servers, so that they do not respond."""
    pids = editor.server_pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@EACH_SMALL
def test_a_prompt_over_the_limit_is_held_until_it_is_submitted_again(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    """A shorter prompt may be sent meanwhile, and another long one is held, too."""
    editor, server, _ = begin(plugin, waits=False)
    editor.lua(plugin.submit, HUGE)
    message = editor.wait_message("held")
    assert "tokens do not fit. Resubmit to send" in message
    assert len(message) <= editor.lua("return vim.v.echospace")
    assert server.received == []
    assert HUGE.strip() in editor.lua(plugin.typed)
    editor.lua(plugin.submit, WEATHER.format(1))
    wait_for(lambda: len(server.received) == 2, "the small prompt")
    wait_for(lambda: editor.lua(plugin.idle), "the end of the reply")
    assert len(editor.messages()) == 1
    for nth, huge in ((2, HUGE), (3, HUGE + "and more")):
        editor.lua(plugin.submit, huge)
        editor.wait_message("held", nth)
    assert len(server.received) == 2
    editor.lua(plugin.submit, HUGE + "and more")
    wait_for(lambda: len(server.received) == 3, "the resubmitted prompt")
    wait_for(lambda: editor.lua(plugin.idle), "the end of the reply")
    # The warning about the full context may already have arrived.
    assert len([said for said in editor.messages() if "held" in said]) == 3


def test_a_held_prompt_is_not_parsed(begin: Callable[..., Any]) -> None:
    """codecompanion needs seconds to parse a megabyte, so a held prompt must not be parsed."""
    editor, server, _ = begin(CODECOMPANION, waits=False)
    editor.lua("""
      local parser = require('codecompanion.interactions.chat.parser')
      local messages = parser.messages
      _G.parsed = 0
      parser.messages = function(...)
        _G.parsed = _G.parsed + 1
        return messages(...)
      end""")
    editor.lua(CODECOMPANION.submit, HUGE)
    editor.wait_message("held")
    assert editor.lua("return _G.parsed") == 0
    editor.lua(CODECOMPANION.submit, WEATHER.format(0))
    wait_for(lambda: len(server.received) == 2, "the small prompt")
    assert editor.lua("return _G.parsed") == 1


def test_a_first_prompt_that_opens_copilotchat_can_be_held(begin: Callable[..., Any]) -> None:
    editor, server, _ = begin(msgspec.structs.replace(COPILOTCHAT, open=""), waits=False)
    editor.lua("vim.cmd.CopilotChat(...)", HUGE)
    assert "tokens do not fit. Resubmit to send" in editor.wait_message("held")
    assert server.received == []
    assert HUGE.strip() in editor.lua(COPILOTCHAT.typed)
    assert editor.lua("return vim.bo[require('CopilotChat').chat.bufnr].modifiable")
    editor.lua(COPILOTCHAT.submit, WEATHER.format(1))
    wait_for(lambda: len(server.received) == 2, "the small prompt")
    assert len(editor.messages()) == 1


def test_a_first_prompt_that_opens_copilotchat_is_sent_if_it_fits_or_is_submitted_again(
    begin: Callable[..., Any],
) -> None:
    editor, server, session = begin(msgspec.structs.replace(COPILOTCHAT, open=""), waits=False)
    editor.lua("vim.cmd.CopilotChat(...)", HUGE)
    editor.wait_message("held")
    editor.lua("""
      local plugin = require('CopilotChat')
      plugin.ask(plugin.chat:get_message('user', true).content)""")
    wait_for(lambda: server.received, "the resubmitted prompt")
    wait_for(lambda: editor.lua(COPILOTCHAT.idle), "the end of the reply")
    other, small, _ = begin(msgspec.structs.replace(COPILOTCHAT, open=""), waits=False)
    other.lua("vim.cmd.CopilotChat(...)", WEATHER.format(0))
    wait_for(lambda: len(small.received) == 2, "the prompt")
    last = sent_back(small.received[-1])
    wait_tokens(other, session, last.__eq__, str(last))


@USUAL_SMALL
def test_a_hanging_server_delays_one_prompt_and_is_reported_once(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, _ = begin(plugin, waits=False, lua="")
    with suspended_servers(editor):
        for part in range(3):
            say(editor, plugin, server, part)
        assert len(editor.messages()) == 1
        # The plugin has noticed that the server hangs, so it no longer holds prompts.
        at_once = """
          local went = false
          require('token_sidecar.integrations.chats').guard('x', { text = 'Hello' }, function() went = true end)
          return went"""
        assert editor.lua(at_once)


@USUAL_SMALL
def test_prompts_do_not_wait_without_a_server(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, _ = begin(plugin, waits=False, **NO_SERVER)
    for part in range(3):
        say(editor, plugin, server, part)
    assert len(editor.messages()) == 1
    assert "pipx install" in editor.messages()[0]


AT_ONCE = """
  local clients = require('token_sidecar.server').clients
  local dead, went = clients()[1].id, false
  for _, pid in ipairs(...) do vim.uv.kill(pid, 'sigkill') end
  vim.wait(60000, function() return not clients()[1] or clients()[1].id ~= dead end, 1)
  local another = clients()[1]
  if another and another.initialized then return true end -- it answers
  require('token_sidecar.integrations.chats').guard('x', { text = 'Hello' }, function() went = true end)
  return went"""
"""Returns whether a prompt is sent immediately if there is no server."""


@USUAL_SMALL
def test_prompts_are_sent_while_the_server_is_down(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, _ = begin(plugin, waits=False)
    assert editor.lua(AT_ONCE, editor.server_pids())
    for part in range(3):
        say(editor, plugin, server, part)
    assert len(editor.messages()) == 1


HOLD_TIMERS = """
  local defer = vim.defer_fn
  vim.g.token_sidecar_hold_ms = 61234
  _G.expiries = {}
  vim.defer_fn = function(run, ms)
    if ms ~= 61234 then return defer(run, ms) end
    table.insert(_G.expiries, run)
    return defer(function() end, 0)
  end
  _G.expire = function()
    local due = _G.expiries
    _G.expiries = {}
    for _, run in ipairs(due) do run() end
    defer(function() _G.has_expired = true end, 200)
  end"""
"""Collects the timers of held prompts instead of starting them. `_G.expire()` expires them."""


@USUAL_SMALL
def test_expired_timer_of_a_sent_prompt_does_not_release_the_next_prompt(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    """The first prompt's timer expires while the second prompt is being checked."""
    editor, server, _ = begin(plugin, waits=False)
    editor.lua(HOLD_TIMERS)
    say(editor, plugin, server, 0)
    with suspended_servers(editor):
        editor.lua("_G.of_first = _G.expiries; _G.expiries = {}")
        editor.lua(plugin.submit, HUGE)
        editor.lua("_G.of_next = _G.expiries; _G.expiries = _G.of_first; _G.expire()")
        wait_for(lambda: editor.lua("return _G.has_expired"), "the end of the first hold")
        assert len(server.received) == 2
        assert editor.messages() == []
    editor.wait_message("held")
    assert len(server.received) == 2
    assert HUGE.strip() in editor.lua(plugin.typed)
    say(editor, plugin, server, 1)
    assert len(editor.messages()) == 1


@EACH_SMALL
def test_prompts_submitted_during_a_check(begin: Callable[..., Any], plugin: ChatPlugin) -> None:
    """A prompt that is submitted twice is sent once, and another prompt is checked, too.

    Meanwhile, Neovim remains responsive.
    """
    editor, server, _ = begin(plugin, waits=False, lua="\nvim.g.token_sidecar_hold_ms = 600000")
    with suspended_servers(editor):
        for _ in range(2):
            editor.lua(plugin.submit, WEATHER.format(0))
        editor.command("tabnew")
        editor.edit("b.md", "One can type.\n")
        assert editor.text() == "One can type.\n"
        assert server.received == []
    editor.command("tabclose")
    wait_for(lambda: len(server.received) == 2, "both requests")
    wait_for(lambda: editor.lua(plugin.idle), "the end of the reply")
    say(editor, plugin, server, 1)
    assert len(server.received) == 4
    assert editor.messages() == []
    with suspended_servers(editor):
        editor.lua(plugin.submit, WEATHER.format(2))
        editor.lua(plugin.submit, HUGE)
    editor.wait_message("held")
    assert HUGE.strip() in editor.lua(plugin.typed)
    assert all(HUGE not in str(received.body) for received in server.received)


def test_prompt_edited_during_its_check_is_checked_again(
    begin: Callable[..., Any],
) -> None:
    """codecompanion sends the buffer's text at the end of the check, not at its start."""
    editor, server, _ = begin(CODECOMPANION, waits=False)
    with suspended_servers(editor):
        editor.lua(CODECOMPANION.submit, WEATHER.format(0))
        editor.lua("vim.api.nvim_buf_set_lines(chat.bufnr, -1, -1, false, { ... })", HUGE)
    editor.wait_message("held")
    assert server.received == []


SAID = {
    "codecompanion": [],
    "avante": ["token-sidecar: avante was closed, so its prompt was not sent"],
}
CLOSE = {"codecompanion": "chat:close()", "avante": "require('avante').get():close()"}


@pytest.mark.parametrize("plugin", [CODECOMPANION, AVANTE], ids=lambda plugin: plugin.name)
def test_prompt_of_a_chat_closed_during_its_check_is_not_sent(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, _ = begin(plugin, waits=False)
    with suspended_servers(editor):
        editor.lua(plugin.submit, WEATHER.format(0))
        editor.lua(CLOSE[plugin.name])
    editor.lua(JUDGED)
    assert server.received == []
    said = editor.lua("return vim.api.nvim_exec2('messages', { output = true }).output")
    assert "token_sidecar" not in said
    # avante does not notice input over RPC, so one of its timers fails.
    editor.errors_expected = plugin is AVANTE
    assert editor.messages() == SAID[plugin.name]


JUDGED = """
  local client, done = require('token_sidecar.server').clients()[1], false
  client:request('context/usage', { session = 'x' }, function() done = true end)
  vim.wait(60000, function()
    return done and not vim.iter(pairs(client.requests)):any(function(_, request)
      return request.type == 'pending' and request.method == 'context/preflight'
    end)
  end)"""
"""Waits until the server has checked all prompts."""
