"""Tests that a call in several sessions belongs to the earliest, in whatever order they are read."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents import claude, codex
from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from sidecar.agents.session_index import SessionIndex
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams
from sidecar.cost.ledger import Ledger
from tests.unit.agents_world import World

AT = datetime(2026, 11, 20, 10, tzinfo=UTC)

Owners = dict[str, str]
"""The session that owns each call, keyed by request id."""


def stamp(second: float) -> str:
    return (AT + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")


def milliseconds(second: float) -> int:
    return int((AT + timedelta(seconds=second)).timestamp() * 1000)


def write(path: Path, *lines: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def claude_line(session: str, second: int, **marks: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10 + second, "output_tokens": 5}
    message = {"id": f"msg_{second}", "model": "claude-opus-5", "role": "assistant", "usage": usage}
    return {
        "type": "assistant", "uuid": f"u{second}", "sessionId": session, "cwd": "/w",
        "timestamp": stamp(second), "message": message, **marks,
    }  # fmt: skip


def claude_branch(home: Path) -> Owners:
    """A branch of a branch. `/branch` names the copied line in each copy."""
    folder = home / ".claude" / "projects" / "-w"
    one = [claude_line("one", second) for second in (1, 2)]
    two = [claude_line("two", s, forkedFrom={"sessionId": "one"}) for s in (1, 2)]
    two.append(claude_line("two", 3))
    three = [claude_line("three", s, forkedFrom={"sessionId": "two"}) for s in (1, 2, 3)]
    three.append(claude_line("three", 4))
    one.append(claude_line("one", 9))  # the original continues last
    for name, lines in (("one", one), ("two", two), ("three", three)):
        write(folder / f"{name}.jsonl", *lines)
    return {"msg_1": "one", "msg_2": "one", "msg_3": "two", "msg_4": "three", "msg_9": "one"}


def claude_resumed(home: Path) -> Owners:
    """Sessions that were resumed under a new id, which nothing marks as copies."""
    folder = home / ".claude" / "projects" / "-w"
    owners = {}
    for last, name in enumerate(("zzz", "mmm", "aaa"), 1):
        write(folder / f"{name}.jsonl", *(claude_line(name, s) for s in range(1, last + 1)))
        owners[f"msg_{last}"] = name
    return owners


def claude_sidechain(home: Path) -> Owners:
    """A sub-agent that starts with the conversation's messages."""
    folder = home / ".claude" / "projects" / "-w"
    write(folder / "one.jsonl", claude_line("one", 1), claude_line("one", 2))
    copies = [claude_line("one", second, isSidechain=True) for second in (1, 2, 3)]
    write(folder / "one" / "subagents" / "agent-1.jsonl", *copies)
    return {"msg_1": "one", "msg_2": "one", "msg_3": "one"}


def claude_corpus(home: Path) -> Owners:
    """Generated sessions with background forks, some of the beginning of a session."""
    root = home / "work"
    root.mkdir()
    made = ClaudeHome(home / ".claude")
    first = claude.everyday(made, root, turns=2)
    first.copy(background=True).reply()
    first.copy(background=True, keeps=6).reply()
    first.reply()
    return {name: session for name, (session, _) in made.truth.calls.items()}


def codex_forks(home: Path) -> Owners:
    root = home / "work"
    root.mkdir()
    made = CodexHome(home / ".codex")
    parent = codex.everyday(made, root, turns=2)
    for restamped in (True, False):
        fork = parent.fork(restamped=restamped)
        fork.begin_turn()
        fork.call()
    return {name: session for name, (session, _) in made.truth.calls.items()}


def pi_reply(second: int) -> dict[str, Any]:
    usage = {"input": 10 + second, "output": 5, "cacheRead": 0, "cacheWrite": 0}
    message = {"role": "assistant", "model": "kimi-k3", "usage": usage, "stopReason": "stop"}
    return {"type": "message", "id": f"e{second}", "timestamp": stamp(second), "message": message}


def pi_forks(home: Path) -> Owners:
    """Two forks that contain the same calls of a session that has been deleted."""
    folder = home / ".pi" / "agent" / "sessions" / "--w--"
    for name, began, own in (("zzz", 5, 9), ("aaa", 6, 7)):
        header = {"type": "session", "version": 3, "id": name, "cwd": "/w",
                  "timestamp": stamp(began), "parentSession": "/gone.jsonl"}  # fmt: skip
        write(folder / f"{name}.jsonl", header, pi_reply(1), pi_reply(2), pi_reply(own))
    return {
        f"e{second}/{stamp(second)}": owner
        for second, owner in ((1, "zzz"), (2, "zzz"), (9, "zzz"), (7, "aaa"))
    }


def qwen_reply(session: str, second: int, origin: str | None = None) -> dict[str, Any]:
    usage = {"promptTokenCount": 10 + second, "candidatesTokenCount": 5,
             "totalTokenCount": 15 + second}  # fmt: skip
    marks = {} if origin is None else {"forkedFrom": {"sessionId": origin, "messageUuid": "u"}}
    return {"type": "assistant", "uuid": f"q{second}", "sessionId": session, "cwd": "/w",
            "timestamp": stamp(second), "model": "qwen3", "usageMetadata": usage,
            **marks}  # fmt: skip


def qwen_forks(home: Path) -> Owners:
    folder = home / ".qwen" / "projects" / "-w" / "chats"
    write(folder / "one.jsonl", *(qwen_reply("one", second) for second in (1, 2, 9)))
    two = [qwen_reply("two", 1, "one"), qwen_reply("two", 2, "one"), qwen_reply("two", 3)]
    write(folder / "two.jsonl", *two)
    three = [qwen_reply("three", second, "two") for second in (1, 2, 3)]
    write(folder / "three.jsonl", *three, qwen_reply("three", 4))
    return {"q1": "one", "q2": "one", "q9": "one", "q3": "two", "q4": "three"}


def kimi_usage(second: int) -> dict[str, Any]:
    usage = {"inputOther": 10 + second, "output": 5, "inputCacheRead": 0, "inputCacheCreation": 0}
    return {"type": "usage.record", "time": milliseconds(second), "model": "k", "usage": usage}


def kimi_forks(home: Path) -> Owners:
    """Forks copy all lines of the conversation and of its sub-agents."""
    folder = home / ".kimi-code" / "sessions" / "w"
    owners = {}
    for number, name in enumerate(("zzz", "mmm", "aaa")):
        state = {"id": name, "cwd": "/w", "createdAt": milliseconds(10 * number)}
        if number:
            state["forkedFrom"] = "zzz"
        write(folder / name / "state.json", state)
        calls = [kimi_usage(10 * earlier + 1) for earlier in range(number + 1)]
        write(folder / name / "agents" / "main" / "wire.jsonl", *calls)
        write(folder / name / "agents" / "sub" / "wire.jsonl", kimi_usage(2))
        owners[f"{milliseconds(10 * number + 1)}/{21 + 10 * number - 10}/5"] = name
    return owners | {f"{milliseconds(2)}/12/5": "zzz"}


def cline_copies(home: Path) -> Owners:
    """Sessions that start with the messages of another one."""
    folder = home / ".cline" / "data" / "sessions"
    owners = {}
    for last, name in enumerate(("zzz", "mmm", "aaa"), 1):
        replies = [
            {"id": f"c{second}", "role": "assistant", "ts": milliseconds(second),
             "metrics": {"inputTokens": 10 + second, "outputTokens": 5}}
            for second in range(1, last + 1)
        ]  # fmt: skip
        write(folder / name / f"{name}.json", {"cwd": "/w"})
        write(folder / name / f"{name}.messages.json", {"sessionId": name, "messages": replies})
        owners[f"c{last}"] = name
    return owners


FAMILIES: list[tuple[str, Callable[[Path], Owners]]] = [
    ("claude-code", claude_branch),
    ("claude-code", claude_resumed),
    ("claude-code", claude_sidechain),
    ("claude-code", claude_corpus),
    ("codex", codex_forks),
    ("pi", pi_forks),
    ("qwen-code", qwen_forks),
    ("kimi-code", kimi_forks),
    ("cline", cline_copies),
]


def rows(ledger: Ledger) -> list[tuple[Any, ...]]:
    """Return the calls with their owners and other sessions, without row ids."""
    with ledger.reader() as connection:
        calls = connection.execute(
            "SELECT request, session.name, workspace, category, at, input, output, event.id "
            "FROM event JOIN session ON session.id = event.session "
            "JOIN kind ON kind.id = event.kind"
        ).fetchall()
        others = connection.execute(
            "SELECT event, name FROM copy JOIN session ON session.id = session ORDER BY name"
        ).fetchall()
    return sorted(
        (*row, tuple(name for event, name in others if event == at)) for *row, at in calls
    )


def summed(ledger: Ledger) -> list[tuple[Any, ...]]:
    """Return the number of calls of each session and category, from the daily sums."""
    book = CostBook(ledger.path.parent)
    found = book.detail(CostDetailParams(by=("session", "category")))
    book.close()
    return sorted((row.session, row.category, row.calls) for row in found.rows)


@pytest.mark.parametrize(("agent", "family"), FAMILIES, ids=[f.__name__ for _, f in FAMILIES])
def test_a_call_belongs_to_the_earliest_session_in_any_order(
    tmp_path: Path, agent: str, family: Callable[[Path], Owners]
) -> None:
    owners = family(tmp_path)
    world = World(tmp_path, agent)
    stores = world.stores()
    assert len(stores) > 1
    orders, found = list(itertools.permutations(stores)), []
    for number, order in enumerate(random.Random(1).sample(orders, min(len(orders), 8))):
        ledger = Ledger(tmp_path / str(number) / "ledger.db")
        index = SessionIndex(ledger)
        for store in order:
            index.read(world.readers, [store])
        found.append((rows(ledger), summed(ledger)))
        ledger.close()
    assert {row[0]: row[1] for row in found[0][0]} == owners
    assert all(one == found[0] for one in found)


def test_a_copied_call_keeps_all_its_sessions(tmp_path: Path) -> None:
    qwen_forks(tmp_path)
    world = World(tmp_path, "qwen-code")
    world.ingest()
    others = {row[0]: row[-1] for row in rows(world.ledger)}
    assert others == {"q1": ("three", "two"), "q2": ("three", "two"), "q3": ("three",),
                      "q4": (), "q9": ()}  # fmt: skip


def test_a_new_owner_moves_the_call_in_the_daily_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums contain only older calls, so the copies are followed by enough other calls."""
    monkeypatch.setattr("sidecar.cost.ledger.FOLD_EVERY", 8)
    qwen_forks(tmp_path)
    folder = tmp_path / ".qwen" / "projects" / "-w" / "chats"
    write(folder / "other.jsonl", *(qwen_reply("other", second) for second in range(20, 40)))
    world = World(tmp_path, "qwen-code")
    by_name = {store.path.rpartition("/")[2]: store for store in world.stores()}
    for name in ("three.jsonl", "two.jsonl", "other.jsonl", "one.jsonl"):
        world.index.read(world.readers, [by_name[name]])
    with world.ledger.reader() as connection:
        assert connection.execute("SELECT upto FROM folded").fetchone()[0] >= 8
    calls = {name: count for name, _, count in summed(world.ledger)}
    assert calls == {"one": 3, "two": 1, "three": 1, "other": 20}


def test_a_message_that_a_subagent_repeats_is_the_main_conversations(tmp_path: Path) -> None:
    copies = [claude_line("one", 1, isSidechain=True, requestId="other")]
    folder = tmp_path / ".claude" / "projects" / "-w"
    write(folder / "one.jsonl", claude_line("one", 1), *copies, claude_line("one", 2))
    write(folder / "two.jsonl", *copies, claude_line("one", 1))
    world = World(tmp_path, "claude-code")
    world.ingest()
    assert {row[3] for row in rows(world.ledger)} == {"main"}
