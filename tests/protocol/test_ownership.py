"""Tests who assigns mutable state, and that requests which wait do not block or undo others."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import re
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sidecar
from benchmarks.agents.claude import ClaudeHome
from sidecar.agents.session_events import StoredSession
from sidecar.cost.ledger import MemoryLedger
from sidecar.workspace.agent_sessions import NOT_KEPT
from sidecar.workspace.services import Services
from sidecar.workspace.state_folder import State
from tests.protocol.client import URI, Client, RpcError, edit
from tests.protocol.test_same_count import MODEL, endpoint, opened, root, settled, started
from tests.unit.endpoints_fake_server import Canned, FakeServer

__all__ = ["endpoint", "root"]

USER = {"role": "user", "content": "How many tokens is this question?"}


@pytest.fixture
async def talker(client: Client) -> Client:
    client.ignore("status/update", "context/warning")
    await settled(client)
    return client


def test_state_shared_by_workers_is_frozen() -> None:
    """`State` and its contents are immutable, except for open ledgers, which use a lock."""
    state = State()
    for name in ("folder", "books", "another"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(state, name, None)


WRITERS = {
    "costs": ("spending.py",),
    "workspace": ("workspace.py", "sessions.py"),
    "state": ("conversations.py",),
}
"""The modules that may assign an object's attributes, keyed by the object's variable name."""


def test_state_is_assigned_only_by_its_owner() -> None:
    package = Path(sidecar.__file__).parent
    written = [
        (path.name, ast.unparse(target))
        for folder in ("workspace", "server", "cli")
        for path in (package / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for target in targets_of(node)
    ]
    owned = [(name, re.search(r"\b_?(costs|workspace|state)\.\w+$", to)) for name, to in written]
    found = [(name, match[0]) for name, match in owned if match]
    assert ("sessions.py", "_workspace.context") in found, "the search finds no assignments"
    for name, target in found:
        assert name in WRITERS[target.strip("_").partition(".")[0]], (name, target)


def targets_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [one for to in node.targets for one in getattr(to, "elts", [to])]
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


async def test_memory_ledger_is_created_once_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two roots discover at the same time that the ledger is unusable."""
    real_init, made = MemoryLedger.__init__, list[int]()
    monkeypatch.setenv("HOME", str(tmp_path))

    def noted(ledger: MemoryLedger) -> None:
        made.append(threading.get_ident())
        real_init(ledger)

    monkeypatch.setattr(MemoryLedger, "__init__", noted)
    (tmp_path / "state").write_text("a file where the folder should be")
    services, home = Services(state=State(tmp_path / "state")), ClaudeHome(tmp_path / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(hours=1)
    workspaces = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        home.session(folder).reply()
        workspaces.append(services.roots.add(folder.as_uri()))
        workspaces[-1].path = folder
    await asyncio.gather(*map(services.agents.find_sessions, workspaces))
    for workspace in workspaces:
        (row,) = services.sessions(workspace).rows()
        assert row.note is not None
        assert row.note.endswith(NOT_KEPT)
    assert made == [threading.get_ident()]
    await services.aclose()
    services.workers.close()


def section() -> dict[str, Any]:
    return {"name": "notes", "textDocument": {"uri": URI}}


class Hanging:
    """An endpoint that does not respond until the test continues."""

    def __init__(
        self, client: Client, endpoint: FakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sidecar.endpoints.http.REQUEST_SECONDS", 600.0)
        self.asked, self._gate = asyncio.Event(), asyncio.Event()
        self._client, self._endpoint, self._routes = client, endpoint, dict(endpoint.routes)
        client.server.services.counts.seconds = 600.0
        for route in self._routes:
            endpoint.routes[route] = partial(self._hang, route)

    async def _hang(self, route: Any, request: Any) -> Canned:
        self.asked.set()
        await self._gate.wait()
        found = self._routes[route]
        answer = found if isinstance(found, Canned) else found(request)
        return answer if isinstance(answer, Canned) else await answer

    def let_go(self) -> None:
        self._endpoint.routes.update(self._routes)
        self._gate.set()


async def test_hanging_endpoint_does_not_block_other_requests(
    root: Path, endpoint: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the endpoint responds, an estimate is shown, and other requests are answered."""
    client = await started(root)
    first = await client.request("context/append", {"turns": [USER], "session": "s"})
    assert first["method"] == "endpoint"
    hanging = Hanging(client, endpoint, monkeypatch)
    pending = asyncio.ensure_future(
        client.request("context/append", {"turns": [USER], "session": "s"})
    )
    await hanging.asked.wait()
    usage = await client.request("context/usage", {"session": "s"})
    assert (usage["turns"], usage["method"]) == (2, "estimate")
    await client.request("context/sessions", {})
    assembled = await client.request("context/assemble", {"session": "s", "user": "hello"})
    assert assembled["fits"], "a change to the same session"
    planned = await client.request("context/fit", {"session": "s", "maxTokens": 5_000})
    assert planned["fits"]
    assert not pending.done()
    hanging.let_go()
    answered = await pending
    assert (answered["turns"], answered["method"]) == (2, "endpoint")
    after = await client.request("context/usage", {"session": "s"})
    assert (after["tokens"], after["method"]) == (answered["tokens"], "endpoint")
    await client.aclose()


async def test_request_for_a_window_does_not_block_the_session(
    root: Path, endpoint: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only requests that depend on the context window wait for the endpoint."""
    client = await started(root)
    monkeypatch.setattr("sidecar.endpoints.endpoints.PROBE_SECONDS", 600.0)
    hanging = Hanging(client, endpoint, monkeypatch)
    assemble = {"session": "s", "user": "hello"}
    pending = asyncio.ensure_future(client.request("context/assemble", assemble))
    await hanging.asked.wait()
    other = asyncio.ensure_future(client.request("context/set", {"session": "s", "limit": 9_000}))
    usage = await client.request("context/usage", {"session": "s"})
    async with asyncio.timeout(60):
        while usage["limit"] != 9_000:
            usage = await client.request("context/usage", {"session": "s"})
    assert not pending.done()
    hanging.let_go()
    await asyncio.gather(pending, other)
    await client.aclose()


async def test_context_estimate_is_shown_while_an_endpoint_hangs(
    root: Path, endpoint: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await started(root)
    opened(client, root)
    await client.request("context/append", {"turns": [USER], "session": "s"})
    await settled(client)
    hanging = Hanging(client, endpoint, monkeypatch)
    client._ignored.discard("status/update")
    pending = asyncio.ensure_future(
        client.request("context/append", {"turns": [USER] * 40, "session": "s"})
    )
    await client.take("status/update", lambda one: "~" in (one["context"] or {}).get("text", ""))
    assert not pending.done()
    hanging.let_go()
    await pending
    await client.take("status/update", lambda one: "~" not in one["context"]["text"])
    client.ignore("status/update")
    await client.aclose()


async def test_late_count_does_not_restore_old_turns(
    root: Path, endpoint: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await started(root)
    await client.request("context/append", {"turns": [USER], "session": "s"})
    hanging = Hanging(client, endpoint, monkeypatch)
    pending = asyncio.ensure_future(
        client.request("context/append", {"turns": [USER], "session": "s"})
    )
    await hanging.asked.wait()
    reset = await client.request("context/reset", {"session": "s"})
    assert reset["tokens"] is None
    hanging.let_go()
    assert (await pending)["turns"] == 2
    assert (await client.request("context/usage", {"session": "s"}))["tokens"] is None
    again = await client.request("context/append", {"turns": [USER], "session": "s"})
    assert (again["turns"], again["method"]) == (1, "endpoint")
    await client.aclose()


async def test_turns_added_during_a_count_are_counted_by_the_endpoint_too(
    root: Path, endpoint: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await started(root)
    await client.request("context/append", {"turns": [USER], "session": "t"})
    hanging = Hanging(client, endpoint, monkeypatch)
    append = {"turns": [USER], "session": "s"}
    both = [asyncio.ensure_future(client.request("context/append", append)) for _ in range(2)]
    await hanging.asked.wait()
    while (await client.request("context/usage", {"session": "s"}))["turns"] != 2:
        await asyncio.sleep(0.01)
    hanging.let_go()
    answers = await asyncio.gather(*both)
    assert [answer["turns"] for answer in answers] == [1, 2]
    assert {one["method"] for one in answers} == {"endpoint"}
    assert answers[0]["tokens"] < answers[1]["tokens"]
    usage = await client.request("context/usage", {"session": "s"})
    assert (usage["tokens"], usage["method"]) == (answers[1]["tokens"], "endpoint")
    one, other = (part["tokens"] for part in usage["largest"])
    assert abs(one - other) <= 1, "both turns have the same text"
    await client.aclose()


async def test_status_is_updated_after_a_change_of_settings(root: Path) -> None:
    client = await started(root)
    uri = opened(client, root)
    await client.request("context/append", {"turns": [USER], "session": "s"})
    await settled(client)
    client._ignored.discard("status/update")
    client.notify(
        "workspace/didChangeConfiguration",
        {"settings": {"tokenSidecar": {"context": {"limit": 1_000}}}},
    )
    update = await client.take(
        "status/update",
        lambda status: status["context"] and "1,000 tokens (from settings)" in tooltip(status),
    )
    assert update["uri"] == uri
    client.ignore("status/update")
    await client.aclose()


def tooltip(update: dict[str, Any]) -> str:
    text: str = update["context"]["tooltip"]
    return text


async def test_reopened_document_is_followed_again(talker: Client) -> None:
    talker.open("few words")
    await talker.request("context/set", {"session": "s", "sections": [section()]})
    before = await talker.request("context/usage", {})
    talker.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    assert (await talker.request("context/usage", {}))["tokens"] == before["tokens"]
    talker.open("many more words " * 50)  # The document has the same version as before.
    after = await talker.request("context/usage", {})
    assert after["breakdown"]["sections"] > before["breakdown"]["sections"] + 100


async def test_edit_without_a_new_version_is_noticed(talker: Client) -> None:
    talker.open("few words")
    await talker.request("context/set", {"session": "s", "sections": [section()]})
    before = await talker.request("context/usage", {})
    talker.version -= 1
    talker.change(edit((0, 0), (0, 0), "many more words " * 50))
    after = await talker.request("context/usage", {})
    assert after["breakdown"]["sections"] > before["breakdown"]["sections"] + 100


async def test_assembling_uses_the_edited_document(talker: Client) -> None:
    talker.open("the old text")
    await talker.request("context/set", {"session": "s", "sections": [section()]})
    first = await talker.request("context/assemble", {"session": "s"})
    again = await talker.request("context/assemble", {"session": "s"})
    assert (first["contextCached"], again["contextCached"]) == (False, True)
    talker.change(edit((0, 4), (0, 7), "new"))
    edited = await talker.request("context/assemble", {"session": "s"})
    assert edited["contextCached"] is False
    (context,) = [part["text"] for part in edited["sections"] if part["name"] == "context"]
    assert context.endswith("the new text")


def agents(**more: Any) -> StoredSession:
    fields: dict[str, Any] = {
        "id": "a1",
        "source": "codex",
        "updated_at": datetime.now(UTC),
        "title": "Mend the gate",
        "model": "gpt-5",
        "tokens": 5_000,
        "limit": 100_000,
    }
    return StoredSession(**{**fields, **more})


def fed(client: Client, *sessions: StoredSession) -> None:
    services = client.server.services
    services.conversations(services.roots.default).sessions.set_agent_sessions(sessions)


async def test_all_kinds_of_sessions_are_listed_and_selected(talker: Client) -> None:
    await talker.request("context/append", {"turns": [USER], "session": "mine"})
    await settled(talker)
    fed(talker, agents(), agents(id="old", updated_at=datetime(2020, 1, 1, tzinfo=UTC)))
    rows = await talker.request("context/sessions", {})
    assert [row["id"] for row in rows] == ["a1", "mine"]
    everything = await talker.request("context/sessions", {"all": True})
    assert [row["id"] for row in everything] == ["a1", "mine", "old"]
    assert (rows[0]["source"], rows[0]["title"], rows[0]["tokens"]) == (
        "codex",
        "Mend the gate",
        5_000,
    )
    usage = await talker.request("context/usage", {})
    assert usage["session"]["id"] == "mine", (
        "a client's conversation takes precedence for 30 minutes"
    )
    chosen = await talker.request("context/select", {"session": "a1"})
    assert (chosen["session"]["source"], chosen["limit"], chosen["limitSource"]) == (
        "codex",
        100_000,
        "transcript",
    )
    assert (await talker.request("context/usage", {}))["tokens"] == 5_000
    fed(talker, agents(ended=True))
    assert (await talker.request("context/usage", {}))["session"]["id"] == "mine"
    await talker.request("context/select", {"session": None})
    with pytest.raises(RpcError):
        await talker.request("context/select", {"session": "nobody's"})


async def test_choosing_a_model_creates_no_conversation(talker: Client) -> None:
    chosen = await talker.request("context/set", {"model": "gpt-4o"})
    assert chosen["model"] == "gpt-4o"
    assert await talker.request("context/sessions", {}) == []
    assert (await talker.request("tokens/count", {"text": "word"}))["model"] == "gpt-4o"
    await talker.request("context/append", {"turns": [USER]})
    (row,) = await talker.request("context/sessions", {})
    assert (row["model"], row["shown"]) == ("gpt-4o", True)


async def test_agents_estimate_has_an_error_band(talker: Client) -> None:
    fed(talker, agents(), agents(id="a2", quality="estimate", error_percent=75.0))
    exact = await talker.request("context/usage", {"session": "a1"})
    rounded = await talker.request("context/usage", {"session": "a2"})
    assert (exact["method"], exact["errorPercent"]) == ("exact", 0)
    assert (rounded["method"], rounded["errorPercent"]) == ("estimate", 75)


async def test_model_has_the_same_window_on_every_surface(client: Client) -> None:
    """Previously, the tooltip showed two windows: the agent's, and the one from the price list."""
    await settled(client)
    client.open("some words\n")
    fed(client, agents(limit=123_456))
    shown = await client.take(
        "status/update",
        lambda one: bool(one["context"]) and "123,456" in one["document"]["tooltip"],
    )
    client.ignore("status/update", "context/warning")
    assert "123,456 tokens (from the agent)" in shown["context"]["tooltip"]
    count = await client.count(models=["gpt-5", "gpt-4o"])
    assert (count["limit"], count["limitSource"]) == (123_456, "transcript")
    assert [one["limit"] for one in count["models"]] == [123_456, 128_000]
    fed(client, agents(limit=None))
    gauge = await client.request("context/usage", {})
    count = await client.count()
    assert (count["limit"], count["limitSource"]) == (gauge["limit"], gauge["limitSource"])
    assert count["limitSource"] == "catalogue"


async def test_window_named_without_a_model_applies_to_documents(
    talker: Client,
) -> None:
    talker.open("some words\n")
    gauge = await talker.request("context/set", {"limit": 5_000})
    count = await talker.count()
    assert (gauge["limit"], gauge["limitSource"]) == (5_000, "request")
    assert (count["limit"], count["limitSource"]) == (5_000, "request")


async def test_a_session_without_a_reply_has_no_model(talker: Client) -> None:
    """Previously, a session without a reply was shown with the default model and its window."""
    fed(talker, agents(model=None, tokens=None, limit=None))
    usage = await talker.request("context/usage", {})
    assert (usage["model"], usage["limit"], usage["percent"]) == (None, None, None)
    assert (usage["note"], usage["session"]["source"]) == ("no reply yet", "codex")
    assert "gpt-5" not in usage["text"]
    (row,) = await talker.request("context/sessions", {})
    assert (row["model"], row["limit"], row["note"]) == (None, None, "no reply yet")
    assert "no reply yet" in row["text"]
    assert (await talker.request("tokens/count", {"text": "word"}))["model"] == "gpt-5"
    fed(talker, agents(model=None, tokens=None, limit=200_000))
    assert (await talker.request("context/usage", {}))["limit"] == 200_000, (
        "the window that the agent reported"
    )
    fed(talker, agents(model=None, tokens=5_000))
    result = await talker.request("context/usage", {})
    assert (result["model"], result["percent"], result["note"]) == (None, 5, None)


async def test_agents_session_cannot_be_changed(talker: Client) -> None:
    fed(talker, agents())
    assert await talker.refused("context/append", {"session": "a1", "turns": [USER]}) == {
        "kind": "badParams",
        "retryable": False,
    }
    with pytest.raises(RpcError) as textless:
        await talker.request("context/fit", {"session": "a1"})
    assert (textless.value.data or {})["kind"] == "noText"
    written = await talker.request("context/append", {"turns": [USER]})
    assert written["session"] == {**written["session"], "id": "default", "source": "protocol"}


async def test_queries_change_nothing(talker: Client) -> None:
    await talker.request("context/append", {"turns": [USER], "session": "s"})
    await settled(talker)
    changes = talker.server.services.conversations(talker.server.services.roots.default)
    found = changes.sessions.conversations.get("s")
    state = changes.sessions.context
    await talker.request("context/usage", {})
    await talker.request("context/usage", {"session": "unknown"})
    await talker.request("context/preflight", {"text": "more", "model": MODEL})
    await talker.request("context/sessions", {})
    assert changes.sessions.conversations.get("s") is found
    assert changes.sessions.context == state  # costs that are added up meanwhile publish it again
    assert [conversation.id for conversation in changes.sessions.conversations.values()] == ["s"]
