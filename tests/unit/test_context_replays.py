"""Tests that the occupancy equals the size of the next request in simulated sessions.

A simulated model server keeps the conversation, caches prompts, hides reasoning, and reports usage
like its vendor. The occupancy before each request is compared with the prompt size that the server
then reports.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import occupancy
from sidecar.messages.turns import Turn
from sidecar.messages.vendor_usage import normalize_usage
from tests.unit.context_fakes import FakeCounter, calls, message_size, output, reply, user

MARKS = 4
"""The number of template tokens after each reply. The reported usage does not include them."""


class Server:
    """A simulated model server whose tokenizer produces 1.2 tokens per character."""

    def __init__(self, shape: Callable[[int, int, int, int], dict[str, Any]]) -> None:
        self._shape = shape
        self.chat: list[Turn] = []
        self.cumulative = 0
        self._cached = 0

    def size(self) -> int:
        return 6 + sum(map(self.size_of, self.chat))

    @staticmethod
    def size_of(turn: Turn) -> int:
        return int(1.2 * message_size(turn)) + 5

    def answer(self, made: Turn, reasoning: int) -> tuple[int, dict[str, Any]]:
        """Return the request's tokens, and the usage in the vendor's format."""
        prompt = self.size()
        cached = min(self._cached, prompt)
        self._cached = prompt
        self.chat.append(made)
        out = self.size() - prompt - MARKS + reasoning
        self.cumulative += prompt + out
        return prompt, self._shape(prompt, cached, out, reasoning)

    def compact(self) -> None:
        self.chat = [user("summary of what was said"), *self.chat[-2:]]
        self._cached = 0


def openai(prompt: int, cached: int, out: int, reasoning: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": out,
        "total_tokens": prompt + out,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def anthropic(prompt: int, cached: int, out: int, reasoning: int) -> dict[str, Any]:
    fresh = min(20, prompt - cached)
    return {
        "input_tokens": fresh,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": prompt - cached - fresh,
        "output_tokens": out - reasoning,  # the server stores the reasoning with its turns
    }


def ollama(prompt: int, cached: int, out: int, reasoning: int) -> dict[str, Any]:
    return {"prompt_eval_count": prompt, "eval_count": out - reasoning, "done_reason": "stop"}


@pytest.mark.parametrize("shape", [openai, anthropic, ollama])
@pytest.mark.parametrize("seed", range(5))
def test_occupancy_is_the_size_of_the_next_request(
    shape: Callable[[int, int, int, int], dict[str, Any]], seed: int
) -> None:
    rng = random.Random(seed)
    server = Server(shape)
    session = Conversation("s", FakeCounter(weight=1))
    for number in range(40):
        asked = user("q" * rng.randrange(1, 4))
        if number % 7 == 3:
            asked = output(f"c{number}", "r" * 3)
            made = calls(f"c{number}")
            _, usage = server.answer(made, 0)
            session.append([made], normalize_usage(usage))
        if number in (15, 28):
            server.compact()
        predicted = occupancy(session).tokens
        server.chat.append(asked)
        session.append([asked])
        added = occupancy(session).tokens - predicted
        made = reply("a" * rng.randrange(20, 300))
        sent, usage = server.answer(made, rng.choice([0, 0, 200]))
        if number and number not in (15, 28):
            error = abs(added - server.size_of(asked))
            assert abs(predicted + added - sent) <= MARKS + error
        session.append([made], normalize_usage(usage))
    assert server.cumulative > 20 * occupancy(session).tokens


@pytest.mark.parametrize("shape", [openai, anthropic, ollama])
def test_only_compactions_are_reported_as_compactions(
    shape: Callable[[int, int, int, int], dict[str, Any]],
) -> None:
    server, session = Server(shape), Conversation("s", FakeCounter(weight=1))
    noticed = []
    for number in range(20):
        if number == 12:
            server.compact()
        server.chat.append(user("q" * 100))
        _, usage = server.answer(reply("a" * 200), 0)
        turns = [user("q" * 100), reply("a" * 200)]
        if session.append(turns, normalize_usage(usage)).compacted:
            noticed.append(number)
    assert noticed == [12]
    server.chat.append(user("q"))
    assert abs(occupancy(session).tokens - server.size()) <= 4 * MARKS
