"""Tests cases that other programs handle incorrectly.

`docs/reference/promises.md` lists all such cases. Tests for some of them are in other modules.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import ClaudeHome, Transcript, slug_of, usage
from benchmarks.agents.codex import CodexHome, everyday
from benchmarks.agents.copilot import MODEL, CodeHome
from benchmarks.agents.opencode import OpenHome
from benchmarks.agents.truth import Tokens
from sidecar.agents.session_index import make_ledger_event
from sidecar.cli import main
from sidecar.cost.prices import Prices
from sidecar.models import catalogue
from tests.unit.agents_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "claude-code")


@pytest.fixture
def home(world: World) -> ClaudeHome:
    return ClaudeHome(world.home / ".claude")


def _null_id(session: Transcript, tokens: Tokens) -> dict[str, Any]:
    tool = {"type": "tool_use", "id": "toolu_1", "name": "Edit", "input": {"id": None}}
    return session.message("msg_a", tokens, content=[tool])


def _null_speed(session: Transcript, tokens: Tokens) -> dict[str, Any]:
    return session.message("msg_a", tokens, usage=usage(tokens, speed=None, iterations=None))


def _usage_in_a_tool(session: Transcript, tokens: Tokens) -> dict[str, Any]:
    tool = {"type": "tool_use", "id": None, "input": {"message": {"usage": {"input_tokens": 9}}}}
    return session.message("msg_a", tokens, content=[tool])


@pytest.mark.parametrize("spaces", [False, True], ids=["compact", "spaces after the colon"])
@pytest.mark.parametrize("make", [_null_id, _null_speed, _usage_in_a_tool])
def test_nulls_and_spaces_in_lines_are_accepted(
    world: World, home: ClaudeHome, make: Any, spaces: bool
) -> None:
    session = home.session(world.root, spaces=spaces)
    tokens = Tokens(5, 6, 7, 0, 8)
    session.write(session.line("assistant", requestId="r", message=make(session, tokens)))
    session.took("msg_a", tokens)
    world.check(home.truth)


def test_reply_with_missing_request_ids_counts_once(world: World, home: ClaudeHome) -> None:
    """A gateway omits the request id in some lines. The message id identifies the reply."""
    session = home.session(world.root)
    for fields in ({}, {"requestId": "req_1"}, {"requestId": None}, {"requestId": ""}):
        body = session.message("msg_a", Tokens(5, 6, 7, 0, 8))
        session.write(session.line("assistant", message=body, **fields))
    session.took("msg_a", Tokens(5, 6, 7, 0, 8))
    world.check_calls(home.truth)


def test_one_hour_cache_writes_cost_twice_the_input(world: World, home: ClaudeHome) -> None:
    """Five-minute cache writes, which are the default, cost 1.25 times the input."""
    session = home.session(world.root)
    catalogue.warm()
    usd: list[Decimal | None] = []
    for write, hour in ((0, 0), (1_000_000, 0), (1_000_000, 1_000_000)):
        tokens = Tokens(1_000_000 - write, 0, write, hour, 0)
        body = session.message(f"msg_{len(usd)}", tokens)
        session.write(session.line("assistant", message=body))
        world.ingest()
        usd.append(Prices().cost(make_ledger_event(world.calls[-1], "claude-code")).usd)
    plain, minutes, hours = usd
    assert plain
    assert (minutes, hours) == (plain * Decimal("1.25"), plain * 2)


def test_long_paths_with_the_same_prefix_are_two_projects(world: World, home: ClaudeHome) -> None:
    """A project folder's name contains only the first 200 characters of the path."""
    deep = world.root / ("a" * 120) / ("b" * 120)
    folders = [deep / "one", deep / "two"]
    sessions = []
    for folder in folders:
        folder.mkdir(parents=True)
        sessions.append(home.session(folder, slug=slug_of(folder)[:200]))
        sessions[-1].reply()
    assert [set(world.sessions(folder)) for folder in folders] == [
        {session.id} for session in sessions
    ]


@pytest.mark.parametrize("restamped", [False, True])
def test_copied_usage_records_belong_to_the_parent(tmp_path: Path, restamped: bool) -> None:
    """Copied records contain the parent's id, so the parent's file is not needed."""
    world = World(tmp_path, "codex")
    home = CodexHome(tmp_path / ".codex")
    parent = everyday(home, world.root, 2, records=True, counts=False)
    known = set(home.truth.calls)
    fork = parent.fork(restamped=restamped)
    fork.begin_turn()
    fork.call()
    parent.path.unlink()
    world.ingest()
    assert set(world.recorded()) == set(home.truth.calls) - known


def test_consecutive_calls_with_equal_tokens_are_two(tmp_path: Path) -> None:
    """A larger total means that there was a new call, even if its token counts are the same."""
    world = World(tmp_path, "codex")
    home = CodexHome(tmp_path / ".codex")
    thread = home.thread(world.root)
    thread.begin_turn()
    thread.tokens = lambda: Tokens(900, 100, 0, 0, 50, 5)  # type: ignore[method-assign]
    for repeats in (0, 2, 0):
        thread.call(repeats=repeats)
    world.check_calls(home.truth)
    assert len(world.calls) == 3


def test_calls_with_equal_tokens_in_a_debug_log_are_two(tmp_path: Path) -> None:
    world = World(tmp_path, "copilot-chat")
    log = CodeHome(tmp_path / ".config/Code/User").session(world.root).debug_log()
    log.begin()
    attrs = {"model": MODEL, "inputTokens": 900, "outputTokens": 9, "debugName": "panel/editAgent"}
    for _ in range(2):
        log.write("llm_request", attrs=attrs)
    world.ingest()
    assert [call.buckets.prompt for call in world.calls] == [900, 900]


def test_sessions_in_one_file_have_their_own_times(tmp_path: Path) -> None:
    """The file's modification time applies only to the session that was written last."""
    world = World(tmp_path, "opencode")
    home = OpenHome(tmp_path / ".local/share/opencode")
    first = home.session(world.root)
    first.reply()
    home.clock.now += timedelta(hours=1)
    second = home.session(world.root)
    second.reply()
    assert list(world.sessions()) == [second.id, first.id]
    home.clock.now += timedelta(hours=1)
    first.reply()
    first.save()
    found = world.sessions()
    home.close()
    assert list(found) == [first.id, second.id]
    gap = found[first.id].updated_at - found[second.id].updated_at
    assert gap > timedelta(minutes=59)


def test_window_of_a_million_is_known_from_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transcript's model name lacks `[1m]`, and no call has exceeded 200,000 tokens yet."""
    root = tmp_path / "home" / "app"
    root.mkdir(parents=True)
    monkeypatch.chdir(root)
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(minutes=50)
    session = home.session(root)
    session.cached = 150_000
    session.reply()
    data = json.loads(CliRunner().invoke(main, ["usage", "--json"]).output)
    assert (data["tokens"], data["limit"]) == (home.truth.context[session.id], 1_000_000)


def test_projects_in_one_custom_folder_are_distinguished(tmp_path: Path) -> None:
    """All projects share the folder that `CLAUDE_CODE_PROJECT_DIR_NAME` defines."""
    world = World(tmp_path, "claude-code", {"CLAUDE_CODE_PROJECT_DIR_NAME": "mine"})
    home = ClaudeHome(tmp_path / ".claude")
    other = tmp_path / "other"
    other.mkdir()
    sessions = [home.session(root, slug="mine") for root in (world.root, world.root, other)]
    for age, session in enumerate(reversed(sessions)):
        session.reply()
        os.utime(session.path, (2_000_000_000 - age, 2_000_000_000 - age))
    assert set(world.sessions()) == {one.id for one in sessions[:2]}
    assert set(world.sessions(other)) == {sessions[2].id}
