"""Tests that the server shows agents' sessions and records their calls."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import MODEL, ClaudeHome, everyday
from benchmarks.agents.gemini import GeminiHome
from sidecar.agents import session_index
from sidecar.agents.reader_registry import Sources
from sidecar.agents.session_events import Store, StoredSession
from sidecar.agents.session_index import LOCK_NAME, SessionIndex
from sidecar.budgets.check_report import ReportedFinding
from sidecar.budgets.findings import Finding
from sidecar.cli import main
from sidecar.config.paths import config_file, state_dir
from sidecar.config.safe_files import make_folder
from sidecar.cost.context_costs import SessionCost
from sidecar.counting.tokenizer_interface import Tokenizer
from sidecar.server.features import configuration
from sidecar.server.features.status_updates import StatusUpdates
from sidecar.text.printable import local_time_text, usd_text
from sidecar.workspace import agent_sessions, sessions
from sidecar.workspace.check_paths import check_paths as run
from sidecar.workspace.services import Services
from sidecar.workspace.sessions import Session
from sidecar.workspace.spending import Spending
from tests.file_opens import recorded_opens
from tests.protocol.client import Client, RpcError, until


@pytest.fixture
def home(tmp_path: Path) -> ClaudeHome:
    made = ClaudeHome(tmp_path / "home" / ".claude")
    made.clock.now = datetime.now(UTC) - timedelta(minutes=50)
    return made


async def test_costs_are_recorded_while_the_user_is_idle(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_sessions, "IDLE_SECONDS", 0.05)
    session = everyday(home, tmp_path)
    await bare.initialize(tmp_path.as_uri())
    shown = await bare.take("status/update", lambda status: bool(status["cost"]))
    assert shown["cost"]["costUsd"] > 0
    bare.ignore("status/update", "context/warning")
    rows = (await bare.request("cost/detail", {"by": ["session"]}))["rows"]
    assert {row["session"] for row in rows} == {session.id}
    assert sum(row["calls"] for row in rows) == len(home.truth.calls)


async def test_costs_are_lower_bounds_until_all_session_files_are_read(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest files are read first. Meanwhile, another process reads the others."""
    monkeypatch.setattr(agent_sessions, "RETRY_SECONDS", 0.05)
    session = home.session(tmp_path)
    session.user()
    session.reply()
    session.subagent()
    (unread,) = (home.folder / "projects").rglob("agent-*.jsonl")
    at = datetime.now(UTC) - timedelta(days=3)
    os.utime(unread, (at.timestamp(), at.timestamp()))
    make_folder(state_dir())
    with closing(sqlite3.connect(state_dir() / LOCK_NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        await bare.initialize(tmp_path.as_uri())
        early = await bare.take("status/update", lambda one: bool(one["cost"]))
        assert early["cost"]["text"].startswith("≥$")
        (row,) = await bare.request("context/sessions", {})
        assert "≥$" in row["text"]
        assert calls_in_the_ledger() == 1
        note = (await bare.request("cost/detail", {}))["note"]
        assert note.endswith(f"calls before {local_time_text(at)} may be missing.")
    shown = await bare.take("status/update", costs_more_than(early))
    assert shown["cost"]["text"].startswith("$")
    bare.ignore("status/update", "context/warning")
    assert calls_in_the_ledger() == len(home.truth.calls)
    usage = await bare.request("context/usage", {})
    assert usage["costUsd"] == pytest.approx(shown["cost"]["costUsd"])
    assert f" {usd_text(usage['costUsd'])}" in usage["text"]
    (row,) = await bare.request("context/sessions", {"all": True})
    assert (row["shown"], row["pinned"]) == (True, False)
    assert f" {usd_text(usage['costUsd'])} " in row["detail"]
    assert (await bare.request("cost/detail", {}))["note"] == ""


async def test_costs_of_hidden_sessions_are_updated(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    """The session list shows up-to-date costs, even for sessions that are not pinned."""
    other, pinned = home.session(tmp_path), home.session(tmp_path)
    for session in (other, pinned):
        session.user()
        session.reply()
    await start_and_read(bare, tmp_path)
    await bare.request("context/select", {"session": pinned.id})
    await wait_for_first_reading(bare)

    async def costs() -> dict[str, str]:
        rows = (await bare.request("cost/detail", {"by": ["session"]}))["rows"]
        return {row["session"]: usd_text(row["costUsd"]) for row in rows}

    before = await costs()
    other.user()
    other.cached += 90_000
    other.reply()
    async with asyncio.timeout(20):
        is_shown = False
        while not is_shown:
            await asyncio.sleep(0.05)
            after = (await costs())[other.id]  # grows with each line of the reply
            rows = await bare.request("context/sessions", {"all": True})
            is_new = after != before[other.id]
            is_shown = is_new and any(f" {after} " in row["detail"] for row in rows)
    assert {row["id"] for row in rows if row["shown"]} == {pinned.id}


async def test_calls_of_agents_that_delete_sessions_are_recorded_at_once(
    bare: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemini CLI may delete a session the next time it starts."""
    monkeypatch.setattr(agent_sessions, "SHOWN_SECONDS", 1_000.0)
    monkeypatch.setattr(agent_sessions, "IDLE_SECONDS", 1_000.0)
    gemini = GeminiHome(tmp_path / "home" / ".gemini")
    gemini.clock.now = datetime.now(UTC) - timedelta(minutes=50)
    session = gemini.session(tmp_path)
    session.user()
    session.reply()
    await bare.initialize(tmp_path.as_uri())
    await bare.take("status/update", lambda status: bool(status["context"]))
    bare.ignore("status/update", "context/warning")
    session.path.unlink()
    assert calls_in_the_ledger() == len(gemini.truth.calls) == 1


async def test_a_request_does_not_wait_for_background_reads_in_the_queue(bare: Client) -> None:
    """There is one such read for each root, and one for the other workspaces."""
    watcher = bare.server.agent_sessions

    async def read_until_stopped() -> None:
        async with watcher._wait_for_turn(is_background=True) as stop:
            while not stop.is_set():
                await asyncio.sleep(0.01)

    reads = [asyncio.create_task(read_until_stopped()) for _ in range(3)]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(10), watcher._wait_for_turn(is_background=False) as stop:
        assert not stop.is_set()
    await asyncio.gather(*reads)


def calls_in_the_ledger() -> int:
    with closing(sqlite3.connect(state_dir() / "ledger.db")) as ledger:
        return int(ledger.execute("SELECT count(*) FROM event").fetchone()[0])


async def test_background_recording_can_be_cancelled_and_resumed(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requested workspace's calls are recorded before other workspaces' calls."""
    monkeypatch.setattr(agent_sessions, "PAUSE_RATIO", 1_000.0)
    monkeypatch.setattr(session_index, "_CALLS_AT_ONCE", 20)
    root, *others = [tmp_path / f"root-{number}" for number in range(12)]
    root.mkdir()
    everyday(home, root)
    mine = len(home.truth.calls)
    for other in others:
        other.mkdir()
        everyday(home, other)
    bare.ignore("status/update", "context/warning")
    bare.answer("window/workDoneProgress/create", lambda _: None)
    await bare.initialize(root.as_uri(), capabilities={"window": {"workDoneProgress": True}})
    rows = (await bare.request("cost/detail", {"by": ["session"]}))["rows"]
    assert sum(row["calls"] for row in rows) == mine
    title = "Reading agents' sessions"
    begun = await bare.take("$/progress", lambda one: one["value"].get("title") == title)
    assert begun["value"]["cancellable"]
    ended = {"token": begun["token"], "value": {"kind": "end"}}
    bare.notify("window/workDoneProgress/cancel", {"token": begun["token"]})
    await bare.take("$/progress", lambda one: one == ended)
    bare.ignore("$/progress")
    assert mine <= calls_in_the_ledger() < len(home.truth.calls)
    monkeypatch.setattr(agent_sessions, "PAUSE_RATIO", 0.0)
    await bare.request("cost/detail", {})
    await until(lambda: calls_in_the_ledger() == len(home.truth.calls))


async def test_a_session_is_shown_before_a_tokenizer_is_loaded(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading a tokenizer blocks all threads. Showing an agent's session needs no tokenizer."""
    monkeypatch.setattr(configuration, "SESSIONS_SECONDS", 60.0)
    session = home.session(tmp_path)
    session.reply()
    shown: list[int | None] = []
    tokenizers = Services.tokenizers

    def watched(services: Services) -> list[Tokenizer]:
        shown.extend(
            root.context.usage.tokens if root.context.usage else None for root in services.roots
        )
        return tokenizers(services)

    monkeypatch.setattr(Services, "tokenizers", watched)
    await bare.initialize(tmp_path.as_uri())
    await bare.request("tokens/count", {"text": "any"})
    assert shown[0] == home.truth.context[session.id]
    bare.ignore("status/update", "context/warning")


async def test_session_files_are_searched_for_once_at_the_start(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings are published again after prices are loaded, which says nothing about files."""
    bare.server.watcher.start_seconds = 3600
    searches, stores = list[threading.Thread](), Sources.stores

    def recorded(sources: Sources, **options: Any) -> list[Store]:
        searches.append(threading.current_thread())
        return stores(sources, **options)

    monkeypatch.setattr(Sources, "stores", recorded)
    home.session(tmp_path).reply()
    await start_and_read(bare, tmp_path)
    assert len(searches) == 2, "for the newest session, and then for the others"
    assert threading.main_thread() not in searches


async def test_session_found_by_a_request_is_shown(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    """A request for all sessions may find a session before the file watcher does."""
    bare.server.watcher.start_seconds = 3600
    await bare.initialize(tmp_path.as_uri())
    assert await bare.request("context/sessions", {"all": True}) == []
    session = home.session(tmp_path)
    session.reply()
    assert len(await bare.request("context/sessions", {"all": True})) == 1
    status = await bare.take("status/update", lambda status: bool(status["context"]))
    assert status["context"]["tokens"] == home.truth.context[session.id]
    bare.ignore("status/update", "context/warning")


def old_sessions(home: ClaudeHome, root: Path) -> list[str]:
    """Create two sessions, six and three days old, and return their IDs.

    The server watches only the newer session.
    """
    names = []
    for days in (6, 3):
        home.clock.now = datetime.now(UTC) - timedelta(days=days)
        session = home.session(root)
        session.user()
        session.reply()
        at = home.clock.now.timestamp()
        os.utime(session.path, (at, at))
        names.append(session.id)
    return names


async def test_old_session_can_be_queried_and_selected(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    old, _ = old_sessions(home, tmp_path)
    await bare.initialize(tmp_path.as_uri(), ignored=("context/warning",))
    rows = await bare.request("context/sessions", {"all": True})
    row = next(one for one in rows if one["id"] == old)
    assert not row["shown"]
    usage = await bare.request("context/usage", {"session": old})
    assert (usage["session"]["id"], usage["tokens"]) == (old, home.truth.context[old])
    assert usage["percent"] == row["percent"]
    chosen = await bare.request("context/select", {"session": old})
    assert (chosen["session"]["id"], chosen["tokens"]) == (old, home.truth.context[old])
    shown = await bare.take("status/update", lambda status: bool(status["context"]))
    assert shown["context"]["tokens"] == home.truth.context[old]
    rows = await bare.request("context/sessions", {"all": True})
    assert [(one["id"], one["pinned"]) for one in rows if one["shown"]] == [(old, True)]
    bare.ignore("status/update")
    with pytest.raises(RpcError, match="belongs to a coding agent"):
        await bare.request("context/append", {"session": old, "turns": [{"role": "user"}]})
    await bare.request("context/select", {"session": None})
    rows = await bare.request("context/sessions", {"all": True})
    assert not any(one["shown"] or one["pinned"] for one in rows)
    with pytest.raises(RpcError, match="no such session"):
        await bare.request("context/select", {"session": "nobody's"})


async def test_rows_and_labels_are_made_on_a_worker(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing thousands of sessions on the event loop would delay typing."""
    names = old_sessions(home, tmp_path)
    await bare.initialize(tmp_path.as_uri(), ignored=("status/update", "context/warning"))
    label_of, labeled = sessions.label_of, list[tuple[str, threading.Thread]]()

    def recorded(session: Session) -> str:
        labeled.append((session.id, threading.current_thread()))
        return label_of(session)

    monkeypatch.setattr(sessions, "label_of", recorded)
    rows = await bare.request("context/sessions", {"all": True})
    assert sorted(row["id"] for row in rows) == sorted(names)
    assert all(row["label"] and row["text"] for row in rows)
    assert sorted(name for name, _ in labeled) == sorted(names)
    await bare.request("cost/page", {"period": "all", "by": "session"})
    assert {name for name, _ in labeled[len(names) :]} == set(names)
    assert threading.main_thread() not in {thread for _, thread in labeled}


async def test_first_rows_of_a_long_list_are_made_and_the_others_counted(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, replies = [], [3, 9, 1, 5, 7]
    for age, count in enumerate(replies):
        home.clock.now = datetime.now(UTC) - timedelta(days=10 + age)
        session = home.session(tmp_path)
        session.user()
        for _ in range(count):
            session.reply()
        session.write({"type": "custom-title", "customTitle": f"Session {age}"})
        os.utime(session.path, (home.clock.now.timestamp(),) * 2)
        made.append(session.id)
    await bare.initialize(tmp_path.as_uri(), ignored=("status/update", "context/warning"))
    report = await bare.request("cost/detail", {"by": ["session"]})
    by_cost = [made.index(row["session"]) for row in report["rows"]]
    rows = await bare.request("context/sessions", {"all": True})
    by_context = sorted(range(5), key=lambda age: -rows[age]["percent"])
    named, labeled = list[str](), list[str]()
    read_name, label_of = session_index.read_name, sessions.label_of

    def recorded_name(session: StoredSession, **options: Any) -> StoredSession:
        named.append(session.id)
        return read_name(session, **options)

    def recorded_label(session: Session) -> str:
        labeled.append(session.id)
        return label_of(session)

    for order, ages in (("updated", [0, 1]), ("cost", by_cost[:2]), ("context", by_context[:2])):
        with monkeypatch.context() as patch:
            patch.setattr(session_index, "read_name", recorded_name)
            patch.setattr(sessions, "label_of", recorded_label)
            params = {"all": True, "limit": 2, "order": order}
            rows = await bare.request("context/sessions", params)
        assert [row["label"] for row in rows] == [f"Session {age}" for age in ages], order
        assert [row["others"] for row in rows] == [0, 3]
        assert set(named) <= {made[age] for age in ages}, order
        assert set(labeled) <= {made[age] for age in ages}, order
        named.clear()
        labeled.clear()
    everything = await bare.request("context/sessions", {"all": True, "limit": 5})
    assert everything == await bare.request("context/sessions", {"all": True})
    assert [row["others"] for row in everything] == [0] * 5
    assert [row["costUsd"] for row in everything if row["id"] == rows[0]["id"]] == [
        rows[0]["costUsd"]
    ]
    assert await bare.request("context/sessions", {"all": True, "ended": False}) == []
    with pytest.raises(RpcError, match="limit"):
        await bare.request("context/sessions", {"limit": 0})


async def test_old_session_is_named_when_it_is_selected(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    home.clock.now = datetime.now(UTC) - timedelta(days=6)
    old = home.session(tmp_path)
    old.user()
    old.reply()
    old.write({"type": "custom-title", "customTitle": "Mend the parser"})
    os.utime(old.path, (home.clock.now.timestamp(),) * 2)
    old_sessions(home, tmp_path)
    await bare.initialize(tmp_path.as_uri(), ignored=("context/warning",))
    usage = await bare.request("context/usage", {"session": old.id})
    assert usage["session"]["label"] == "Mend the parser"
    await bare.request("context/select", {"session": old.id})
    await bare.take("status/update", lambda one: "Mend the parser" in json.dumps(one["context"]))
    await bare.request("context/sessions", {"all": True, "limit": 1})
    selected = await bare.request("context/usage", {})
    assert selected["session"]["label"] == "Mend the parser"
    bare.ignore("status/update")


async def test_costs_of_all_sessions_are_not_added_up_while_no_list_is_open(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, session = home.session(tmp_path), home.session(tmp_path)
    for each in (other, session):
        each.user()
        each.reply()
    await start_and_read(bare, tmp_path)
    before = {row["id"]: row["costUsd"] for row in await bare.request("context/sessions", {})}
    asked, cost_by_session = list[Any](), Spending.cost_by_session

    def recorded(
        spending: Spending, sessions: Iterable[str] | None = None
    ) -> dict[str, SessionCost]:
        asked.append(sessions)
        return cost_by_session(spending, sessions)

    monkeypatch.setattr(Spending, "cost_by_session", recorded)
    for each in (other, session):
        each.reply()
    async with asyncio.timeout(60):
        while (await bare.request("context/usage", {}))["costUsd"] == before[session.id]:
            await asyncio.sleep(0.05)
    assert {tuple(sessions or ()) for sessions in asked} == {(session.id,)}
    after = {row["id"]: row["costUsd"] for row in await bare.request("context/sessions", {})}
    assert all(after[name] > before[name] for name in before)


async def test_hidden_session_changes_the_revision_of_the_list(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    first = home.session(tmp_path)
    first.reply()
    home.clock.now = datetime.now(UTC) - timedelta(minutes=20)
    second = home.session(tmp_path)
    second.reply()
    await bare.initialize(tmp_path.as_uri())
    status = await bare.take("status/update", lambda status: bool(status["context"]))
    number = status["context"]["sessions"]

    def changed(status: Any) -> bool:
        return bool(status["context"]["sessions"] > number)

    await bare.request("context/select", {"session": second.id})
    number = (await bare.take("status/update", changed))["context"]["sessions"]
    home.clock.now = datetime.now(UTC) - timedelta(minutes=10)
    first.reply()
    rows: dict[str, Any] = {}
    # Other updates may come first, because the sessions are read one after another.
    while not rows or rows[first.id]["tokens"] != home.truth.context[first.id]:
        after = await bare.take("status/update", changed)
        assert after["context"]["tokens"] == home.truth.context[second.id]
        number = after["context"]["sessions"]
        rows = {row["id"]: row for row in await bare.request("context/sessions", {})}
    bare.ignore("status/update", "context/warning")
    assert (rows[second.id]["shown"], rows[second.id]["pinned"]) == (True, True)
    assert not rows[first.id]["shown"]


async def test_no_agent_file_is_opened_while_agents_are_disabled(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    config_file().write_text("[agents]\nenabled = false\n")
    everyday(home, tmp_path)
    with recorded_opens(tmp_path / "home") as opened:
        await bare.initialize(tmp_path.as_uri())
        assert (await bare.request("context/usage", {}))["session"] is None
        assert await bare.request("context/sessions", {"all": True}) == []
        assert (await bare.request("cost/detail", {}))["rows"] == []
        assert await bare.request("cost/files", {}) == []
    assert opened == []


async def test_a_late_read_shows_no_session_after_agents_are_disabled(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, read = threading.Event(), agent_sessions._read_and_list
    reads: list[list[StoredSession]] = []

    def read_late(*arguments: Any) -> Any:
        sessions, result = read(*arguments)
        reads.append(sessions)
        assert go_on.wait(10)
        return sessions, result

    monkeypatch.setattr(agent_sessions, "_read_and_list", read_late)
    everyday(home, tmp_path)
    await bare.initialize(tmp_path.as_uri())
    bare.ignore("status/update", "context/warning")
    try:
        await until(lambda: bool(reads))
        listed = asyncio.create_task(bare.request("context/sessions", {"all": True}))
        await until(lambda: len(reads) == 2)
        config_file().write_text("[agents]\nenabled = false\n")
        bare.notify("workspace/didChangeConfiguration", {"settings": None})
        roots = bare.server.services.roots
        await until(lambda: not any(root.settings.agents.enabled for root in roots))
    finally:
        go_on.set()
    assert all(reads)
    assert await listed == []
    await until(lambda: not any(key[0] == "agents" for key in bare.server.scheduler._jobs))
    assert (await bare.request("context/usage", {}))["session"] is None


def verdict(finding: Finding | ReportedFinding) -> tuple[object, ...]:
    return finding.code, finding.rule, finding.tokens, finding.over, finding.model, finding.message


async def test_agent_session_does_not_affect_budgets(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    rules = '[[budget]]\nfiles = "AGENTS.md"\nmax-tokens = 100\nwarn-at = 0.1\n'
    sections = (
        'sections = { "Notes" = 5 }\n[[budget]]\nfiles = "*.md"\nmax-tokens = 9\nsum = true\n'
    )
    (tmp_path / ".token-sidecar.toml").write_text(rules + sections)
    text = "# Notes\n" + "Überprüfung von kontextfenstern\n" * 12
    (tmp_path / "AGENTS.md").write_text(text)
    (tmp_path / "other.md").write_text("two words\n")
    everyday(home, tmp_path)
    await bare.initialize(
        tmp_path.as_uri(), ignored=("context/warning", "textDocument/publishDiagnostics")
    )
    uri = (tmp_path / "AGENTS.md").as_uri()
    bare.open(text, uri)
    await bare.take("status/update", lambda status: bool(status["context"]))
    bare.ignore("status/update")
    count = await bare.count(uri)
    assert count["model"] != MODEL, "the conversation's model"
    _, found = await bare.server.services.findings(uri)
    report, _ = run([str(tmp_path / "AGENTS.md")])
    assert len(found) == 3

    def due(job: str) -> bool:
        return any(key[0] == job for key in bare.server.scheduler._jobs)

    assert sorted(map(verdict, found)) == sorted(map(verdict, report.files[0].findings))
    sent = bare.feature(StatusUpdates)._sent[uri]
    assert sent is not None
    assert sent.document is not None
    assert sent.document.tokens == report.files[0].tokens == count["tokens"]
    await until(lambda: not any(map(due, ("settings", "catalogue", "status"))))
    sent = bare.feature(StatusUpdates)._sent[uri]
    assert sent is not None
    assert sent.document is not None
    assert "| Window | 400,000 tokens (from the model catalogue), " in sent.document.tooltip


@pytest.mark.parametrize("first", ["plugin", "file"])
async def test_call_reported_by_a_plugin_and_an_agent_counts_once(
    bare: Client, home: ClaudeHome, tmp_path: Path, first: str
) -> None:
    session = home.session(tmp_path)
    session.user()
    reply = session.reply(blocks=1)["message"]
    await bare.initialize(tmp_path.as_uri(), ignored=("status/update", "context/warning"))
    if first == "file":
        assert (await bare.request("cost/detail", {}))["totals"]["calls"] == 1
    reported = {"session": "chat", "response": reply}
    answer = await bare.request("context/response", reported)
    assert answer["usage"]["outputTokens"] == reply["usage"]["output_tokens"]
    record = {"model": reply["model"], "usage": reply["usage"], "requestId": reply["id"]}
    recorded = await bare.request("cost/record", {"provider": "anthropic", **record})
    assert recorded["duplicate"]
    totals = (await bare.request("cost/detail", {}))["totals"]
    assert (totals["calls"], totals["outputTokens"]) == (1, reply["usage"]["output_tokens"])


async def test_cost_is_updated_without_a_reported_file_name(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    """When a poll or a new folder triggers a read, no file names are reported."""
    bare.server.watcher.start_seconds = 3600
    session = home.session(tmp_path)
    session.reply()
    await bare.initialize(tmp_path.as_uri())
    first = await bare.take("status/update", lambda status: bool(status["cost"]))
    session.reply()
    bare.notify("workspace/didChangeConfiguration", {"settings": None})
    await bare.take("status/update", costs_more_than(first))
    assert calls_in_the_ledger() == len(home.truth.calls)
    bare.ignore("status/update", "context/warning")


async def test_changed_file_is_read_once_for_size_and_costs(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare.server.watcher.start_seconds = 3600
    session = home.session(tmp_path)
    session.reply()
    await bare.initialize(tmp_path.as_uri())
    before = await bare.take("status/update", lambda status: bool(status["cost"]))
    await wait_for_first_reading(bare)
    readings: list[list[str]] = []
    unread = SessionIndex.unread

    def watched(index: SessionIndex, stores: Any, *how: Any) -> Any:
        readings.append([store.path for store in stores])
        return unread(index, stores, *how)

    monkeypatch.setattr(SessionIndex, "unread", watched)
    session.reply()
    bare.server.agent_sessions._on_files_changed(frozenset({str(session.path)}))
    after = await bare.take("status/update", costs_more_than(before))
    assert after["context"]["tokens"] == home.truth.context[session.id]
    assert readings == [[str(session.path)]]
    bare.ignore("status/update", "context/warning")


async def test_calls_appended_during_recording_are_recorded(
    bare: Client, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_sessions, "SHOWN_SECONDS", 1.0)  # The files are being watched now.
    now = home.clock.now
    old_sessions(home, tmp_path)
    home.clock.now = now
    session = home.session(tmp_path)
    session.reply()
    grown, shows, read = threading.Event(), threading.Event(), session_index.read_all

    def slowly(*args: Any, **kwargs: Any) -> Any:
        result = read(*args, **kwargs)
        if not grown.is_set():
            session.reply()
            grown.set()
            shows.wait(60)
        return result

    monkeypatch.setattr(session_index, "read_all", slowly)
    await bare.initialize(tmp_path.as_uri())
    tokens = home.truth.context
    await bare.take("status/update", lambda one: bool(one["context"]))
    await until(grown.is_set)
    shown = await bare.take(
        "status/update", lambda one: (one["context"] or {}).get("tokens") == tokens[session.id]
    )
    shows.set()

    def is_recorded(status: Any) -> bool:
        return bool(status["cost"]) and calls_in_the_ledger() == len(home.truth.calls)

    if not is_recorded(shown):
        await bare.take("status/update", is_recorded)
    bare.ignore("status/update", "context/warning")


async def test_a_selected_session_shows_its_own_cost(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    """Tests a session that was never shown, and one that grew while it was hidden."""
    bare.server.watcher.start_seconds = 3600
    first, second = home.session(tmp_path), home.session(tmp_path)
    first.reply()
    home.clock.now -= timedelta(minutes=20)  # The first session stays the newest one.
    await bare.initialize(tmp_path.as_uri())
    status = await bare.take("status/update", lambda one: bool(one["cost"]))
    for session in (second, first):
        session.reply()
        bare.server.agent_sessions._on_files_changed(frozenset({str(session.path)}))
        status = await bare.take("status/update", has_other_sums(status))
        await bare.request("context/select", {"session": session.id})
        rows = (await bare.request("cost/detail", {"by": ["session"]}))["rows"]
        (cost,) = [row["costUsd"] for row in rows if row["session"] == session.id]
        status = await bare.take("status/update", shows_cost(cost))
    bare.ignore("status/update", "context/warning")


def shows_cost(cost: float) -> Callable[[Any], bool]:
    return lambda one: bool(one["cost"]) and one["cost"]["costUsd"] == pytest.approx(cost)


def has_other_sums(before: Any) -> Callable[[Any], bool]:
    """Return a function that checks whether the costs in a status differ from those in `before`."""
    return lambda one: bool(one["cost"]) and one["cost"]["tooltip"] != before["cost"]["tooltip"]


async def test_preflight_adds_the_prompt_to_an_agents_session(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    session = home.session(tmp_path)
    session.cached = 940_000
    session.reply()
    size = home.truth.context[session.id]
    assert size is not None
    await bare.initialize(tmp_path.as_uri(), ignored=("context/warning",))
    await bare.take("status/update", lambda one: bool(one["context"]) and "%" in one["text"])
    bare.ignore("status/update")
    for named in ({}, {"session": session.id}):
        usage = await bare.request("context/usage", named)
        little = await bare.request("context/preflight", {**named, "text": "hello world"})
        assert size < little["promptTokens"] < size + 50
        assert little["available"] == usage["available"] - (little["promptTokens"] - size)
        assert little["fits"]
        much = await bare.request("context/preflight", {**named, "text": "word " * 60_000})
        assert (much["verdict"], much["fits"]) == ("refuse", False)
    assert (await bare.request("context/usage", {}))["tokens"] == size


async def start_and_read(client: Client, folder: Path) -> None:
    """Start the server in a folder, and wait until it shows the context and its cost."""
    await client.initialize(folder.as_uri())
    await client.take("status/update", lambda one: bool(one["cost"]) and "%" in one["text"])
    await wait_for_first_reading(client)
    client.ignore("status/update", "context/warning")


async def wait_for_first_reading(client: Client) -> None:
    """Wait until the server has finished its startup work.

    The server may still read the other files of the root, and a test that appends data should not
    compete with it.
    """
    scheduler, workspace = client.server.scheduler, client.server.services.roots.default
    await until(
        lambda: not any(scheduler.is_due((job, workspace)) for job in ("agents", "costs", "spent"))
    )


def costs_more_than(before: Any) -> Callable[[Any], bool]:
    return lambda one: bool(one["cost"]) and one["cost"]["costUsd"] > before["cost"]["costUsd"]


async def test_prompt_file_is_counted_for_the_same_model_everywhere(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    """Previously, the command line used the configured model instead of the session's model."""
    (tmp_path / "CLAUDE.md").write_text("Write little, and test it.\n" * 6)
    session = home.session(tmp_path)
    session.reply()
    await bare.initialize(tmp_path.as_uri())
    await bare.take("status/update", lambda status: bool(status["context"]))
    bare.ignore("status/update", "context/warning")
    (shown,) = await bare.request("cost/files", {})
    verb = ["cost", "files", "--json", "--workspace", str(tmp_path)]
    result = await asyncio.to_thread(CliRunner().invoke, main, verb)
    (printed,) = json.loads(result.stdout)["files"]
    assert (printed["tokens"], printed["text"]) == (shown["tokens"], shown["text"])
    assert (shown["model"], shown["requests"]) == (MODEL, 1)
    await bare.request("context/set", {"model": "gpt-4o"})
    assert await bare.request("cost/files", {}) == [shown], (
        "an open session does not affect the costs of prompt files"
    )


@pytest.mark.parametrize(
    ("root", "document"), [("real", "real"), ("real", "link"), ("link", "real"), ("link", "link")]
)
async def test_hover_shows_a_prompt_files_cost_through_links(
    bare: Client, home: ClaudeHome, tmp_path: Path, root: str, document: str
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    text = "Write little, and test it.\n" * 6
    (tmp_path / "real/CLAUDE.md").write_text(text)
    home.session(tmp_path / "real").reply()
    await bare.initialize((tmp_path / root).as_uri())
    await bare.take("status/update", lambda status: bool(status["context"]))
    bare.ignore("status/update", "context/warning", "textDocument/publishDiagnostics")
    uri = (tmp_path / document / "CLAUDE.md").as_uri()
    bare.open(text, uri)
    at = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 0}}
    async with asyncio.timeout(20):  # a link is resolved on a worker, after the document is opened
        shown = ""
        while "Sent with every request: " not in shown:
            shown = (await bare.request("textDocument/hover", at))["contents"]["value"]
            await asyncio.sleep(0.01)


async def test_prompt_files_cost_only_what_the_chosen_days_did(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    """Previously, the report included calls that were made after the last chosen day."""
    (tmp_path / "CLAUDE.md").write_text("Write little, and test it.\n" * 600)
    home.clock.now = home.clock.now.replace(hour=12) - timedelta(days=5)
    session = home.session(tmp_path)
    session.cached = 20_000
    session.reply()
    first = home.clock.now.astimezone().date().isoformat()
    home.clock.now += timedelta(days=2)
    session.reply()
    session.reply()
    await bare.initialize(tmp_path.as_uri(), ignored=("status/update", "context/warning"))
    (row,) = await bare.request("cost/files", {"since": first, "until": first})
    assert row["requests"] == 1
    days = {"period": "custom", "since": first, "until": first, "by": "file"}
    page = await bare.request("cost/page", days)
    (cells,) = re.findall(
        r'<th role="rowheader" scope="row">CLAUDE.md</th>(.*?)</tr>', page["html"]
    )
    assert f'<td role="cell">~{usd_text(row["costUsd"])}</td>' in cells
    html = ["cost", "--workspace", str(tmp_path), "--since", first, "--until", first]
    result = await asyncio.to_thread(CliRunner().invoke, main, [*html, "--html", "-"])
    assert cells in result.stdout
    files = ["cost", "files", "--workspace", str(tmp_path), "--since", first, "--until", first]
    result = await asyncio.to_thread(CliRunner().invoke, main, [*files, "--json"])
    (printed,) = json.loads(result.stdout)["files"]
    assert (printed["requests"], printed["costUsd"]) == (1, row["costUsd"])


async def test_a_session_file_is_not_read_again_for_what_fills_the_context(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    session = everyday(home, tmp_path)
    await start_and_read(bare, tmp_path)
    with recorded_opens(session.path) as reads:
        for _ in range(3):
            await bare.request("context/usage", {})
            await bare.request("context/sessions", {})
            await bare.request("cost/detail", {})
            await bare.request("context/page", {})
        usage = await bare.request("context/usage", {"contents": True})
    assert reads == []
    assert sum(part["tokens"] for part in usage["contents"]) == usage["tokens"]


async def test_session_files_are_read_once_for_all_cost_reports(
    bare: Client, home: ClaudeHome, tmp_path: Path
) -> None:
    session = everyday(home, tmp_path)
    session.write({"type": "custom-title", "customTitle": "Mend the parser"})
    await start_and_read(bare, tmp_path)

    async def reads_for_report() -> list[str]:
        with recorded_opens(session.path) as reads:
            page = await bare.request("cost/page", {"period": "all", "by": "session"})
        assert "Mend the parser" in page["html"]
        return reads

    # A change that is noticed late causes one more check.
    reports = [await reads_for_report() for _ in range(4)]
    assert sum(map(bool, reports[1:])) <= 1
