"""Tests which of a workspace's sessions is displayed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sidecar.agents.session_events import StoredSession
from sidecar.conversations.context_protocol import ContextUsage, SessionInfo, SessionsParams
from sidecar.conversations.conversation import Conversation
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.sums import Tally
from sidecar.counting.windows import find_agent_window
from sidecar.models import catalogue
from sidecar.models.window import Limit
from sidecar.server.features.context_requests import _list_sessions as list_sessions
from sidecar.workspace import sessions
from sidecar.workspace.services import Services
from sidecar.workspace.sessions import PROTOCOL
from tests.cases import read_rows
from tests.unit.context_fakes import FakeCounter


@pytest.mark.parametrize(
    ("mine", "agents", "shown"), read_rows("workspace", "shown_sessions", "mine", "agents", "shown")
)
def test_shown_session_is_chosen_by_age(
    services: Services, mine: int | None, agents: int | None, shown: str | None
) -> None:
    """`mine` is the age of our session in minutes, and `agents` the age of an agent's session."""
    sessions = services.sessions(services.roots.default)
    now = datetime.now(UTC)
    if mine is not None:
        own = Conversation("mine", FakeCounter())
        own.updated_at = now - timedelta(minutes=mine)
        sessions.put(own)
    if agents is not None:
        at = now - timedelta(minutes=agents)
        one = StoredSession(id="agents", source="Claude Code", updated_at=at, model="gpt-5")
        sessions.set_agent_sessions([one])
    found = sessions.find(None)
    name = found.id if isinstance(found, StoredSession) else found and found.id
    assert name == shown


@pytest.mark.parametrize(
    ("minutes", "until"),
    [
        (5, timedelta(minutes=30)),  # then an agent's session comes first
        (40, timedelta(hours=24)),  # after a day, the session is too old to be displayed
    ],
)
def test_remote_conversation_is_shown_like_a_local_one(
    services: Services, minutes: int, until: timedelta
) -> None:
    sessions = services.sessions(services.roots.default)
    updated_at = datetime.now(UTC) - timedelta(minutes=minutes)
    info = SessionInfo.of("theirs", PROTOCOL, updated_at)
    sessions.set_remote_conversations([ContextUsage(model="gpt-5", session=info)])
    session = sessions.find(None)
    assert isinstance(session, StoredSession)
    assert sessions.next_switch_at() == session.updated_at + until


def test_window_of_each_model_is_looked_up_once_for_a_list(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue.warm()
    registry = services.sessions(services.roots.default)
    models, at = ("gpt-5", "claude-sonnet-4-5"), datetime.now(UTC) - timedelta(days=3)
    registry.set_older_agent_sessions(
        StoredSession(
            id=f"s{number}", source="codex", updated_at=at, model=models[number % 2], tokens=1_000
        )
        for number in range(100)
    )
    looked_up: list[str] = []

    def counted(model: str, *arguments: Any) -> Limit | None:
        looked_up.append(model)
        return find_agent_window(model, *arguments)

    monkeypatch.setattr(sessions, "find_agent_window", counted)
    rows = registry.rows(every=True)
    assert sorted(looked_up) == sorted(models)
    limits = {model: catalogue.window_of(model) for model in models}
    assert [row.limit for row in rows] == [limits[row.model or ""] for row in rows]
    assert len(rows) == 100


@pytest.mark.parametrize(
    ("model", "tokens", "reported", "limit"),
    read_rows("workspace", "agents_windows", "model", "tokens", "reported", "limit"),
)
def test_window_of_an_agents_session_is_never_assumed(
    services: Services, model: str | None, tokens: int, reported: int | None, limit: int | None
) -> None:
    catalogue.warm()
    registry = services.sessions(services.roots.default)
    session = StoredSession(
        id="s", source="goose", updated_at=now(), model=model, tokens=tokens, limit=reported
    )
    registry.set_agent_sessions([session])
    (row,), usage = registry.rows(), registry.usage(session)
    percent = None if limit is None else min(100, 100 * tokens // (limit - 500))
    assert (row.tokens, row.limit, row.percent) == (tokens, limit, percent)
    assert (usage.tokens, usage.limit, usage.percent) == (tokens, limit, percent)
    assert usage.severity == "ok"
    assert not usage.should_prune


def test_only_sessions_in_a_list_are_labeled_and_priced(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue.warm()
    workspace, at = services.roots.default, datetime.now(UTC) - timedelta(days=3)
    registry, spending = services.sessions(workspace), services.spending(workspace)
    registry.set_older_agent_sessions(
        StoredSession(
            id=f"s{number}", source="codex", updated_at=at, model="gpt-5", tokens=5_000 * number
        )
        for number in range(50)
    )
    spending.book.ledger.record_many(
        LedgerEvent(
            at=at, model="gpt-5", provider="openai", session=f"s{number}", buckets=Buckets(input=1)
        )
        for number in range(50)
    )
    registry.set_agent_sessions([StoredSession(id="new", source="codex", updated_at=now())])
    labeled = count_calls(monkeypatch, sessions, "label_of")
    added_up = count_calls(monkeypatch, Tally, "of_row")
    params = SessionsParams(all=True, limit=3, order="context")
    rows = list_sessions(registry.snapshot(every=True), spending, params)
    assert [(row.id, row.cost_usd is None) for row in rows] == [
        ("s49", False), ("s48", False), ("s47", False)
    ]  # fmt: skip
    assert len(labeled) == len(rows)
    assert len(added_up) == len(rows)
    added_up.clear()
    (row,) = list_sessions(registry.snapshot(), spending, SessionsParams())
    assert (row.id, len(added_up)) == ("new", 0)


def count_calls(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[Any]:
    """Return a list that records the first argument of each call to a module's function."""
    made, function = list[Any](), getattr(module, name)

    def counted(first: Any, *arguments: Any, **options: Any) -> Any:
        made.append(first)
        return function(first, *arguments, **options)

    monkeypatch.setattr(module, name, counted)
    return made


def now() -> datetime:
    return datetime.now(UTC)


def test_row_of_a_conversation_keeps_its_usage(services: Services) -> None:
    """A list of sessions is a snapshot. Later changes do not affect it."""
    registry = services.sessions(services.roots.default)
    own = Conversation("mine", FakeCounter())
    own.updated_at = datetime.now(UTC)
    own.set_system("You are a helpful assistant.")
    registry.put(own)
    usage = registry.usage(own)
    snapshot = registry.snapshot()
    own.set_system(None)
    (row,) = snapshot.rows()
    assert usage.tokens
    assert (row.id, row.source, row.label, row.state) == ("mine", "protocol", "mine", "idle")
    assert (row.tokens, row.limit, row.percent) == (usage.tokens, usage.limit, usage.percent)
