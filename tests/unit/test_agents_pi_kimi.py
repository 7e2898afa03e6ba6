"""Tests the readers for Pi and Kimi CLI: each call counts once, and context sizes are right."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.truth import Clock, Tokens, Truth, append
from sidecar.agents.stores import COMPACTED
from sidecar.config.settings import Agents
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams
from sidecar.cost.export import exported
from sidecar.cost.sums import read_events
from tests.unit.agents_world import World, forks_of


class Pi:
    """A session in Pi's format, with the expected calls and context sizes."""

    def __init__(
        self, world: World, *, parent: Pi | None = None, path: Path | None = None, seed: int = 3
    ) -> None:
        self.clock: Clock = parent.clock if parent else Clock(seed)
        self.truth: Truth = parent.truth if parent else Truth()
        self.leaf: str | None = parent.leaf if parent else None
        self.id = self.clock.uuid()
        self.path = path or world.folder / "sessions/--x--" / f"2026_{self.id}.jsonl"
        header: dict[str, Any] = {"type": "session", "version": 3, "id": self.id}
        self.lines = [{**header, "timestamp": self.clock.tick(), "cwd": str(world.root)}]
        if parent:
            self.lines[0]["parentSession"] = str(parent.path)
            self.lines += parent.lines[1:]
        append(self.path, *self.lines)
        self.user()

    def entry(self, entry_type: str, **fields: Any) -> str:
        made = {"type": entry_type, "id": self.clock.id(8), "parentId": self.leaf}
        self.lines.append({**made, "timestamp": self.clock.tick(), **fields})
        append(self.path, self.lines[-1])
        self.leaf = str(made["id"])
        return self.leaf

    def user(self) -> str:
        content = [{"type": "text", "text": self.clock.text(90) + '"usage":{"input":5}'}]
        return self.entry("message", message={"role": "user", "content": content})

    def reply(self, size: int, stop: str = "stop") -> str:
        tokens = Tokens(size, 40, 10, 0, 7)
        usage = {"input": size, "output": 7, "cacheRead": 40, "cacheWrite": 10, "totalTokens": 1}
        message = {"role": "assistant", "provider": "anthropic", "model": "claude-opus-5"}
        made = self.entry("message", message={**message, "usage": usage, "stopReason": stop})
        self.truth.calls[f"{made}/{self.lines[-1]['timestamp']}"] = (self.id, tokens)
        if stop == "stop":
            self.truth.context[self.id] = tokens.prompt + tokens.output
        return made


@pytest.fixture
def pi_world(tmp_path: Path) -> World:
    return World(tmp_path, "pi")


@pytest.fixture
def pi(pi_world: World) -> Pi:
    made = Pi(pi_world)
    made.reply(100)
    return made


def test_pi_counts_each_call_once(pi_world: World, pi: Pi) -> None:
    fork = Pi(pi_world, parent=pi)
    fork.reply(300)
    fork.leaf = pi.leaf
    pi.reply(200)
    with pi.path.open("a") as file:
        file.write('broken "usage"\n{"type":"message","message":{"usage":{')
    pi_world.ingest()
    assert pi_world.ingest() == 0
    pi_world.check(pi.truth)


@pytest.mark.parametrize("agent", forks_of("pi"))
def test_forks_of_pi_are_read(tmp_path: Path, agent: str) -> None:
    world = World(tmp_path, agent)
    pi = Pi(world)
    pi.reply(100)
    world.check(pi.truth)
    assert set(world.agent_of.values()) == {agent}


def test_oh_my_pi_names_its_sessions_in_the_first_line(tmp_path: Path) -> None:
    """The line is rewritten in place, padded to the same length."""
    world = World(tmp_path, "oh-my-pi")
    pi = Pi(world)
    lines = pi.path.read_text()
    for title in ("First", "Second name"):
        head = {"type": "title", "v": 1, "title": title, "pad": " " * (20 - len(title))}
        pi.path.write_text(json.dumps(head) + "\n" + lines)
        (shown,) = world.sessions().values()
        assert shown.title == title


def test_pi_and_oh_my_pi_share_a_folder(tmp_path: Path) -> None:
    """Both use the folder that the variable names. Only oh-my-pi's files begin with a title."""
    both = Agents(sources=("pi", "oh-my-pi"))
    world = World(tmp_path, both, {"PI_CODING_AGENT_DIR": str(tmp_path / "both")})
    folder = tmp_path / "both/sessions/--x--"
    pi, omp = Pi(world, path=folder / "a.jsonl"), Pi(world, path=folder / "b.jsonl", seed=4)
    omp.path.write_text('{"type":"title","v":1,"title":"Named"}\n' + omp.path.read_text())
    for session in (pi, omp, child := Pi(world, path=folder / "b" / "Explore.jsonl", seed=5)):
        session.reply(100)
    world.ingest()
    assert {one.id: one.source for one in world.shown()} == {pi.id: "pi", omp.id: "oh-my-pi"}
    assert {call.session for call in world.calls} == {pi.id, omp.id, "b"}
    stores = [store for reader in world.readers for store in reader.find(world.places)]
    assert {store.path for store in stores} == {*map(str, (pi.path, child.path, omp.path))}
    assert len(stores) == 3


def test_oh_my_pi_windows_are_in_yaml(tmp_path: Path) -> None:
    world = World(tmp_path, "oh-my-pi")
    Pi(world).reply(100)
    assert [one.limit for one in world.shown()] != [123_000]
    settings = """
providers:
  local:
    models:
      - id: MODEL
        name: "The model: a test"
        contextWindow: 123000
"""
    (model,) = {one.model for one in world.shown()}
    (world.folder / "models.yml").write_text(settings.replace("MODEL", str(model)))
    assert [one.limit for one in world.shown()] == [123_000]


def test_oh_my_pi_reports_reasoning_and_the_lifetime_of_the_cache(tmp_path: Path) -> None:
    world = World(tmp_path, "oh-my-pi")
    lifetimes = {"cttl": {"ephemeral5m": 10, "ephemeral1h": 20}}
    usage = {"input": 1, "output": 9, "cacheWrite": 30, "reasoningTokens": 4} | lifetimes
    message = {"role": "assistant", "model": "claude-opus-5", "usage": usage, "stopReason": "stop"}
    Pi(world).entry("message", message=message)
    world.ingest()
    (call,) = world.calls
    assert call.buckets.reasoning == 4
    assert (call.buckets.cache_writes, call.buckets.cache_write_1h) == (30, 20)


def test_oh_my_pi_is_idle_after_its_exit(tmp_path: Path) -> None:
    world = World(tmp_path, "oh-my-pi")
    pi = Pi(world)
    assert [one.active for one in world.shown()] == [True]
    pi.entry("custom", customType="session_exit", data={"reason": "sigint"})
    assert [one.active for one in world.shown()] == [False]


def test_oh_my_pi_subagents_are_part_of_their_session(tmp_path: Path) -> None:
    world = World(tmp_path, "oh-my-pi")
    pi = Pi(world)
    pi.reply(100)
    child = Pi(world, path=pi.path.with_suffix("") / "Explore.jsonl")
    child.reply(30)
    assert list(world.sessions()) == [pi.id]
    calls = {(call.session, call.category, call.buckets.prompt) for call in world.calls}
    assert calls == {(pi.id, "main", 150), (pi.id, "subagent", 80)}


@pytest.mark.parametrize("end", ["", " ", "\0\0", "\n", "\r\n", " \0\n"])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_entry_that_is_cut_and_written_again_counts_once(
    pi_world: World, pi: Pi, end: str, lost: int
) -> None:
    pi.reply(200)
    lines = pi.path.read_text().splitlines()
    pi.path.write_text("\n".join([*lines[:-1], lines[-1][:-lost] + end + lines[-1], ""]))
    pi_world.check_calls(pi.truth)


def test_pi_shows_the_active_branch(pi_world: World, pi: Pi) -> None:
    before, branch = pi.truth.context[pi.id], pi.leaf
    pi.user()
    pi.reply(900)
    pi.leaf = branch
    pi.user()
    pi.truth.context[pi.id] = before
    pi_world.check(pi.truth)


def test_pi_failed_replies_do_not_set_the_context_size(pi_world: World, pi: Pi) -> None:
    pi.reply(5_000, stop="aborted")
    pi_world.check_context(pi.truth)


def test_pi_size_is_unknown_after_a_compaction(pi_world: World, pi: Pi) -> None:
    (before,) = pi_world.sessions().values()
    pi.entry("compaction", summary="short", tokensBefore=9, firstKeptEntryId=pi.leaf)
    pi.entry("session_info", name="Named")
    (shown,) = pi_world.sessions().values()
    assert (shown.note, shown.title) == (COMPACTED, "Named")
    assert shown.model == before.model is not None
    assert shown.active is False


def test_pi_calls_through_a_proxy_are_priced_by_the_maker(pi_world: World, pi: Pi) -> None:
    usage = {"input": 1_000_000, "output": 0, "cost": {"total": 0.5}}
    for model in ("gpt-5", "my-model"):
        message = {"role": "assistant", "provider": "my-proxy", "model": model, "usage": usage}
        pi.entry("message", message=message)
    pi_world.ingest()
    book = CostBook(pi_world.home / "state", zone=UTC)
    rows = book.detail(CostDetailParams()).rows
    events = list(read_events(book.ledger, book.scope(CostDetailParams())))
    calls = [exported(event) for event in events]
    book.close()
    costs = {"gpt-5": (1.25, 0.5), "my-model": (0.5, 0.5)}
    reported = {row.model: (row.cost_usd, row.agent_cost_usd) for row in rows}
    assert costs.items() <= reported.items()
    assert (
        costs.items()
        <= {call.model: (call.cost_usd, call.agent_cost_usd) for call in calls}.items()
    )
    assert {call.model: call.provider for call in calls} == {
        "claude-opus-5": "anthropic",
        "gpt-5": "openai",
        "my-model": "my-proxy",
    }


def usage_of(tokens: Tokens, **cost: Any) -> dict[str, Any]:
    """Return token counts as Pi 1 writes them. `write` includes the one-hour writes."""
    return {
        "input": tokens.fresh, "output": tokens.output, "cacheRead": tokens.read,
        "cacheWrite": tokens.write, "cacheWrite1h": tokens.write_1h,
        "reasoning": tokens.reasoning, "cost": cost,
    }  # fmt: skip


def test_pi_counts_the_calls_of_all_entries(pi_world: World, pi: Pi) -> None:
    """Summaries, tools and cache warming also call models."""
    claude = {"provider": "anthropic", "model": "claude-opus-5"}
    result = {"role": "toolResult", "toolName": "task", "content": []}
    pi.entry("usage", kind="cache_warm", **claude, usage=usage_of(Tokens(1, 70)))
    pi.entry("usage", kind="my own", **claude, usage=usage_of(Tokens(2, 0, 9, 4)))
    pi.entry("message", message=result | {"usage": usage_of(Tokens(3, output=5))})
    branch = pi.entry("model_change", provider="openai", modelId="gpt-5")
    pi.entry("compaction", fromHook=True, usage=usage_of(Tokens(4, output=1)))
    pi.entry("compaction", usage=usage_of(Tokens(5, 7, output=9, reasoning=8)))
    left = pi.entry("model_change", provider="openai", modelId="gpt-5-mini")
    pi.leaf = branch
    pi.entry("branch_summary", fromId=left, usage=usage_of(Tokens(6, output=2)))
    pi.reply(100)
    pi_world.ingest()
    calls = [
        (call.buckets.prompt, call.buckets.reasoning, call.category, call.model)
        for call in pi_world.calls
    ]
    assert calls == [
        (150, 0, "main", "claude-opus-5"),
        (71, 0, "main", "claude-opus-5"),
        (11, 0, "main", "claude-opus-5"),
        (3, 0, "subagent", "unknown"),
        (4, 0, "summary", "unknown"),
        (12, 8, "summary", "gpt-5"),
        (6, 0, "summary", "gpt-5-mini"),
        (150, 0, "main", "claude-opus-5"),
    ]


def test_pi_shows_the_size_after_calls_that_are_no_replies(pi_world: World, pi: Pi) -> None:
    pi.entry("usage", kind="cache_warm", model="claude-opus-5", usage=usage_of(Tokens(9, 9_000)))
    command = {"role": "bashExecution", "command": "ls", "output": "x"}
    pi.entry("message", message=command)
    pi_world.check_context(pi.truth)
    (shown,) = pi_world.sessions().values()
    assert shown.active is False


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ({"total": 0.5}, (None, Decimal("0.5"))),
        ({"total": 0.5, "totalFromProvider": False}, (None, Decimal("0.5"))),
        ({"total": 0.5, "totalFromProvider": True}, (Decimal("0.5"), None)),
        ({"total": 0, "totalFromProvider": True}, (None, None)),
    ],
)
def test_pi_says_whether_the_provider_reported_the_cost(
    pi_world: World, pi: Pi, cost: dict[str, Any], expected: tuple[Decimal | None, ...]
) -> None:
    pi.entry("usage", kind="x", model="gpt-5", usage=usage_of(Tokens(77), **cost))
    pi_world.ingest()
    (call,) = (call for call in pi_world.calls if call.buckets.prompt == 77)
    assert (call.reported_cost, call.agent_cost) == expected


def test_pi_one_hour_writes_have_their_own_price(pi_world: World, pi: Pi) -> None:
    """A million tokens written for five minutes and a million for an hour."""
    usage = usage_of(Tokens(write=2_000_000, write_1h=1_000_000))
    model = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    message = {"role": "assistant", **model, "usage": usage, "stopReason": "stop"}
    for entry in ({"message": message}, {"kind": "cache_warm", **model, "usage": usage}):
        pi.entry("message" if "message" in entry else "usage", **entry)
    pi_world.ingest()
    book = CostBook(pi_world.home / "state", zone=UTC)
    costs = {row.model: row.cost_usd for row in book.detail(CostDetailParams()).rows}
    book.close()
    assert costs["claude-sonnet-4-5"] == 2 * (7.5 + 12)  # long prompts cost twice as much


def test_pi_reports_the_model_that_answered(pi_world: World, pi: Pi) -> None:
    routed = {"provider": "openrouter", "model": "openrouter/auto", "responseModel": "z-ai/glm-5"}
    message = {"role": "assistant", **routed, "usage": usage_of(Tokens(55)), "stopReason": "stop"}
    pi.entry("message", message=message)
    pi_world.ingest()
    assert [call.model for call in pi_world.calls][-1] == "z-ai/glm-5"


def test_pi_files_without_entry_ids_are_read(pi_world: World) -> None:
    """In version 1, each entry follows the one before it."""
    path = pi_world.home / ".pi/agent/sessions/--x--/old.jsonl"
    time = "2025-11-20T10:00:0{}.000Z"
    usage = {"input": 5, "output": 6, "cacheRead": 7, "cacheWrite": 0, "totalTokens": 18}
    message = {"role": "assistant", "provider": "openai", "model": "gpt-5", "usage": usage}
    header = {
        "type": "session",
        "id": "old",
        "cwd": str(pi_world.root),
        "timestamp": time.format(0),
    }
    append(path, header)
    for second in (1, 2):
        append(path, {"type": "message", "timestamp": time.format(second), "message": message})
        assert pi_world.sessions()["old"].tokens == 18
    pi_world.ingest()
    assert len(pi_world.recorded()) == 2


@pytest.mark.parametrize("place", ["models", "modelOverrides"])
def test_pi_window_comes_from_its_settings(tmp_path: Path, place: str) -> None:
    """Models that the user has added are not in any price list."""
    world = World(tmp_path, "pi")
    pi = Pi(world)
    pi.reply(500)
    size = {"contextWindow": 64_000}
    models = {"models": [size | {"id": "claude-opus-5"}], "modelOverrides": {"claude-opus-5": size}}
    settings = {"providers": {"anthropic": {place: models[place]}}}
    world.ingest()
    (pi.path.parents[2] / "models.json").write_text(json.dumps(settings))
    (shown,) = world.sessions().values()
    assert shown.limit == 64_000


class Kimi:
    """A session in Kimi CLI's format, with the expected calls and context sizes."""

    def __init__(self, world: World) -> None:
        self.clock, self.truth, self.id = Clock(3), Truth(), "s-1"
        root = os.path.realpath(world.root)
        folder = hashlib.md5(root.encode(), usedforsecurity=False).hexdigest()
        self.path = world.home / ".kimi" / "sessions" / folder / self.id / "wire.jsonl"
        append(self.path, {"type": "metadata", "protocol_version": "1.10"})
        known = {"work_dirs": [{"path": root, "kaos": "local"}]}
        (world.home / ".kimi" / "kimi.json").write_text(json.dumps(known))

    def message(self, kind: str, **payload: Any) -> None:
        self.clock.tick()
        message = {"type": kind, "payload": payload}
        append(self.path, {"timestamp": self.clock.now.timestamp(), "message": message})

    def reply(self, size: int) -> None:
        tokens = Tokens(size, 30, 5, 0, 9)
        usage = {
            "input_other": size, "input_cache_read": 30, "input_cache_creation": 5, "output": 9,
        }  # fmt: skip
        name = f"chatcmpl-{self.clock.id()}"
        for _ in range(2):  # Kimi CLI repeats the status when its mode changes
            self.message(
                "StatusUpdate",
                token_usage=usage,
                message_id=name,
                context_tokens=size + 44,
                max_context_tokens=262_144,
            )
        self.truth.calls[name] = (self.id, tokens)
        self.truth.context[self.id] = tokens.prompt + tokens.output


@pytest.fixture
def kimi_world(tmp_path: Path) -> World:
    return World(tmp_path, "kimi-cli")


@pytest.fixture
def kimi(kimi_world: World) -> Kimi:
    made = Kimi(kimi_world)
    made.message("TurnBegin", user_input='hello "token_usage"')
    made.reply(1_000)
    return made


def test_kimi_counts_each_call_once(kimi_world: World, kimi: Kimi) -> None:
    kimi.message("StatusUpdate", token_usage=None, context_usage=0.1, message_id=None)
    with kimi.path.open("a") as file:
        file.write('{"message":{"type":"StatusUpdate","payload":{"token_usage":{"output":-1}}}}\n')
    kimi.message("TurnEnd")
    with kimi.path.open("a") as file:
        file.write("{")
    kimi_world.ingest()
    assert kimi_world.ingest() == 0
    kimi_world.check(kimi.truth)
    (shown,) = kimi_world.sessions().values()
    assert (shown.limit, shown.active) == (262_144, False)
    assert {call.workspace for call in kimi_world.calls} == {os.path.realpath(kimi_world.root)}


def test_kimi_size_is_unknown_after_a_compaction(kimi_world: World, kimi: Kimi) -> None:
    kimi.message("CompactionBegin")
    kimi.message("CompactionEnd")
    assert [session.note for session in kimi_world.sessions().values()] == [COMPACTED]
    kimi.reply(50)
    kimi_world.check_context(kimi.truth)
