"""Tests which of a workspace's sessions is displayed, and what lists of sessions show."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from benchmarks.agents.truth import Tokens
from sidecar.agents.folders import Roots
from sidecar.agents.reader_registry import Sources
from sidecar.agents.session_events import StoredSession
from sidecar.agents.session_index import Unread
from sidecar.conversations.context_protocol import (
    ContextUsage,
    SessionInfo,
    SessionsParams,
    Subagent,
)
from sidecar.conversations.conversation import Conversation
from sidecar.cost.context_costs import SessionCost, SpendingSums
from sidecar.cost.ledger_events import Buckets, Cost, LedgerEvent
from sidecar.cost.sums import Tally
from sidecar.counting.windows import find_agent_window
from sidecar.models import catalogue
from sidecar.models.names import short_names
from sidecar.models.window import Limit
from sidecar.server.features.context_requests import _list_sessions as list_sessions
from sidecar.text.tables import align_cells, align_columns, columns, draw_bar, draw_gauge
from sidecar.workspace import sessions
from sidecar.workspace.services import Services
from sidecar.workspace.sessions import PROTOCOL, label_of
from sidecar.workspace.spending import Costs
from sidecar.workspace.status import cost_status
from sidecar.workspace.views import (
    BEING_READ,
    add_view_to_usage,
    format_age,
    format_session_cost,
    session_rows,
)
from tests.cases import read_rows
from tests.unit.agents_world import World
from tests.unit.context_fakes import FakeCounter, session_row
from tests.unit.test_agents_written import RUNS, Written, install


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
    catalogue.refresh()
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
    catalogue.refresh()
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
    catalogue.refresh()
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


NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
USD = SessionCost(Cost(Decimal("1.916")))
PARTIAL = SessionCost(USD.total._replace(whole=False))
UNPRICED = SessionCost(Cost(None, whole=False))


@pytest.mark.parametrize(
    ("source", "known", "reading", "text", "row"),
    [
        ("codex", {"s": USD}, True, "$1.92", "| This session | $1.92 at API prices |"),
        ("codex", {"s": USD}, False, "≥$1.92", "| This session | ≥$1.92 at API prices |"),
        ("codex", {"s": PARTIAL}, True, "≥$1.92", "| This session | ≥$1.92 at API prices |"),
        ("amp", {"s": USD}, True, "≥$1.92", "| This session | ≥$1.92 at API prices |"),
        ("codex", {}, True, "$0.40 today", "| This session | being read |"),
        ("codex", {}, False, "≥$0.40 today", "| This session | not read yet |"),
        ("codex", {"s": UNPRICED}, True, "$0.40 today", "| This session | unpriced |"),
        ("protocol", {"s": USD}, True, "$0.40 today", "| Today | $0.40 |"),
    ],
)
def test_status_names_the_scope_of_its_cost(
    source: str, known: dict[str, SessionCost], reading: bool, text: str, row: str
) -> None:
    """If the session's cost is unknown, the status shows today's cost, labeled `today`."""
    costs = Costs(
        sums=SpendingSums(day=Decimal("0.4"), workspace=Decimal("0.4")),
        sessions=known,
        reading=reading,
        unread=None if reading else Unread(frozenset("s"), datetime.now(UTC)),
    )
    session = SessionInfo(id="s", source=source, updated_at="")
    shown = cost_status(costs, ContextUsage(session=session))
    assert shown is not None
    assert shown.text == text
    assert f"${shown.cost_usd:,.2f}" == text.removesuffix(" today").strip("≥")
    assert row in shown.tooltip


@pytest.mark.parametrize(
    ("states", "split", "text"),
    [
        (["idle"] * 3, True, "main $1.50 + 3 sub-agents $0.42"),
        (["running", "ended"], True, "main $1.50 + 2 sub-agents $0.42, 1 running"),
        ([], True, "main $1.50 + sub-agents $0.42"),
        (["running"], False, "1 sub-agent, 1 running"),
        ([], False, ""),
    ],
)
def test_sub_agents_are_apart_from_the_main_conversation(
    states: list[Literal["running", "idle", "ended"]], split: bool, text: str
) -> None:
    subagents = [
        Subagent(id="a", model=None, tokens=5, method="exact", state=state, updated_at="")
        for state in states
    ]
    session = SessionInfo(id="s", source="codex", updated_at=NOW.isoformat())
    usage = ContextUsage(tokens=9, session=session, subagents=subagents)
    costs = Costs(sessions={"s": USD})
    if split:
        parts = Cost(Decimal("1.496")), Cost(Decimal("0.42"))
        costs.sessions["s"] = USD._replace(split=parts)
    rows = {row.label: row for row in add_view_to_usage(usage, costs, NOW).rows}
    assert (rows["Sub-agents"].value if text else "") == text
    assert ("Sub-agents" in rows, "Contexts of sub-agents" in rows) == (bool(text), bool(states))
    if "running" in states:
        assert rows["Contexts of sub-agents"].children[0].value == "5 tokens, running"


def test_the_contexts_of_many_sub_agents_are_shortened() -> None:
    subagents = [
        Subagent(id=f"{n}", model=None, tokens=n, method="exact", state="idle", updated_at="")
        for n in range(30)
    ]
    session = SessionInfo(id="s", source="codex", updated_at=NOW.isoformat())
    usage = ContextUsage(tokens=9, session=session, subagents=subagents)
    group = add_view_to_usage(usage, Costs(), NOW).rows[-1]
    assert [row.label for row in group.children] == [*map(str, range(8)), "22 more"]


def test_row_shows_label_size_cost_age_model_and_state() -> None:
    costs = Costs(sessions={"0123456789abcdef": USD})
    rows = [
        session_row(label="Mend the 試験", shown=True),
        session_row(model="claude-opus-5", label="main"),
    ]
    shown, other = session_rows(rows, costs, NOW)
    assert (shown.label, other.label) == ("Mend the 試験", "main")
    assert shown.figures == "43 % · $1.92"
    assert shown.detail == "43 % · $1.92 · 3 min ago · gpt-5 · running"
    assert other.detail == "43 % · $1.92 · 3 min ago · opus-5 · running"
    assert shown.text.startswith(
        "●  Mend the 試験    43 % ████▎░░░░░  $1.92  3 min ago  gpt-5   codex  running  0"
    )
    assert columns(shown.text.partition("43 %")[0]) == columns(other.text.partition("43 %")[0])
    assert session_rows([], costs, NOW) == []


def test_row_explains_a_missing_size_and_marks_a_pinned_session() -> None:
    rows = [session_row(tokens=None, percent=None, method=None, note="compacted", pinned=True)]
    (row,) = session_rows([*rows], Costs(read=True), NOW)
    assert row.detail == "compacted · 3 min ago · gpt-5 · running, pinned"
    (guess,) = session_rows([session_row(method="estimate")], Costs(read=True), NOW)
    assert "~43 %" in guess.detail
    (windowless,) = session_rows([session_row(percent=None, limit=None)], Costs(read=True), NOW)
    assert windowless.detail.startswith("43,000 tokens")


def test_hostile_names_are_shown_as_plain_text() -> None:
    (row,) = session_rows(
        [session_row(label="a\x1b[2J\nb\u202e" + "x" * 99, model="m\x07")], Costs(), NOW
    )
    for text in (row.label, row.detail, row.text):
        assert text.isprintable()
    assert "x" * 33 not in row.text


@pytest.mark.parametrize(
    ("known", "source", "read", "text"),
    [
        ({"s": USD}, "codex", False, "$1.92"),
        ({"s": PARTIAL}, "codex", True, "≥$1.92"),
        ({"s": USD}, "opencode", True, "≥$1.92"),
        ({"s": UNPRICED}, "codex", True, "unpriced"),
        ({}, "codex", False, BEING_READ),
        ({}, "codex", True, ""),
        ({}, "protocol", False, ""),
    ],
)
def test_unread_cost_is_not_unpriced(
    known: dict[str, SessionCost], source: str, read: bool, text: str
) -> None:
    info = SessionInfo(id="s", source=source, updated_at="")
    assert format_session_cost(Costs(sessions=known, read=read), info) == text


@pytest.mark.parametrize(("at", "text"), read_rows("workspace", "ages_are_rounded"))
def test_ages_are_rounded(at: str, text: str) -> None:
    assert format_age(at, NOW) == text


def test_gauges_and_columns_are_aligned() -> None:
    assert [draw_gauge(percent, 10) for percent in (0, 43, 100, 250)] == [
        "░" * 10,
        "████▎░░░░░",
        "█" * 10,
        "█" * 10,
    ]
    assert [draw_bar(share, 4) for share in (0.0, 0.0001, 0.5, 1.0)] == ["", "▏", "██", "████"]
    assert align_columns([("a", "1", "x"), ("試験", "10", "")]) == ["a      1  x", "試験  10"]


@pytest.mark.parametrize(
    "name", ["a" * 60, "長い名前" * 10, "short"], ids=["long", "wide", "short"]
)
@pytest.mark.parametrize("other", ["b" * 50, "b"])
def test_names_are_shortened_until_a_table_fits(name: str, other: str) -> None:
    rows = [("name", "other", "tokens", ""), (name, other, "1,234,567", "███")]
    lines = align_columns(rows, left=2, width=80)
    assert max(map(columns, lines)) <= 80
    assert lines[1].endswith("  1,234,567  ███")
    is_whole = columns(name) + max(5, columns(other)) + 9 + 3 + 6 <= 80
    assert ("…" in lines[1]) is not is_whole


@pytest.mark.parametrize("width", [60, 40, 20, 1])
def test_a_column_that_is_only_aligned_left_is_not_shortened(width: int) -> None:
    rows = [("n" * 40, "44 % ███▌░░░░", "$1", "x"), ("short", "1,234", "$20", "x")]
    lines = align_cells(rows, left=2, width=width, names=1)
    assert [size for _, size, *_ in lines] == ["44 % ███▌░░░░", "1,234".ljust(13)]


@pytest.mark.parametrize(("width", "line"), read_rows("workspace", "narrow_tables"))
def test_narrow_tables_have_short_names_and_then_fewer_numbers(width: int, line: str) -> None:
    row = ("a" * 30, "1", "22", "333", "4444", "$5", "██")
    assert align_columns([row], width=width) == [line]


PROMPT = "Mend the zebra crossing\nof the parser"


def read_sessions(world: World, *, with_prompts: bool = False) -> list[StoredSession]:
    world.ingest()
    roots = Roots.of([world.root])
    return world.index.sessions(Sources(world.readers, world.places, roots, with_prompts))


def labels(world: World, *, with_prompts: bool = False) -> list[str]:
    return [label_of(session) for session in read_sessions(world, with_prompts=with_prompts)]


def test_an_ai_title_before_the_newest_call_names_a_session_of_claude_code(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code")
    session = ClaudeHome(tmp_path / ".claude").session(world.root)
    session.user()
    session.write({"type": "ai-title", "aiTitle": "Mend the\ncrossing", "sessionId": session.id})
    for _ in range(50):
        session.reply()
    assert labels(world) == ["Mend the crossing"]


def test_a_thread_name_at_the_head_names_a_session_of_codex(tmp_path: Path) -> None:
    world = World(tmp_path, "codex")
    thread = CodexHome(tmp_path / ".codex").thread(world.root)
    thread.event("thread_name_updated", thread_id=thread.id, thread_name="Mend the crossing")
    for size in range(1_000, 9_000, 100):
        thread.count(Tokens(size, output=10))
    assert labels(world) == ["Mend the crossing"]


def test_session_without_a_title_is_named_by_branch_and_start(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code")
    session = ClaudeHome(tmp_path / ".claude").session(world.root)
    began = session.clock.now
    session.user()
    session.reply()
    (label,) = labels(world)
    assert re.fullmatch(r"main · (\d\d [A-Z][a-z]{2} )?\d\d:\d\d", label)
    (stored,) = read_sessions(world)
    assert stored.began_at is not None
    assert abs((stored.began_at - began).total_seconds()) < 60


@pytest.mark.parametrize(
    ("branch", "label"), [("fix/x", "fix/x"), ("HEAD", "codex"), (None, "codex")]
)
def test_detached_head_is_not_a_branch(branch: str | None, label: str) -> None:
    now = datetime.now(UTC)
    session = StoredSession(id="a", source="codex", branch=branch, began_at=now, updated_at=now)
    assert label_of(session) == f"{label} · {now.astimezone():%H:%M}"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.folder)
def test_real_agent_sessions_have_names(run: Written, tmp_path: Path) -> None:
    world = World(tmp_path, run.agent)
    install(world, run.folder)
    found = read_sessions(world)
    assert len(found) == len(run.contexts)
    for session, label in zip(found, labels(world), strict=True):
        assert label
        assert session.id[:8] not in label


def test_first_prompts_name_sessions_only_if_asked_for_and_are_never_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, "claude-code")
    session = ClaudeHome(tmp_path / ".claude").session(world.root)
    for text in ("<command-name>/clear</command-name>", PROMPT, "later words"):
        session.write(session.line("user", message={"role": "user", "content": text}))
    session.reply()
    assert not any("zebra" in label for label in labels(world))
    with caplog.at_level(0):
        assert labels(world, with_prompts=True) == ["Mend the zebra crossing of the parser"]
    assert "zebra" not in caplog.text
    world.ledger.close()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert session.id.encode() in kept
    assert b"zebra" not in kept


def test_a_title_comes_before_the_first_prompt(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code")
    session = ClaudeHome(tmp_path / ".claude").session(world.root)
    session.write(session.line("user", message={"role": "user", "content": PROMPT}))
    session.reply()
    session.write({"type": "custom-title", "customTitle": "Crossings"})
    assert labels(world, with_prompts=True) == ["Crossings"]


def test_context_added_by_codex_is_not_the_first_prompt(tmp_path: Path) -> None:
    world = World(tmp_path, "codex")
    thread = CodexHome(tmp_path / ".codex").thread(world.root)
    for text in ("<environment_context>cwd</environment_context>", PROMPT):
        content = [{"type": "input_text", "text": text}]
        thread.write("response_item", {"type": "message", "role": "user", "content": content})
    thread.count(Tokens(1_000, output=10))
    assert labels(world, with_prompts=True) == ["Mend the zebra crossing of the parser"]


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("claude-opus-5", "opus-5"),
        ("anthropic/claude-sonnet-4-5-20250929", "sonnet-4-5"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("us.anthropic.claude-opus-4-20250514-v1:0", "opus-4"),
        ("gemini-2.5-pro", "gemini-2.5-pro"),
    ],
)
def test_short_names_of_models(model: str, short: str) -> None:
    assert short_names([model, "another"])[model] == short


def test_models_with_the_same_short_name_keep_their_full_names() -> None:
    models = ["anthropic/claude-opus-5", "claude-opus-5", "gpt-5", "gpt-5"]
    assert short_names(models) == {name: name for name in models}


def test_dated_and_undated_names_of_a_model_have_one_short_name() -> None:
    dated, bare = "claude-sonnet-4-5-20250929", "claude-sonnet-4-5"
    assert short_names([bare, dated, bare]) == {dated: "sonnet-4-5", bare: "sonnet-4-5"}
    versions = ["gpt-4o", "gpt-4o-2024-05-13", "gpt-4o-2024-08-06"]  # these differ in price
    assert set(short_names(versions[1:]).values()) == set(versions[1:])
    assert short_names(versions)["gpt-4o-2024-05-13"] == "gpt-4o-2024-05-13"
    other = ["openrouter/anthropic/claude-sonnet-4-5", dated]
    assert short_names(other) == {name: name for name in other}
