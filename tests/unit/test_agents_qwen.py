"""Qwen Code's chats: every call once, and how full each session's window is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.agents.truth import Clock, Tokens, Truth, append
from sidecar.agents.occupancy import COMPACTED
from tests.unit.agents_world import World

if TYPE_CHECKING:
    from pathlib import Path


class Chat:
    """A chat as Qwen Code writes it; the truth grows with it."""

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
        """A reply; `inside`: its thoughts are part of the candidates."""
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
        self.truth.calls[f"{self.id}/{uuid}"] = (self.id, tokens)
        self.truth.context[self.id] = tokens.prompt + tokens.output


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
    world.check_context(chat.truth)
    assert [one.occupancy.limit for one in world.sessions().values()] == [262_144]


def test_a_compression_hides_the_size(world: World, chat: Chat) -> None:
    chat.reply(inside=True)
    info = {"originalTokenCount": 2_000, "newTokenCount": 300}
    chat.line("system", subtype="chat_compression", systemPayload={"info": info})
    assert [one.occupancy.note for one in world.sessions().values()] == [COMPACTED]
    chat.reply(inside=True)
    world.check_context(chat.truth)
