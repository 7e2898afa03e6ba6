"""Tests the readers for Amp, Mistral Vibe, Continue, aider and Qwen Code."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents import others
from benchmarks.agents.truth import Clock, Tokens, Truth, append
from benchmarks.agents.vibe import VibeHome
from sidecar.agents.folders import Roots
from sidecar.agents.stores import COMPACTED, ESTIMATED
from tests.unit.agents_world import World


@pytest.mark.parametrize("model", ["claude-sonnet-5", "gpt-5.4"])
def test_amp_calls_count_once(tmp_path: Path, model: str) -> None:
    world, truth = World(tmp_path, "amp"), Truth()
    path = others.amp(world.home / ".local/share/amp", world.root, truth, model=model)
    for _ in range(2):
        world.ingest()
    world.check(truth)
    (shown,) = world.sessions().values()
    assert (shown.limit, shown.title) == (others.WINDOW, "A title")
    path.write_bytes(path.read_bytes()[:500])
    world.check_calls(truth)


def test_vibe_forks_are_sessions_with_their_own_calls(tmp_path: Path) -> None:
    """A session that was forked or rewound names the one that it continues, as a sub-agent does."""
    world = World(tmp_path, "vibe")
    home = VibeHome(world.home / ".vibe")
    folders = [home.session(world.root, 1, 50).parents[1] for _ in range(3)]
    for fork, source in itertools.pairwise(reversed(folders)):
        meta = json.loads((fork / "meta.json").read_text())
        (fork / "meta.json").write_text(json.dumps(meta | {"parent_session_id": source.name}))
    world.check(home.truth)
    assert {call.category for call in world.calls} == {"main"}


def test_vibe_calls_of_older_versions_count_once(tmp_path: Path) -> None:
    world, truth = World(tmp_path, "vibe"), Truth()
    for calls in (2, 5):
        others.vibe(world.home / ".vibe", world.root, truth, calls=calls)
        world.check_calls(truth)
    world.check_context(truth)


def test_continue_extension_calls_count_once(tmp_path: Path) -> None:
    """Identical lines are separate calls."""
    world = World(tmp_path, "continue")
    for _ in range(2):
        others.continue_dev(world.home / ".continue")
        world.ingest()
    assert [one for _, one in world.recorded().values()] == [Tokens(900, output=40)] * 6
    assert world.sessions() == {}


def test_aider_chats_have_calls_and_estimated_sizes(tmp_path: Path) -> None:
    world = World(tmp_path, "aider")
    (world.root / ".aider.chat.history.md").write_text(others.AIDER)
    shown, older = world.sessions().values()
    assert (older.ended, older.tokens) == (True, 15_200)
    assert (shown.tokens, shown.quality) == (2_750, "estimate")
    assert shown.error_percent == 75
    assert shown.model == "ollama/qwen3"
    (reader,) = world.readers
    (store,) = reader.find(world.places, Roots.of([world.root]))
    calls = reader.read(store).calls
    assert [
        (
            call.model,
            call.buckets.prompt,
            call.buckets.cache_read,
            call.buckets.completion,
        )
        for call in calls
    ] == [
        ("anthropic/claude-sonnet-5", 12_000, 0, 133),
        ("anthropic/claude-sonnet-5", 14_000, 3_500, 1_200),
        ("ollama/qwen3", 2_500, 0, 250),
    ]
    assert [call.agent_cost for call in calls] == [Decimal("0.04"), Decimal("0.06"), None]
    assert {call.reported_cost for call in calls} == {None}
    assert len({call.request_id for call in calls}) == 3


def test_aider_is_idle_after_reporting_a_message(tmp_path: Path) -> None:
    world = World(tmp_path, "aider")
    history = world.root / ".aider.chat.history.md"
    text = "\n# aider chat started at 2026-09-01 10:00:00\n"
    for line, active in (
        ("#### do it  ", True),
        ("> Tokens: 2.4k sent, 3 received. Cost: $0.006 message, $0.006 session.  ", False),
        ("#### do more  ", True),
        ("#### /exit  ", False),
    ):
        text += f"\n{line}\n"
        history.write_text(text)
        assert [one.active for one in world.sessions().values()] == [active]


class ContinueSession:
    """A session of Continue's command-line tool. It can be saved and read several times."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.path = world.home / ".continue" / "sessions" / "s-1.json"
        self.path.parent.mkdir(parents=True)
        self.history: list[dict[str, Any]] = []
        self.prompt = self.output = 0

    def call(self, prompt: int) -> dict[str, Any]:
        """Add a call to the session's total. Its message is saved later."""
        self.prompt, self.output = self.prompt + prompt, self.output + 7
        cached = {"cached_tokens": prompt // 2}
        used = {"prompt_tokens": prompt, "prompt_tokens_details": cached, "completion_tokens": 7}
        message = {"role": "assistant", "content": "", "usage": {**used, "model": "gpt-4.1"}}
        return {"message": message, "contextItems": []}

    def read(self) -> list[tuple[int, int]]:
        """Save and read the session. Returns (prompt tokens, cached tokens) for each new call."""
        total = {"promptTokens": self.prompt, "completionTokens": self.output}
        document = {"sessionId": "s-1", "workspaceDirectory": str(self.world.root)}
        self.path.write_text(json.dumps({**document, "history": self.history, "usage": total}))
        before = len(self.world.calls)
        self.world.ingest()
        return [(one.buckets.prompt, one.buckets.cache_read) for one in self.world.calls[before:]]


USER = {"message": {"role": "user", "content": "…"}}


@pytest.fixture
def session(tmp_path: Path) -> ContinueSession:
    return ContinueSession(World(tmp_path, "continue"))


def test_continue_bills_a_call_with_its_message(session: ContinueSession) -> None:
    session.history += [USER, session.call(100)]
    assert session.read() == [(100, 50)]
    coming = session.call(200)
    assert session.read() == []
    session.history += [USER, coming]
    assert session.read() == [(200, 100)]


def test_continue_bills_calls_without_a_message_as_one_call(session: ContinueSession) -> None:
    session.history += [USER, session.call(100)]
    session.read()
    session.call(300)  # the call was aborted, so it has no message
    session.call(50)
    session.history += [USER, session.call(200)]
    assert session.read() == [(350, 0), (200, 100)]
    assert session.read() == []


def test_continue_bills_no_call_again_after_a_summary(session: ContinueSession) -> None:
    session.history += [USER, session.call(100), USER, session.call(200)]
    session.read()
    session.history = [session.history[-1], USER, session.call(40)]
    assert session.read() == [(40, 20)]


def test_continue_bills_copied_messages_to_the_parent(session: ContinueSession) -> None:
    session.history += [USER, session.call(100), USER, session.call(200)]
    session.prompt = session.output = 0
    session.history += [USER, session.call(400)]
    assert session.read() == [(400, 200)]


def test_continue_bills_totals_once_when_the_state_is_lost(session: ContinueSession) -> None:
    """An update may discard the saved states, so that all stores are read from the start."""
    for prompt in (300, 70):
        session.call(prompt)  # the call was aborted, so it has no message
        session.history += [USER, session.call(100)]
        session.read()
    assert billed(session.world) == session.prompt == 570
    lose_states(session.world)
    session.history = [
        session.history[-1],
        USER,
        session.call(40),
    ]  # a summary has replaced the messages
    session.read()
    session.call(60)  # the call was aborted, so it has no message
    session.history += [USER, session.call(200)]
    session.read()
    assert billed(session.world) == session.prompt == 870


def lose_states(world: World) -> None:
    """Delete the saved states, so that all stores are read from the start."""
    with world.ledger.transaction() as connection:
        connection.execute("UPDATE store SET state = x'', size = 0")


def test_continue_bills_nothing_twice_when_a_file_is_replaced(session: ContinueSession) -> None:
    session.history += [USER, session.call(100), USER, session.call(200)]
    session.read()
    copy = session.path.with_suffix(".tmp")
    copy.write_bytes(session.path.read_bytes())
    copy.replace(session.path)
    session.history = [session.history[-1], USER, session.call(40)]
    assert session.read() == [(40, 20)]
    assert billed(session.world) == session.prompt


def billed(world: World) -> int:
    """Return the total prompt tokens of all calls in the ledger."""
    return sum(tokens.fresh + tokens.read for _, tokens in world.recorded().values())


CONTINUE_SETTINGS = {
    "config.yaml": """
name: Mine
models:
  - name: GPT
    provider: openai
    model: gpt-4.1   # ours
    roles:
      - chat
    defaultCompletionOptions:
      contextLength: 64000
  - name: Other
    model: "other"
    contextLength: 1000
rules:
  - Be brief.
""",
    "config.json": json.dumps({"models": [{"model": "gpt-4.1", "contextLength": 64_000}]}),
}


@pytest.mark.parametrize("name", CONTINUE_SETTINGS)
def test_continue_window_comes_from_its_settings(session: ContinueSession, name: str) -> None:
    session.history += [USER, session.call(100)]
    session.read()
    (session.path.parents[1] / name).write_text(CONTINUE_SETTINGS[name])
    (shown,) = session.world.sessions().values()
    assert shown.limit == 64_000


class Chat:
    """A chat in Qwen Code's format, with the expected calls and context sizes."""

    def __init__(self, world: World) -> None:
        self.clock, self.truth, self.world = Clock(3), Truth(), world
        self.id = self.clock.uuid()
        self.path = world.home / ".qwen" / "projects" / "-x" / "chats" / f"{self.id}.jsonl"
        self.user()

    def line(self, kind: str, **fields: Any) -> str:
        uuid = self.clock.uuid()
        common = {"uuid": uuid, "sessionId": self.id, "timestamp": self.clock.tick()}
        append(self.path, {**common, "type": kind, "cwd": str(self.world.root), **fields})
        return uuid

    def user(self) -> None:
        text = self.clock.text(200) + '"usageMetadata":{}'
        self.line("user", message={"role": "user", "parts": [{"text": text}]})

    def reply(self, *, inside: bool) -> None:
        """Write a reply.

        Args:
            inside: Whether the output tokens include the thinking tokens.
        """
        tokens = Tokens(500, 1_500, 0, 0, 90, 40)
        candidates = tokens.output if inside else tokens.output - tokens.reasoning
        usage = {
            "promptTokenCount": tokens.prompt,
            "candidatesTokenCount": candidates,
            "thoughtsTokenCount": tokens.reasoning,
            "cachedContentTokenCount": tokens.read,
            "totalTokenCount": tokens.prompt + tokens.output,
        }
        fields = {"usageMetadata": usage, "contextWindowSize": 262_144}
        uuid = self.line("assistant", model="qwen3-coder-plus", **fields)
        self.truth.calls[uuid] = (self.id, tokens)
        self.truth.context[self.id] = tokens.prompt + tokens.output

    def telemetry(self, is_first: bool, reply: Callable[..., None], **fields: Any) -> None:
        """Write a call's telemetry before or after its reply."""
        event = {
            "event.name": "qwen-code.api_response", "response_id": f"chatcmpl-{self.clock.id()}",
            "model": "qwen3-coder-plus", "input_token_count": 2_000, "output_token_count": 50,
            "cached_content_token_count": 1_500, "thoughts_token_count": 40,
            "total_token_count": 2_090, **fields,
        }  # fmt: skip
        if not is_first:
            reply(inside=False)
        self.line("system", subtype="ui_telemetry", systemPayload={"uiEvent": event})
        if is_first:
            reply(inside=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "qwen-code")


@pytest.fixture
def chat(world: World) -> Chat:
    return Chat(world)


def test_qwen_calls_count_once(world: World, chat: Chat) -> None:
    for inside in (True, False, True):
        chat.user()
        chat.reply(inside=inside)
    with chat.path.open("a") as file:
        file.write('broken "usageMetadata"\n{"type":"assistant","usageMetadata":{')
    world.ingest()
    assert world.ingest() == 0
    world.check(chat.truth)
    assert [session.limit for session in world.sessions().values()] == [262_144]


def test_qwen_estimate_is_shown_after_a_compression(world: World, chat: Chat) -> None:
    chat.reply(inside=True)
    for left, note in ((None, COMPACTED), (300, ESTIMATED)):
        info = {"originalTokenCount": 2_000, "newTokenCount": left}
        chat.line("system", subtype="chat_compression", systemPayload={"info": info})
        (shown,) = world.sessions().values()
        assert (shown.tokens, shown.note) == (left, note)
    chat.reply(inside=True)
    world.check_context(chat.truth)


def test_qwen_call_in_telemetry_and_reply_counts_once(world: World, chat: Chat) -> None:
    """A sub-agent's call is a separate call, even if its token counts are the same."""
    for is_first in (True, False):
        chat.telemetry(is_first, chat.reply)
    chat.telemetry(True, lambda **_: None, subagent_name="explore")
    world.ingest()
    assert sorted(call.category for call in world.calls) == ["main", "main", "subagent"]


def test_qwen_turn_runs_after_a_tool_call(world: World, chat: Chat) -> None:
    parts: list[dict[str, Any]] = [{"text": "…"}, {"functionCall": {"name": "shell", "args": {}}}]
    for some, active in ((parts, True), (parts[:1], False)):
        chat.line("assistant", message={"role": "model", "parts": some})
        assert [session.active for session in world.sessions().values()] == [active]
