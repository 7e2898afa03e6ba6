"""Runs conversations in a chat plugin, and compares our counts with the model server's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.neovim.chat_plugins import ALL, SMALL, ChatPlugin
from tests.e2e.neovim.harness import WAIT_SECONDS, Editor, wait_for
from tests.model_server import ModelServer, Received

EACH = pytest.mark.parametrize("plugin", ALL, ids=lambda plugin: plugin.name)
EACH_SMALL = pytest.mark.parametrize("plugin", SMALL, ids=lambda plugin: plugin.name)
USUAL_SMALL = pytest.mark.parametrize(
    "plugin",
    [SMALL[0], *(pytest.param(plugin, marks=pytest.mark.slow) for plugin in SMALL[1:])],
    ids=lambda plugin: plugin.name,
)
"""One plugin, for behavior of `chats.lua`, which all plugins share."""
WEATHER = "What is the weather in Lisbon, and is it a good day for a walk by the sea, part {}?"


def ask(editor: Editor, method: str, params: dict[str, Any] | None = None) -> Any:
    """Send a request to our server, and return the result."""
    answer = editor.lua(
        "return require('token_sidecar.server').clients()[1]:request_sync(...)",
        method, params or {"workspace": None}, 60000,
    )  # fmt: skip
    return answer["result"]


def tokens(editor: Editor, session: str) -> int | None:
    known = ask(editor, "context/usage", {"session": session}).get("tokens")
    return None if known is None else int(known)


def wait_calls(editor: Editor, number: int) -> None:
    """Wait until the ledger contains this number of calls."""
    wait_for(lambda: ask(editor, "cost/detail")["totals"]["calls"] == number, f"{number} calls")


def wait_tokens(editor: Editor, session: str, right: Callable[[int], bool], what: str) -> int:
    """Wait until a session's token count satisfies a condition, and return the count."""
    seen: list[int | None] = [None]

    def look() -> bool:
        seen[0] = tokens(editor, session)
        return seen[0] is not None and right(seen[0])

    wait_for(look, lambda: f"{what}, not {seen[0]}; {editor.describe()}")
    assert seen[0] is not None
    return seen[0]


def within_one_percent(editor: Editor, session: str, received: Received) -> int:
    """Wait until the whole pending prompt is counted, and check that the error is at most 1 %."""
    messages = received.body["messages"]
    turns = messages[1:] if messages[0]["role"] == "system" else messages
    usage: dict[str, Any] = {}

    def look() -> bool:
        usage.update(ask(editor, "context/usage", {"session": session}))
        return usage.get("turns") == len(turns)

    wait_for(look, lambda: f"{len(turns)} turns, not {usage}; {editor.describe()}")
    known = int(usage["tokens"])
    assert abs(known - received.prompt) <= received.prompt / 100, (known, received.prompt)
    return known


def sent_back(received: Received) -> int:
    """Return how many tokens of a request and its reply are repeated in the next request."""
    return received.prompt + received.output - received.reasoning


def converse(
    editor: Editor, plugin: ChatPlugin, server: ModelServer, session: str, part: int
) -> None:
    """Send a prompt that triggers a tool call, and check the counts before and after the replies.

    The plugin sends two requests. Each is printed as a table row that shows how many tokens the
    model server received, and our count. The second row also shows how many tokens the next request
    will repeat, our count of these tokens, and the plugin's own number. The first row lacks these
    numbers, because the plugin sends the second request immediately after the tool call.
    """
    editor.lua(plugin.submit, WEATHER.format(part))
    for number in (1, 2):
        received = server.arrived.get(timeout=WAIT_SECONDS)
        before = within_one_percent(editor, session, received)
        received.answered.set()
        line = f"| {plugin.name} | {2 * part + number} | {received.prompt:,} | {before:,} |"
        print(f"{line} | | |" if number == 1 else line, end="\n" if number == 1 else "")
    after = wait_tokens(editor, session, sent_back(received).__eq__, str(sent_back(received)))
    wait_for(lambda: editor.lua(plugin.idle), "the end of the reply")
    shown = wait_for(lambda: editor.lua(plugin.display), "the plugin's own number")
    print(f" {sent_back(received):,} | {after:,} | {shown:,} |")


def say(editor: Editor, plugin: ChatPlugin, server: ModelServer, part: int) -> None:
    """Send a prompt that causes a tool call, and wait for the end of the reply."""
    editor.lua(plugin.submit, WEATHER.format(part))
    wait_for(lambda: len(server.received) == 2 * part + 2, "both requests")
    wait_for(lambda: editor.lua(plugin.idle), "the end of the reply")
