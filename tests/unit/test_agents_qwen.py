"""Tests the reader for Qwen Code: each call is recorded once, and context sizes are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.truth import Clock, Tokens, Truth, append
from sidecar.agents.stores import COMPACTED, ESTIMATED
from tests.unit.agents_world import World


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


def test_every_call_counts_once(world: World, chat: Chat) -> None:
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


def test_call_in_telemetry_and_reply_counts_once(world: World, chat: Chat) -> None:
    """A sub-agent's call is a separate call, even if its token counts are the same."""
    for is_first in (True, False):
        chat.telemetry(is_first, chat.reply)
    chat.telemetry(True, lambda **_: None, subagent_name="explore")
    world.ingest()
    assert sorted(call.category for call in world.calls) == ["main", "main", "subagent"]


def test_turn_runs_after_a_tool_call(world: World, chat: Chat) -> None:
    parts: list[dict[str, Any]] = [{"text": "…"}, {"functionCall": {"name": "shell", "args": {}}}]
    for some, active in ((parts, True), (parts[:1], False)):
        chat.line("assistant", message={"role": "model", "parts": some})
        assert [session.active for session in world.sessions().values()] == [active]
