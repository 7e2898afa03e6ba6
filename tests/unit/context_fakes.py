"""A counter that needs no tokenizer, and functions that create conversations with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from sidecar.config.settings import Truncation
from sidecar.conversations.context_protocol import FitResult, SessionRow
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.pruning import apply_plan, make_plan
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.calibration import ConversationCalibration
from sidecar.counting.count_result import Measure, Method
from sidecar.messages.messages import Turn
from sidecar.models.window import Limit, Window

ENVELOPE = 4
PRIMING = 3


class Planner:
    """Creates, applies and undoes pruning plans for a conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation

    def make(self, max_tokens: int, **options: Any) -> FitResult:
        return make_plan(self.conversation, max_tokens, **options)

    def apply(self, plan_id: str) -> FitResult:
        return apply_plan(self.conversation, plan_id)

    def undo(self) -> bool:
        return self.conversation.undo()


class FakeCounter(Counter):
    """Counts `weight` tokens per character, 4 tokens per message, and 3 tokens before the reply.

    The counter records its calls in `asked`.
    """

    def __init__(
        self,
        key: str = "fake-1",
        weight: int = 1,
        method: Method = "exact",
        error_percent: float | None = 0.0,
    ) -> None:
        self.key, self.priming, self.basis_name = key, PRIMING, f"{key}-tokenizer"
        self.weight, self.method, self.error_percent = weight, method, error_percent
        self.asked: list[str] = []

    @property
    def tokenizer(self) -> str:
        return self.basis_name

    @property
    def basis(self) -> str:
        return self.basis_name

    def is_like(self, other: Counter) -> bool:
        return self.basis == other.basis

    def text(self, text: str) -> Measure:
        self.asked.append(text)
        return self._measure(len(text) * self.weight)

    def message(self, turn: Turn, counted: int | None = None) -> Measure:
        self.asked.append(turn.role)
        if counted is not None:
            return Measure(counted + ENVELOPE, "estimate", self.tokenizer, 0.0, counted)
        return self._measure(message_size(turn) * self.weight + ENVELOPE)

    def tools(self, tools: Sequence[Any]) -> Measure:
        self.asked.append("tools")
        return self._measure(len(json.dumps(tools)) * self.weight)

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        room = max(0, max_tokens // self.weight)
        if len(text) <= room:
            return text
        if truncation == "start":
            return text[:room]
        if truncation == "end":
            return text[len(text) - room :]
        return text[: room - room // 2] + text[len(text) - room // 2 :]

    def _measure(self, tokens: int) -> Measure:
        method: Method = self.method if tokens else "exact"
        return Measure(tokens, method, self.tokenizer, self.error_percent)


def message_size(turn: Turn) -> int:
    """Return the number of characters in a turn, excluding its role."""
    body = msgspec.to_builtins(turn)
    content = body.pop("content")
    text = content if isinstance(content, str) else json.dumps(content) if content else ""
    extra = {key: value for key, value in body.items() if key != "role" and value}
    return len(text) + (len(json.dumps(extra)) if extra else 0)


class FakeCalibration(ConversationCalibration):
    """A calibration with fixed values."""

    factor = 1.0
    samples = 0
    error_percent: float | None = None
    hidden: tuple[float, float] | None = None
    band_factor = 0.5

    def __init__(self, factor: float, samples: int, error_percent: float | None = None) -> None:
        self.factor, self.samples, self.error_percent = factor, samples, error_percent


class Clock:
    """A clock that advances only when the test changes it."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def on(self, **by: float) -> None:
        self.time += timedelta(**by)


def session(counter: FakeCounter | None = None, turns: Sequence[Turn] = ()) -> Conversation:
    """Return a conversation with these turns."""
    conversation = Conversation("s1", counter or FakeCounter(), now=Clock())
    if turns:
        conversation.append(turns)
    return conversation


def session_row(**fields: Any) -> SessionRow:
    """Return a row of a list of sessions."""
    made: dict[str, Any] = {
        "id": "0123456789abcdef",
        "source": "codex",
        "title": None,
        "model": "gpt-5",
        "tokens": 43_000,
        "limit": 100_000,
        "percent": 43,
        "method": "exact",
        "note": None,
        "state": "running",
        "parent": None,
        "cost_usd": None,
        "updated_at": "2026-11-22T11:57:00Z",
    }
    return SessionRow(**made | fields)


def window(limit: int = 10_000, reserve: int = 500) -> Window:
    """Return a context window with the source `catalogue`."""
    return Window(Limit(limit, "catalogue"), reserve)


def user(text: str) -> Turn:
    """Return a user turn."""
    return Turn(role="user", content=text)


def reply(text: str) -> Turn:
    """Return an assistant turn."""
    return Turn(role="assistant", content=text)


def calls(*ids: str, text: str | None = None, name: str = "read") -> Turn:
    """Return an assistant turn with one tool call per id."""
    made = [{"id": call_id, "name": name, "arguments": {"path": call_id}} for call_id in ids]
    return Turn(role="assistant", content=text, tool_calls=made)


def output(call_id: str, text: str = "done") -> Turn:
    """Return a turn with a tool result."""
    return Turn(role="tool", content=text, tool_call_id=call_id)
