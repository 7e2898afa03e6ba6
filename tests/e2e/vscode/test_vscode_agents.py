"""Tests a real VS Code in a folder where Claude Code and Codex are working."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from benchmarks.agents.claude import MODEL, ClaudeHome, Transcript
from benchmarks.agents.codex import CodexHome
from sidecar.cost.ledger_events import Buckets
from sidecar.cost.prices import Prices
from sidecar.models.window import Limit
from sidecar.models.window import Window as ModelWindow
from sidecar.text.printable import usd_text
from tests.e2e.page_audit import WIDTHS, assert_sound, audit
from tests.e2e.stdio.agents_session import begin_now
from tests.e2e.vscode.harness import CONTEXT, REPORT, CodeServer, Window, wait_for

VIEW = "page.locator('.pane', {has: page.locator('.title', {hasText: /^Sessions$/i})})"
"""JavaScript locator for the session tree pane."""
PICKED = "page.locator('.quick-input-list-entry')"
ROW = (
    f"{VIEW}.locator('.monaco-list-row')"
    ".filter({hasText: args[0]}).filter({hasText: args[1]}).first()"
)
SEEDS = itertools.count(1)


class Agents:
    """The agents' folders in the VS Code server's home folder, and the numbers to expect."""

    def __init__(self, server: CodeServer) -> None:
        # the ids depend on the seed, and must be new because the server's ledger outlives a test
        self.claude = ClaudeHome(server.home / ".claude", seed=next(SEEDS))
        self.codex = CodexHome(server.home / ".codex", seed=next(SEEDS))
        begin_now(self.claude.clock)

    def cost(self, session: Transcript | None = None) -> Decimal:
        """Return the expected cost of all Claude calls or of one session, in USD."""
        prices = Prices()
        costs = [
            prices.price(
                Buckets(
                    input=tokens.fresh,
                    cache_read=tokens.read,
                    cache_write_5m=tokens.write - tokens.write_1h,
                    cache_write_1h=tokens.write_1h,
                    output=tokens.output,
                ),
                MODEL,
                "anthropic",
            )
            for id_, tokens in self.claude.truth.calls.values()
            if session is None or id_ == session.id
        ]
        assert None not in costs
        return sum(filter(None, costs), Decimal(0))


@pytest.fixture(scope="module")
def installed_agents(code_server: CodeServer) -> Agents:
    return Agents(code_server)


@pytest.fixture
def agents(installed_agents: Agents) -> Agents:
    """The agents, with clocks that make new sessions newer than those of earlier tests."""
    clocks = installed_agents.claude.clock, installed_agents.codex.clock
    latest = max(clock.now for clock in clocks)
    for clock in clocks:
        clock.now = latest
    return installed_agents


def reply(session: Transcript, more: int = 30_000) -> None:
    """Append a turn whose prompt has `more` more tokens than the previous prompt."""
    session.user()
    session.cached += more
    session.reply()


def share(window: Window, session: str, tokens: int | None) -> str:
    """Format a percentage of the usable window, such as `43 %`."""
    rows: list[dict[str, Any]] = []

    def has_window() -> bool:
        listed = window.ask("context/sessions", all=True)
        # a session's window is unknown until its first reply has been read
        rows[:] = [row for row in listed if row["id"] == session and row["limit"]]
        return bool(rows)

    wait_for(has_window, "the session and its window")
    assert tokens is not None
    percent = ModelWindow(Limit(rows[0]["limit"], "transcript"), 500).percent(tokens)
    return f"{percent} %"


def without_cache(status: str | None) -> str:
    return re.sub(r" · (cache until|cold: ).*", "", status or "")


def wait_shown(window: Window, text: str) -> None:
    """Wait until the status bar item's text ends with this text, except for the cache's state."""
    wait_for(
        lambda: without_cache(window.status()).endswith(text),
        lambda: f"{text!r} in the status bar: {window.status()!r}",
    )


def wait_row(window: Window, *parts: str) -> None:
    """Wait until a row in the session tree contains all of these texts."""

    def is_there() -> bool:
        return any(all(part in text for part in parts) for text in window.sessions())

    wait_for(is_there, lambda: f"{parts} in one row of {window.sessions()}")


def wait_context(window: Window, *parts: str) -> None:
    """Wait until the context view contains all of these strings."""
    wait_for(
        lambda: all(part in window.context() for part in parts),
        lambda: f"{parts} in {window.context()!r}",
    )


def type_words(window: Window, words: str) -> None:
    window.focus()
    window.page("await page.keyboard.type(args[0], {delay: 15})", words)


@pytest.fixture
def working(module_window: Window) -> Window:
    """A window with a document, and a context view that is tall enough for its rows."""
    window = module_window
    window.tidy()
    window.show("notes.md", "# Notes\n")
    wait_for(lambda: "tokens" in (window.status() or ""), "the count")
    window.host("await vscode.commands.executeCommand('tokenSidecar.contextUsage')")
    return window


def share_of(window: Window, codex: CodexHome, thread: str) -> Callable[[], str]:
    """Return a function that returns how much of a thread's window is used, as a percentage."""

    def now() -> str:
        tokens, limit = codex.truth.context[thread], codex.truth.window[thread]
        assert tokens is not None
        assert limit is not None
        return f"{ModelWindow(Limit(limit, 'transcript'), 500).percent(tokens)} %"

    wait_for(
        lambda: any(row["id"] == thread for row in window.ask("context/sessions")), "the thread"
    )
    return now


def test_growing_sessions_are_shown_while_the_user_types(working: Window, agents: Agents) -> None:
    window, claude = working, agents.claude
    session = claude.session(window.root)
    reply(session)
    wait_for(lambda: "$" in (window.status() or ""), "the cost, without a request")
    for step in range(4):
        percent = share(window, session.id, claude.truth.context[session.id])
        wait_shown(window, f" · ctx {percent} · {usd_text(agents.cost(session))}")
        wait_row(window, "claude-code", percent, usd_text(agents.cost(session)), "opus-5")
        wait_context(window, f"{claude.truth.context[session.id]:,} of", percent)
        type_words(window, f"some words of step {step} ")
        reply(session)
    percent = share(window, session.id, claude.truth.context[session.id])
    wait_shown(window, f" · ctx {percent} · {usd_text(agents.cost(session))}")
    text = window.host("return vscode.window.activeTextEditor.document.getText()")
    assert "step 3" in text
    counted = window.ask("tokens/count", text=text)["tokens"]
    assert f"{counted:,} tokens" in (window.status() or "")

    session.compact()
    wait_for(lambda: " · ctx ? · " in (window.status() or ""), window.status)
    wait_row(window, "claude-code", "the new size appears with the next turn")
    reply(session)
    percent = share(window, session.id, claude.truth.context[session.id])
    wait_shown(window, f" · ctx {percent} · {usd_text(agents.cost(session))}")


def test_another_session_can_be_selected_and_deselected(working: Window, agents: Agents) -> None:
    window, claude, codex = working, agents.claude, agents.codex
    session = claude.session(window.root)
    reply(session, 90_000)
    codex.clock.now = claude.clock.now
    thread = codex.thread(window.root)
    thread.begin_turn()
    thread.call()
    newest = share_of(window, codex, thread.id)
    wait_for(lambda: f" · ctx {newest()} · " in (window.status() or ""), window.status)
    wait_row(window, "codex", newest())
    first = share(window, session.id, claude.truth.context[session.id])
    wait_row(window, "claude-code", first)

    window.page(f"await {ROW}.click()", "claude-code", first)
    wait_shown(window, f" · ctx {first} · {usd_text(agents.cost(session))}")
    wait_row(window, "claude-code", "pinned")
    thread.call()
    type_words(window, "while another one grows ")
    wait_row(window, "codex", newest())
    reply(session, 40_000)
    first = share(window, session.id, claude.truth.context[session.id])
    wait_shown(window, f" · ctx {first} · {usd_text(agents.cost(session))}")
    wait_context(window, usd_text(agents.cost(session)), "What comes next")
    wait_row(window, "codex", newest(), "$")
    window.screenshot("sessions-dark")
    window.page("await page.emulateMedia({colorScheme: 'light'})")
    window.screenshot("sessions-light")

    window.host("void vscode.commands.executeCommand('tokenSidecar.sessions')")
    window.page(f"await {PICKED}.first().waitFor()")
    window.screenshot("session-picker")
    listed = window.page(f"return await {PICKED}.allInnerTexts()")
    assert [row for row in listed if "shown" in row] == [
        row for row in listed if "claude-code" in row and first in row
    ]
    assert any("codex" in row and newest() in row for row in listed)
    window.host("await vscode.commands.executeCommand('workbench.action.closeQuickOpen')")

    button = "[aria-label*='Show Newest Session']"
    window.page(
        f"const row = {ROW}; await row.hover(); await row.locator(args[2]).click()",
        "claude-code",
        first,
        button,
    )
    thread.call()
    wait_for(lambda: f" · ctx {newest()} · " in (window.status() or ""), window.status)
    assert not any(row["pinned"] for row in window.ask("context/sessions"))


def test_sessions_are_sorted_and_reported(working: Window, agents: Agents) -> None:
    window, claude = working, agents.claude
    large, small = claude.session(window.root), claude.session(window.root)
    reply(large, 90_000)
    reply(small, 10_000)
    for each in (large, small):
        wait_row(window, share(window, each.id, claude.truth.context[each.id]), "$")
    window.host("void vscode.commands.executeCommand('tokenSidecar.sortSessions')")
    window.page("await page.locator('.quick-input-list-entry', {hasText: 'Context'}).click()")

    def shares() -> list[int]:
        return [int(re.findall(r"^(\d+) % · \$", row)[0]) for row in window.sessions()]

    wait_for(lambda: shares() == sorted(shares(), reverse=True), lambda: str(window.sessions()))
    window.host("await vscode.commands.executeCommand('tokenSidecar.sessionReport')")
    wait_for(lambda: "By session" in window.frame_text(REPORT), "the costs by session")
    assert "main · " in window.frame_text(REPORT)


def test_context_and_cost_are_shown_while_another_tab_is_active(
    working: Window, agents: Agents
) -> None:
    window, session = working, agents.claude.session(working.root)

    def context() -> str:
        percent = share(window, session.id, agents.claude.truth.context[session.id])
        return f"ctx {percent} · {usd_text(agents.cost(session))}"

    def open_tab(uri: str) -> None:
        # A preview tab would replace another one. `showTextDocument` keeps documents open for minutes.
        window.host(
            "const uri = vscode.Uri.parse(args[0]);"
            "await vscode.commands.executeCommand('vscode.open', uri, {preview: false})",
            uri,
        )

    def show_report() -> None:
        window.host("await vscode.commands.executeCommand('tokenSidecar.costReport')")
        wait_for(
            lambda: without_cache(window.status()) == context(),
            lambda: f"{context()}: {window.status()}",
        )

    reply(session)
    wait_shown(window, f" · {context()}")
    window.host("await vscode.commands.executeCommand('tokenSidecar.costReport')")
    window.host("await vscode.commands.executeCommand('workbench.action.joinAllGroups')")
    show_report()

    window.host(
        "const provider = {provideTextDocumentContent: () => 'A text'};"
        "vscode.workspace.registerTextDocumentContentProvider('uncounted', provider)"
    )
    open_tab("uncounted:a.md")
    wait_for(lambda: window.status() is None, "no status for a document that is not counted")
    show_report()

    last = window.root / "last.md"
    last.write_text("# Last\n")
    for path in (window.root / "notes.md", last):
        open_tab(path.as_uri())
        wait_shown(window, f" · {context()}")
    show_report()
    window.host(
        "const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs);"
        "await vscode.window.tabGroups.close(tabs.filter((tab) => tab.label === args[0]))",
        last.name,
    )
    names = "return vscode.workspace.textDocuments.map((each) => each.fileName)"
    wait_for(lambda: str(last) not in window.host(names), lambda: str(window.host(names)), 20)
    reply(session)
    show_report()


def test_only_ended_sessions_are_hidden(working: Window, agents: Agents) -> None:
    window, claude = working, agents.claude
    now = claude.clock.now
    claude.clock.now = now - timedelta(days=3)
    ended = claude.session(window.root)
    reply(ended, 50_000)
    claude.clock.now = now
    idle = claude.session(window.root)
    reply(idle, 150_000)  # no other row has its share

    def listed() -> list[str]:
        # A row contains an age, which changes during the test.
        return sorted(re.sub(r"just now|\d+ (min|h) ago", "", row) for row in window.sessions())

    wait_row(window, "3 days", "$")
    wait_row(window, share(window, idle.id, claude.truth.context[idle.id]), "$")
    states = {row["id"]: row["state"] for row in window.ask("context/sessions", all=True)}
    assert [id_ for id_, state in states.items() if state == "ended"] == [ended.id]
    before = listed()
    (hidden,) = [row for row in before if "3 days" in row]
    assert len(before) > 1
    window.host("await vscode.commands.executeCommand('tokenSidecar.hideEndedSessions')")
    others = [row for row in before if row != hidden]
    wait_for(lambda: listed() == others, lambda: f"{others}; shown: {listed()}")
    window.host("await vscode.commands.executeCommand('tokenSidecar.showEndedSessions')")
    wait_for(lambda: listed() == before, lambda: f"{before}; shown: {listed()}")


def test_the_views_are_sound_in_every_theme_and_width(working: Window, agents: Agents) -> None:
    window, claude = working, agents.claude
    session = claude.session(window.root)
    for _ in range(5):
        reply(session, 9_000)
    wait_context(window, "What comes next", "Free")
    for theme in window.themes():
        for width in WIDTHS:
            window.page("await page.setViewportSize({width: args[0], height: 800})", width)
            wait_context(window, "Free")
            assert_sound(audit(window.browser, CONTEXT))
            window.screenshot(f"views-{theme}-{width}")
    window.page("await page.setViewportSize({width: 1100, height: 650})")
