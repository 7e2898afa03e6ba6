"""Tests the real chat plugins with a local model server that counts the tokens it receives."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sidecar.text.printable import usd_text
from tests.e2e.neovim.chat_conversation import (
    EACH,
    WEATHER,
    ask,
    converse,
    say,
    sent_back,
    tokens,
    wait_calls,
    wait_tokens,
)
from tests.e2e.neovim.chat_plugins import ALL, AVANTE, CODECOMPANION, COPILOTCHAT, ChatPlugin
from tests.e2e.neovim.harness import Editor, wait_for
from tests.e2e.neovim.plugins import on_path

pytestmark = pytest.mark.plugins

INPUT, OUTPUT = Decimal("2.5") / 10**6, Decimal(10) / 10**6
"""gpt-4o's prices in USD per token."""


@EACH
def test_conversation_counts_and_costs_are_exact(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, session = begin(plugin)
    for part in range(3):
        converse(editor, plugin, server, session, part)
    assert len(server.received) == 6
    assert ask(editor, "context/usage", {"session": session})["limit"] == 128000
    report = ask(editor, "cost/detail")
    prompts = sum(request.prompt for request in server.received)
    outputs = sum(request.output for request in server.received)
    worked = INPUT * prompts + OUTPUT * outputs
    assert report["totals"]["calls"] == 6
    assert abs(Decimal(str(report["totals"]["costUsd"])) - worked) < Decimal("1e-9")
    assert report["text"].startswith(f"gpt-4o main 6 calls, {prompts}")
    editor.command("TokenSidecar cost")
    wait_for(
        lambda: re.search(
            rf"gpt-4o +main +6 .*{re.escape(usd_text(worked))}",
            "\n".join(editor.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)")),
        ),
        lambda: repr(editor.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)")),
    )  # fmt: skip
    assert editor.messages() == []
    assert editor.lua("return vim.api.nvim_exec2('messages', { output = true }).output") == ""


@EACH
def test_only_new_messages_are_sent_to_the_server(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, session = begin(plugin, waits=False)
    editor.lua("""
      _G.sent = {}
      local client = require('token_sidecar.server').clients()[1]
      local request = client.request
      client.request = function(self, method, params, ...)
        table.insert(_G.sent, { method, params.turns and #params.turns or 0 })
        return request(self, method, params, ...)
      end""")
    for part in range(2):
        say(editor, plugin, server, part)
        last = sent_back(server.received[-1])
        wait_tokens(editor, session, last.__eq__, str(last))
    sent = editor.lua("return _G.sent")
    held = len(server.received[-1].body["messages"])
    assert sum(turns for method, turns in sent if method == "context/append") <= held + 1
    assert [method for method, _ in sent].count("context/reset") <= 1
    assert [method for method, _ in sent].count("context/set") <= 3


IN_FRONT = """
  local client = require('token_sidecar.server').clients()[1]
  return client and require('token_sidecar.integrations.chats').in_front(client.id) or {}"""
SHOWN = """
  local status = vim.b[...].token_sidecar_status_dict or {}
  return type(status.context) == 'table' and status.context.tokens or 0"""


@EACH
def test_the_chat_window_shows_its_own_context(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, session = begin(plugin, waits=False)
    editor.lua("vim.o.laststatus = 3")
    editor.lua(plugin.submit, WEATHER.format(0))
    wait_for(lambda: len(server.received) == 2, "both requests")
    right = sent_back(server.received[1])
    wait_tokens(editor, session, right.__eq__, str(right))
    (buf, *_) = wait_for(lambda: editor.lua(IN_FRONT), "the chat's buffer")
    wait_for(lambda: editor.lua(SHOWN, buf) == right, f"{right} tokens")
    editor.lua("vim.api.nvim_set_current_buf(...)", buf)
    text = editor.lua("return vim.b[...].token_sidecar_status", buf)
    assert text.startswith("ctx ")
    wait_for(lambda: text[:5] in editor.screen()[-2], text)


def test_chat_keeps_its_numbers_when_another_project_is_opened(
    begin: Callable[..., Any], tmp_path: Path
) -> None:
    editor, server, session = begin(CODECOMPANION, waits=False)
    say(editor, CODECOMPANION, server, 0)
    right = sent_back(server.received[-1])
    wait_tokens(editor, session, right.__eq__, str(right))
    buf = editor.lua("return chat.bufnr")
    wait_for(lambda: editor.lua(SHOWN, buf) == right, f"{right} tokens")
    other = tmp_path / "other/b.md"
    (other.parent / ".git").mkdir(parents=True)
    other.write_text("Hello, world!\n")
    editor.command(f"tabedit {other}")
    editor.wait_tokens(4)
    assert len(editor.server_pids()) == 2
    assert editor.lua(SHOWN, buf) == right


def test_chat_loses_its_numbers_with_the_server(begin: Callable[..., Any]) -> None:
    editor, server, session = begin(CODECOMPANION, waits=False)
    say(editor, CODECOMPANION, server, 0)
    right = sent_back(server.received[-1])
    wait_tokens(editor, session, right.__eq__, str(right))
    buf = editor.lua("return chat.bufnr")
    wait_for(lambda: editor.lua(SHOWN, buf) == right, f"{right} tokens")
    editor.lua("require('token_sidecar.server').start = function() end")
    editor.lua("for _, pid in ipairs(...) do vim.uv.kill(pid, 'sigkill') end", editor.server_pids())
    wait_for(
        lambda: editor.lua("return vim.b[...].token_sidecar_status == nil", buf),
        "the number to disappear",
    )


def test_a_closed_chat_disappears_from_the_status(begin: Callable[..., Any]) -> None:
    editor, _, session = begin(CODECOMPANION, waits=False)
    wait_for(lambda: tokens(editor, session), "the chat")
    editor.lua("chat:close()")
    wait_for(lambda: tokens(editor, session) is None, "the number to disappear")
    assert editor.messages() == []


def test_a_cleared_chat_is_counted_from_the_start(begin: Callable[..., Any]) -> None:
    editor, server, session = begin(CODECOMPANION, waits=False)
    empty = wait_for(lambda: tokens(editor, session), "the chat")
    editor.lua(CODECOMPANION.submit, WEATHER.format(0))
    wait_for(lambda: (tokens(editor, session) or 0) > empty + 40, "the conversation")
    wait_for(
        lambda: len(server.received) == 2 and editor.lua(CODECOMPANION.idle), "the end of the reply"
    )
    editor.lua("chat:clear()")
    # The first usage report has calibrated the number of tokens that the client adds.
    wait_tokens(editor, session, lambda known: abs(known - empty) < 20, str(empty))


def test_copilotchat_reset_and_model_change_are_followed(
    begin: Callable[..., Any],
) -> None:
    editor, server, session = begin(COPILOTCHAT, waits=False)
    editor.lua(COPILOTCHAT.submit, WEATHER.format(0))
    wait_for(lambda: (tokens(editor, session) or 0) > 1000, "the conversation")
    wait_for(
        lambda: len(server.received) == 2 and editor.lua(COPILOTCHAT.idle), "the end of the reply"
    )
    editor.command("CopilotChatReset")
    wait_for(lambda: tokens(editor, session) is None, "the number to disappear")
    editor.lua("require('CopilotChat').config.model = 'gpt-4o-mini'")
    editor.lua(COPILOTCHAT.submit, WEATHER.format(1))
    wait_for(lambda: len(server.received) == 4, "both requests")
    last = sent_back(server.received[3])
    wait_tokens(editor, session, last.__eq__, str(last))
    assert ask(editor, "context/usage", {"session": session})["model"] == "gpt-4o-mini"


def test_a_reply_without_usage_is_counted(begin: Callable[..., Any]) -> None:
    editor, server, session = begin(COPILOTCHAT, waits=False)
    server.usage = "none"
    say(editor, COPILOTCHAT, server, 0)
    right = sent_back(server.received[1])
    wait_tokens(editor, session, lambda known: abs(known - right) < 10, str(right))
    say(editor, COPILOTCHAT, server, 1)
    right = sent_back(server.received[3])
    wait_tokens(editor, session, lambda known: abs(known - right) < 15, str(right))
    wait_for(
        lambda: ask(editor, "context/usage", {"session": session})["turns"] == 8, "the last reply"
    )


def test_avante_clear_and_new_chat_are_followed(begin: Callable[..., Any]) -> None:
    editor, server, session = begin(AVANTE, waits=False)
    editor.lua(AVANTE.submit, WEATHER.format(0))
    wait_for(lambda: len(server.received) == 2 and editor.lua(AVANTE.idle), "the reply")
    full = sent_back(server.received[1])
    wait_tokens(editor, session, full.__eq__, str(full))
    editor.lua(AVANTE.submit, "/clear")
    editor.lua("require('avante').get():show_input_hint()")
    wait_tokens(editor, session, lambda known: known < full - 40, "a smaller context")
    editor.lua(AVANTE.submit, "/new")
    editor.lua("require('avante').get():show_input_hint()")
    other = editor.lua(AVANTE.session)
    assert other != session
    wait_tokens(editor, other, lambda known: known < full - 40, "the new chat")


def test_an_inline_request_is_recorded(begin: Callable[..., Any]) -> None:
    editor, server, session = begin(CODECOMPANION, waits=False)
    chat = wait_for(lambda: tokens(editor, session), "the chat")
    editor.command("wincmd p")
    editor.lua("""
      vim.api.nvim_exec_autocmds('User', { pattern = 'CodeCompanionInlineStarted' })
      local adapter = require('codecompanion.adapters').resolve('mine')
      adapter.opts.stream = false
      require('codecompanion.http').new({ adapter = adapter:map_schema_to_params() }):request(
        { messages = { { role = 'user', content = 'Name the sea.' } } },
        { callback = function() end }, { interaction = 'inline' })""")
    wait_calls(editor, 1)
    (row,) = ask(editor, "cost/detail")["rows"]
    assert row["category"] == "inline"
    assert row["promptTokens"] == server.received[0].prompt
    assert tokens(editor, session) == chat


LUALINE = """
require('lualine').setup({
  options = { icons_enabled = false, refresh = { statusline = 60000, refresh_time = 60000 } },
  sections = { lualine_x = { 'token_sidecar' } } })"""
"""lualine refreshes only once per minute by itself, so any earlier update comes from our event."""


def test_no_module_is_loaded_before_a_chat_is_used(
    open_editor: Callable[..., Editor],
) -> None:
    """Only the lualine component and the two modules that read the status are loaded."""
    lua = "\n".join(plugin.lua for plugin in ALL)
    editor = open_editor(lua + "\nvim.o.columns = 80\n" + on_path("lualine.nvim") + LUALINE)
    loaded = editor.lua("""
      return vim.tbl_filter(function(name) return name:find('token_sidecar') end,
        vim.tbl_keys(package.loaded))""")  # fmt: skip
    own = {"lualine.components.token_sidecar", "token_sidecar", "token_sidecar.lualine"}
    assert set(loaded) == own
    assert editor.server_pids() == []
    assert editor.lua("return vim.api.nvim_exec2('messages', { output = true }).output") == ""


def test_chat_integrations_can_be_disabled(begin: Callable[..., Any]) -> None:
    editor, _, _ = begin(CODECOMPANION, lua="\nvim.g.token_sidecar_integrations = false")
    assert editor.lua("return package.loaded['token_sidecar.integrations.codecompanion']") is None


def test_lualine_draws_a_pushed_status_at_once(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor(on_path("lualine.nvim") + LUALINE)
    editor.edit("a.md", "Hello, world!\n")
    wait_for(lambda: "4 tokens" in editor.screen()[-2], "the number")
    editor.lua("vim.api.nvim_buf_set_lines(0, -1, -1, false, { 'Hello, world!' })")
    wait_for(lambda: "8 tokens" in editor.screen()[-2], "the next number")
