"""Tests how the agent and session behind a tool call are identified."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pytest

from benchmarks.agents import claude
from benchmarks.agents.claude import ClaudeHome
from sidecar.agents.session_index import LOCK_NAME
from sidecar.config.paths import config_file, state_dir
from sidecar.conversations.context_protocol import SessionRow
from sidecar.mcp.open_project import (
    BEING_READ,
    Caller,
    Project,
    find_in_ends,
    find_session,
    identify,
    session_ids,
)
from tests.cases import read_rows
from tests.unit.context_fakes import session_row


def row(name: str, source: str, state: Literal["running", "idle", "ended"] = "idle") -> SessionRow:
    return session_row(id=name, source=source, state=state)


@pytest.mark.parametrize(("client", "agent"), read_rows("mcp", "client_names", "client", "agent"))
def test_agent_is_recognized_by_the_client_name(client: str, agent: str | None) -> None:
    assert Caller(client).agent == agent


def test_ids_of_sessions_are_found_in_meta() -> None:
    meta = {
        "progressToken": 1,
        "x-codex-turn-metadata": {"session_id": "a", "deep": {"threadId": "b"}},
        "sessionId": "c",
        "other": "d",
    }
    assert set(session_ids(meta)) == {"a", "b", "c"}
    assert session_ids(None) == ()


VARIABLES = {
    "CLAUDE_CODE_SESSION_ID": "outer",
    "QWEN_CODE_SESSION_ID": "inner",
    "COPILOT_AGENT_SESSION_ID": "middle",
}
CODEX = "codex-mcp-client"
META = {"session_id": "meta", "claudecode/toolUseId": "toolu_1"}


@pytest.mark.parametrize(
    ("caller", "rows", "found"),
    [
        (
            Caller(CODEX, ("old",)),
            [row("new", "codex", "running"), row("old", "codex")],
            ("old", 0),
        ),
        # The call is more specific than the environment.
        (
            identify("claude-code", META, VARIABLES),
            [row("outer", "claude-code", "running"), row("meta", "claude-code")],
            ("meta", 0),
        ),
        (
            Caller(CODEX),
            [row("x", "pi", "running"), *(row(name, "codex", "running") for name in "ba")],
            ("b", 1),
        ),
        (Caller(CODEX), [row("done", "codex", "ended"), row("open", "codex")], ("open", 0)),
        (Caller(CODEX), [row("a", "pi", "running")], None),
        # The variable is that of another agent, which has started this one.
        (
            identify("qwen-cli-mcp-client", None, VARIABLES),
            [row("inner", "codex", "running"), row("own", "qwen-code", "running")],
            ("own", 0),
        ),
    ],
)
def test_session_of_a_known_client(
    caller: Caller, rows: list[SessionRow], found: tuple[str, int] | None
) -> None:
    session = find_session(rows, caller)
    assert (session and (session.row.id, session.others)) == found


@pytest.mark.parametrize(("client", "ids"), read_rows("mcp", "own_variables"))
def test_only_the_callers_own_variable_names_its_session(client: str, ids: list[str]) -> None:
    assert list(identify(client, None, VARIABLES).session_ids) == ids


def test_id_of_the_tool_call_is_read_from_meta() -> None:
    caller = identify("claude-code", META, VARIABLES)
    assert (caller.session_ids, caller.tool_call) == (("meta", "outer"), "toolu_1")
    assert identify("claude-code", {"claudecode/toolUseId": 3}, {}).tool_call is None


@pytest.mark.parametrize("client", ["inspector-client", "", "mcp"])
def test_unknown_client_gets_the_newest_running_session(client: str) -> None:
    rows = [row("c", "pi"), row("b", "pi", "running"), row("a", "codex", "running")]
    session = find_session(rows, Caller(client))
    assert session is not None
    assert (session.row.id, session.others, session.is_callers) == ("b", 1, False)
    assert find_session([row("c", "pi"), row("d", "codex", "ended")], Caller(client)) is None


def test_a_client_with_the_default_name_may_be_vibe() -> None:
    rows = [row("b", "pi", "running"), row("a", "vibe", "running"), row("z", "vibe")]
    session = find_session(rows, Caller("mcp"))
    assert session is not None
    assert (session.row.id, session.others, session.is_callers) == ("a", 0, False)
    assert find_session(rows, Caller("mcp", ("z",))) == (rows[2], 0, True)


def test_search_for_a_call_reads_only_what_was_appended(tmp_path: Path) -> None:
    path, ends = tmp_path / "a.jsonl", dict[str, int]()
    paths = {"missing": str(tmp_path / "missing"), "a": str(path)}
    path.write_bytes(b"x" * (2 << 20))
    assert find_in_ends(paths, b"toolu_1", ends) is None
    with path.open("r+b") as file:
        file.seek(-100, 2)
        file.write(b"toolu_1")
        file.seek(0, 2)
        file.write(b" tool")
    assert find_in_ends(paths, b"toolu_1", ends) is None
    with path.open("ab") as file:
        file.write(b"u_1")
    assert find_in_ends(paths, b"toolu_1", ends) == "a"
    path.write_bytes(b"toolu_2")
    assert find_in_ends(paths, b"toolu_2", ends) == "a"


async def test_a_call_that_is_never_written_is_looked_for_ever_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "home" / "app"
    root.mkdir()
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(minutes=5)
    session = claude.everyday(home, root)
    project, searches, original = Project(root), list[Caller](), Project._find_call

    async def search(self: Project, caller: Caller, ends: dict[str, int]) -> str | None:
        searches.append(caller)
        return await original(self, caller, ends)

    monkeypatch.setattr(Project, "_find_call", search)
    await project.load_settings()
    found = await project.find_session(
        Caller("claude-code", (session.id,), tool_call="toolu_missing")
    )
    assert found is not None
    assert found.row.id == session.id
    assert 1 <= len(searches) <= 5
    await project.aclose()


async def test_recorded_calls_are_priced_again_after_a_change_of_prices(tmp_path: Path) -> None:
    root = tmp_path / "home" / "app"
    root.mkdir()
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(minutes=5)
    session = claude.everyday(home, root)

    async def spent_usd(project: Project, price: int) -> Decimal:
        config_file().write_text(
            f'[[price]]\nmodels = ["*"]\ninput = {price}.0\noutput = {price}.0\n'
        )
        await project.load_settings()
        found = await project.find_session(Caller("claude-code", (session.id,)))
        assert found is not None
        spent, note = await project.spent(found)
        assert note is None
        return spent.workspace

    first, later = Project(root), Project(root)
    usd = await spent_usd(first, 1)
    assert usd > 0
    assert await spent_usd(later, 2) == 2 * usd
    assert await spent_usd(later, 3) == 3 * usd
    await first.aclose()
    await later.aclose()


@pytest.mark.parametrize("old_sessions", [1, 3])
async def test_past_calls_are_not_read_while_another_process_reads_them(
    tmp_path: Path, old_sessions: int
) -> None:
    root = tmp_path / "home" / "app"
    root.mkdir()
    home = ClaudeHome(tmp_path / "home" / ".claude")
    old = [claude.everyday(home, root) for _ in range(old_sessions)]
    for session in old:
        os.utime(session.path, (0, 0))
    home.clock.now = datetime.now(UTC) - timedelta(minutes=5)
    shown = claude.everyday(home, root)
    project = Project(root)
    await project.load_settings()
    found = await project.find_session(Caller("claude-code", (shown.id,)))
    assert found is not None
    with closing(sqlite3.connect(state_dir() / LOCK_NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        spent, note = await project.spent(found)
        assert note == BEING_READ
        first = spent.calls
    spent, note = await project.spent(found)
    assert note is None
    assert spent.calls > first
    await project.aclose()
