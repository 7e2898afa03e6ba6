"""Tests inline requests, resources, compaction and long chats in the real chat plugins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

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
    within_one_percent,
)
from tests.e2e.neovim.chat_plugins import AVANTE, CODECOMPANION, COPILOTCHAT, Avante, ChatPlugin
from tests.e2e.neovim.harness import WAIT_SECONDS, Editor, wait_for
from tests.model_server import ModelServer, Reply

pytestmark = pytest.mark.plugins

MESSAGES = 400
LINE = "The quick brown fox jumps over the lazy dog, and more of them follow it to the sea. "
PLACED = '{"code": "local sea = \'Atlantic\'", "language": "lua", "placement": "add"}'
SUMMARY = "Lisbon's weather was asked for; it is sunny."


class Inline(ChatPlugin, frozen=True):
    """Answers codecompanion's inline assistant, which expects JSON that says where to insert the
    code.
    """

    def answer(self, body: dict[str, Any]) -> Reply:  # noqa: ARG002
        """Answer with code to insert into the buffer."""
        return Reply(PLACED)


class Summarizing(Avante, frozen=True):
    """Answers avante's summary requests, which contain no tools."""

    def answer(self, body: dict[str, Any]) -> Reply:
        """Answer requests for a summary. Delegate all others."""
        return super().answer(body) if body.get("tools") else Reply(SUMMARY)


def of_class(kind: type[ChatPlugin], plugin: ChatPlugin, **changed: str) -> ChatPlugin:
    """Return a copy of the plugin that uses another fake vendor."""
    return kind(**{**msgspec.structs.asdict(plugin), **changed})


@pytest.mark.parametrize("open_first", [CODECOMPANION.open, ""], ids=["beside a chat", "alone"])
def test_a_typed_inline_command_is_recorded(begin: Callable[..., Any], open_first: str) -> None:
    session = CODECOMPANION.session if open_first else "return ''"
    plugin = of_class(Inline, CODECOMPANION, open=open_first, session=session)
    editor, server, chat = begin(plugin, waits=False)
    before = wait_for(lambda: tokens(editor, chat), "the chat") if chat else None
    if chat:
        editor.command("wincmd p")
    editor.command("set nomore")
    editor.keys(":CodeCompanion Name the sea at Lisbon.<CR>")
    wait_for(lambda: server.received, "the request")
    wait_calls(editor, 1)
    (row,) = ask(editor, "cost/detail")["rows"]
    assert row["category"] == "inline"
    assert row["promptTokens"] == server.received[0].prompt
    assert row["completionTokens"] == server.received[0].output
    if chat:
        assert tokens(editor, chat) == before
    wait_for(lambda: "Atlantic" in editor.text(), "the inserted code")
    editor.errors_expected = True  # E31: the plugin removes a mapping that does not exist


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_background_request_before_any_other_is_recorded(
    begin: Callable[..., Any], how: str
) -> None:
    plugin = msgspec.structs.replace(CODECOMPANION, open="", session="return ''")
    editor, server, _ = begin(plugin, waits=False)
    editor.lua(
        """
        local adapter = require('codecompanion.adapters').resolve('mine')
        local made = require('codecompanion.interactions.background').new({ adapter = adapter })
        made:ask({ { role = 'user', content = 'Name the sea.' } },
          { method = ..., on_done = function() end })""",
        how,
    )
    wait_calls(editor, 1)
    (row,) = ask(editor, "cost/detail")["rows"]
    assert (row["category"], row["model"]) == ("background", "gpt-4o")
    assert row["promptTokens"] == server.received[0].prompt


def test_a_failed_first_request_is_not_billed_to_the_next(begin: Callable[..., Any]) -> None:
    """Our hooks miss the first request, and the plugin does not report that the request failed."""
    plugin = msgspec.structs.replace(CODECOMPANION, open="", session="return ''")
    editor, server, _ = begin(plugin, waits=False)
    editor.lua("""
        local adapter = require('codecompanion.adapters').resolve('mine')
        adapter.env.url = 'http://127.0.0.1:9'
        require('codecompanion.http').new({ adapter = adapter:map_schema_to_params() }):request(
          { messages = { { role = 'user', content = 'Name the sea.' } } },
          { callback = function(err) _G.failed = err end }, { interaction = 'inline' })""")
    wait_for(lambda: editor.lua("return _G.failed ~= nil"), "the failure")
    editor.lua("""
        local adapter = require('codecompanion.adapters').resolve('mine')
        local made = require('codecompanion.interactions.background').new({ adapter = adapter })
        made:ask({ { role = 'user', content = 'Name the sea.' } }, { method = 'sync' })""")
    wait_calls(editor, 1)
    (row,) = ask(editor, "cost/detail")["rows"]
    assert (row["category"], row["promptTokens"]) == ("background", server.received[0].prompt)


def test_a_reply_that_arrives_before_the_first_requests_reply_is_recorded_for_its_own_request(
    begin: Callable[..., Any],
) -> None:
    """The first of two requests with the same adapter is sent before our hooks are installed."""
    plugin = of_class(Inline, CODECOMPANION, open="", session="return ''")
    editor, server, _ = begin(plugin)
    editor.lua("""
        local adapter = require('codecompanion.adapters').resolve('mine')
        local made = require('codecompanion.interactions.background').new({ adapter = adapter })
        made:ask({ { role = 'user', content = 'Name the sea.' } },
          { method = 'async', on_done = function() end })""")
    first = server.arrived.get(timeout=WAIT_SECONDS)
    editor.command("set nomore")
    editor.keys(":CodeCompanion Name the sea at Lisbon.<CR>")
    second = server.arrived.get(timeout=WAIT_SECONDS)
    second.answered.set()
    wait_calls(editor, 1)
    (row,) = ask(editor, "cost/detail")["rows"]
    assert (row["category"], row["promptTokens"]) == ("inline", second.prompt)
    first.answered.set()
    wait_calls(editor, 2)
    rows = {row["category"]: row for row in ask(editor, "cost/detail")["rows"]}
    assert rows["background"]["promptTokens"] == first.prompt
    editor.errors_expected = True  # E31: the plugin removes a mapping that does not exist


def test_copilotchat_resources_are_counted(begin: Callable[..., Any]) -> None:
    """`#file` and `#buffer` add text to the current prompt only."""
    editor, server, session = begin(COPILOTCHAT)
    editor.write("notes.md", "# Notes of the file\n\n" + LINE * 40)
    editor.lua("""
      local buf = vim.fn.bufadd(vim.fn.getcwd() .. '/other.md')
      vim.fn.bufload(buf)
      vim.api.nvim_buf_set_lines(buf, 0, -1, false, { '# Notes of the buffer', ... })
      vim.bo[buf].buflisted = true
      _G.other = buf""", LINE * 30)  # fmt: skip
    prompts = ("#file:notes.md", f"#buffer:{editor.lua('return _G.other')}", "")
    for number, resource in enumerate(prompts):
        editor.lua(COPILOTCHAT.submit, f"{resource}\n{WEATHER.format(number)}")
        for _ in range(2):
            received = server.arrived.get(timeout=WAIT_SECONDS)
            within_one_percent(editor, session, received)
            received.answered.set()
        right = sent_back(received)
        wait_tokens(editor, session, right.__eq__, str(right))
        wait_for(lambda: editor.lua(COPILOTCHAT.idle), "the end of the reply")
    sent = ["\n".join(map(str, request.body["messages"])) for request in server.received]
    assert ["Notes of the file" in each for each in sent] == [True] * 2 + [False] * 4
    assert ["Notes of the buffer" in each for each in sent] == [False] * 2 + [True] * 2 + [
        False
    ] * 2


def hint(editor: Editor) -> None:
    """Trigger the events that avante handles when the user starts to type."""
    editor.lua("require('avante').get():show_input_hint()")


def test_avante_compaction_is_followed(begin: Callable[..., Any]) -> None:
    """`/compact` replaces the conversation with a summary. The summary call is also billed."""
    editor, server, session = begin(of_class(Summarizing, AVANTE), waits=False)
    for part in range(2):
        say(editor, AVANTE, server, part)
    full = sent_back(server.received[-1])
    wait_tokens(editor, session, full.__eq__, str(full))
    editor.lua(AVANTE.submit, "/compact")
    wait_for(
        lambda: editor.lua("return require('avante').get().chat_history.memory ~= nil"), "a summary"
    )
    editor.lua("require('avante').get().token_count = nil")
    hint(editor)
    empty = wait_tokens(editor, session, lambda known: known < full - 100, "a smaller context")
    wait_calls(editor, 5)
    rows = {row["category"]: row for row in ask(editor, "cost/detail")["rows"]}
    assert rows["other"]["promptTokens"] == server.received[4].prompt
    goes_on(editor, server, session)
    assert SUMMARY in str(server.received[5].body["messages"])
    assert server.received[5].prompt > empty


def goes_on(editor: Editor, server: ModelServer, session: str) -> None:
    """Send another prompt, and check the counts before and after its replies."""
    server.waits = True
    while not server.arrived.empty():
        server.arrived.get()
    converse(editor, AVANTE, server, session, 7)


def test_messages_compacted_by_avante_are_not_counted(begin: Callable[..., Any]) -> None:
    editor, server, session = begin(AVANTE, waits=False)
    for part in range(2):
        say(editor, AVANTE, server, part)
    full = sent_back(server.received[-1])
    wait_tokens(editor, session, full.__eq__, str(full))
    editor.lua("""
      local sidebar = require('avante').get()
      for _, message in ipairs(sidebar.chat_history.messages) do message.is_compacted = true end
      sidebar.token_count = nil""")
    hint(editor)
    wait_tokens(editor, session, lambda known: known < full - 100, "a smaller context")
    goes_on(editor, server, session)
    assert len(server.received[4].body["messages"]) < len(server.received[2].body["messages"])


def project(folder: Path, name: str) -> Path:
    """Create a project folder with a file."""
    at = folder / name
    (at / ".git").mkdir(parents=True)
    (at / "b.md").write_text("Hello, world!\n")
    return at


def test_two_avante_projects_are_two_sessions(begin: Callable[..., Any], tmp_path: Path) -> None:
    """A chat in one project has the same file name as a chat in the other."""
    editor, server, first = begin(AVANTE, waits=False)
    say(editor, AVANTE, server, 0)
    right = sent_back(server.received[1])
    wait_tokens(editor, first, right.__eq__, str(right))
    name = "return require('avante').get().chat_history.filename"
    called = editor.lua(name)
    editor.command(f"tabedit {project(tmp_path, 'another') / 'b.md'}")
    editor.lua(AVANTE.open)
    assert editor.lua(name) == called
    second = editor.lua(AVANTE.session)
    assert second != first
    say(editor, AVANTE, server, 1)
    other = sent_back(server.received[3])
    wait_tokens(editor, second, other.__eq__, str(other))
    assert len(server.received[2].body["messages"]) <= len(server.received[0].body["messages"])
    assert tokens(editor, first) == right


COUNTED = """
_G.turns, _G.encoded = 0, 0
local client = require('token_sidecar.server').clients()[1]
local request = client.request
client.request = function(self, method, params, ...)
  _G.turns = _G.turns + #(params.turns or {})
  _G.encoded = _G.encoded + #vim.json.encode(params)
  return request(self, method, params, ...)
end"""


@EACH
def test_an_event_in_a_long_chat_encodes_only_new_messages(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, _ = begin(plugin, waits=False)
    editor.lua(plugin.fill, MESSAGES, LINE)
    say(editor, plugin, server, 0)
    held = len(server.received[-1].body["messages"])
    assert held > MESSAGES
    editor.lua(COUNTED)
    for part in (1, 2):
        say(editor, plugin, server, part)
    wait_calls(editor, 6)
    new = len(server.received[-1].body["messages"]) - held
    turns, encoded = editor.lua("return { _G.turns, _G.encoded }")
    assert new <= turns + 1
    assert turns <= new + 1, "only new messages are sent"
    assert encoded < MESSAGES * len(LINE) / 2


def test_avante_builds_its_prompts_once_per_count(begin: Callable[..., Any]) -> None:
    """A count needs the whole prompt, and building it takes milliseconds in a long chat."""
    before = """
      local llm = require('avante.llm')
      local generate = llm.generate_prompts
      _G.made = 0
      llm.generate_prompts = function(opts)
        _G.made = _G.made + 1
        return generate(opts)
      end"""
    editor, _, session = begin(AVANTE, waits=False, before=before)
    wait_for(lambda: tokens(editor, session), "the chat")
    made = editor.lua("return _G.made")
    editor.lua("require('avante').get().token_count = nil")
    hint(editor)
    assert editor.lua("return _G.made") == made + 1


REQUEST = """
  require('token_sidecar.integrations.chats').request({
    session = 's', lines = {}, body = { model = 'gpt-4o', messages = ... } })"""


def test_messages_are_counted_once_after_a_refused_request(editor: Editor) -> None:
    editor.edit("a.md", "Hello, world!\n", tokens=4)

    def turns() -> Any:
        return ask(editor, "context/usage", {"session": "s"}).get("turns")

    first = {"role": "user", "content": "Hello"}
    editor.lua(REQUEST, [first])
    wait_for(lambda: turns() == 1, "the first message")
    answered = """
      local client = require('token_sidecar.server').clients()[1]
      return not vim.iter(pairs(client.requests)):any(function(_, it) return it.type == 'pending' end)"""
    editor.lua(REQUEST, [first, {"role": "user", "content": 5}])
    wait_for(lambda: editor.lua(answered), "the refusal")
    assert turns() == 1
    editor.lua(REQUEST, [first, {"role": "assistant", "content": "Hi"}])
    wait_for(lambda: editor.lua(answered), "the answer")
    assert turns() == 2
