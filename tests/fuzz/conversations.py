"""Generates valid and broken conversations in all vendors' formats, and checks plans for them.

The checks parse messages independently, and use only the results of `sidecar.conversations`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from sidecar.conversations.context_protocol import FitResult
from sidecar.messages.messages import Turn

SHAPES = ("contract", "openai", "anthropic", "bedrock", "gemini")
MOVES = (
    *["user"] * 5,
    *["reply"] * 4,
    *["call"] * 5,
    *["answer"] * 8,
    "empty reply",
    "empty user",
    "empty output",
    "system",
    "foreign",
    "talk and answer",
    "answer again",
)


class Move(NamedTuple):
    """A conversation step. `number` and `size` determine how many calls and characters it has."""

    kind: str
    number: int
    size: int


class Case(NamedTuple):
    """A conversation, and the params for `context/fit`."""

    turns: list[Turn]
    max_tokens: int
    keep_turns: int
    system: str | None
    summarize: bool
    usage: tuple[int, int] | None
    """The prompt and output tokens reported for each turn."""


moves = st.integers(0, 28).flatmap(
    lambda number: st.lists(
        st.builds(Move, st.sampled_from(MOVES), st.integers(0, 2), st.integers(0, 300)),
        min_size=number,
        max_size=number,
    )
)
cases = st.builds(
    lambda shape, made, most, keep, system, summarize, usage: Case(
        build(shape, made), most, keep, "s" * system or None, summarize, usage
    ),
    st.sampled_from(SHAPES),
    moves,
    st.integers(0, 4000),
    st.integers(0, 4),
    st.integers(0, 30),
    st.booleans(),
    st.none() | st.tuples(st.integers(0, 9000), st.integers(0, 900)),
)


def build(shape: str, made: list[Move]) -> list[Turn]:
    """Build a conversation from random steps. Every string contains a number, such as `#7`."""
    maker = _Maker(shape)
    for move in made:
        maker.move(move)
    return maker.turns


class _Maker:
    """Builds turns, and keeps track of the calls without a result."""

    def __init__(self, shape: str) -> None:
        self.shape = shape
        self.turns: list[Turn] = []
        self._open: list[str] = []
        self._answered: list[str] = []
        self._marks = 0

    def move(self, move: Move) -> None:  # noqa: C901 - one case per kind of move
        text = self._text(move.size)
        match move.kind:
            case "user":
                self._say("user", text)
            case "reply":
                self._say("assistant", text)
            case "system":
                self._say("system", text)
            case "empty reply":
                self.turns.append(Turn(role="assistant", content=[] if move.number else None))
            case "empty user":
                self.turns.append(Turn(role="user", content=""))
            case "call":
                self._call([self._mark("c") for _ in range(move.number + 1)], move)
            case "answer" | "empty output" | "talk and answer":
                if self._open:
                    taken = self._open.pop(min(move.number, len(self._open) - 1))
                    self._answered.append(taken)
                    self._answer(taken, "" if move.kind == "empty output" else text, move)
            case "answer again":
                if self._answered:
                    self._answer(self._answered[-1], text, move)
            case "foreign":
                self._answer(self._mark("f"), text, move)

    def _mark(self, sign: str) -> str:
        self._marks += 1
        return f"{sign}{self._marks}"

    def _text(self, size: int) -> str:
        return self._mark("#") + " " + "x" * size

    def _say(self, role: str, text: str) -> None:
        blocks: Any = text
        if self.shape == "anthropic":
            blocks = [{"type": "text", "text": text}]
        elif self.shape in ("bedrock", "gemini"):
            blocks = [{"text": text}]
        self.turns.append(Turn(role=role, content=blocks))

    def _call(self, ids: list[str], move: Move) -> None:
        self._open += ids
        text = self._text(move.size) if move.size % 2 else ""
        match self.shape:
            case "contract":
                made = [{"id": call_id, "name": "t", "arguments": {}} for call_id in ids]
                turn = Turn(role="assistant", content=text or None, tool_calls=made)
            case "openai":
                made = [
                    {"id": call_id, "function": {"name": "t", "arguments": "{}"}} for call_id in ids
                ]
                turn = Turn(role="assistant", content=text, openai_tool_calls=made)
            case _:
                said = [{"type": "text", "text": text}] if text else []
                turn = Turn(role="assistant", content=said + [self._call_block(o) for o in ids])
        self.turns.append(turn)

    def _call_block(self, one: str) -> dict[str, Any]:
        match self.shape:
            case "anthropic":
                return {"type": "tool_use", "id": one, "name": "t", "input": {}}
            case "bedrock":
                return {"toolUse": {"toolUseId": one, "name": "t", "input": {}}}
            case _:
                return {"functionCall": {"id": one, "name": "t", "args": {}}}

    def _answer(self, one: str, text: str, move: Move) -> None:
        match self.shape:
            case "contract":
                turn = Turn(role="tool", content=text, tool_call_id=one)
            case "openai":
                turn = Turn(role="tool", content=text, openai_tool_call_id=one)
            case _:
                said = [{"type": "text", "text": self._text(5)}] if "talk" in move.kind else []
                turn = Turn(role="user", content=[self._result_block(one, text), *said])
        self.turns.append(turn)

    def _result_block(self, one: str, text: str) -> dict[str, Any]:
        match self.shape:
            case "anthropic":
                return {"type": "tool_result", "tool_use_id": one, "content": text}
            case "bedrock":
                return {"toolResult": {"toolUseId": one, "content": [{"text": text}]}}
            case _:
                return {"functionResponse": {"id": one, "name": "t", "response": {"r": text}}}


class Seen(NamedTuple):
    """The contents of a message, parsed without the server's code."""

    calls: list[str]
    results: list[str]
    marks: list[int]
    own_text: bool
    """Whether the message contains text in addition to calls and results."""


def see(turn: Turn) -> Seen:
    """Return a turn's call ids and result ids, and the numbers in its strings."""
    seen = Seen([], [], [], False)
    body = msgspec.to_builtins(turn)
    talks = _walk(body, seen, in_result=turn.role == "tool")
    return seen._replace(own_text=talks)


def _walk(value: Any, seen: Seen, in_result: bool) -> bool:
    if isinstance(value, str):
        number = value.removeprefix("#").split(" ")[0]
        if value.startswith("#") and number.isdigit():
            seen.marks.append(int(number))
            return not in_result
        return False
    if isinstance(value, list):
        # Visit all items, because each visit adds to `seen`.
        talks = [_walk(one, seen, in_result) for one in value]
        return any(talks)
    if not isinstance(value, dict):
        return False
    answers = value.get("tool_use_id") or value.get("toolCallId") or value.get("tool_call_id")
    if answers is None and ("response" in value or ("toolUseId" in value and "content" in value)):
        answers = value.get("id") or value.get("toolUseId")
    if answers:
        seen.results.append(answers)
    elif any(key in value for key in ("input", "args", "arguments", "function")):
        one = value.get("id") or value.get("toolUseId")
        if one:
            seen.calls.append(one)
    talks = [_walk(one, seen, in_result or bool(answers)) for one in value.values()]
    return any(talks)


def check(case: Case, plan: FitResult) -> None:
    """Check a plan's properties for any conversation."""
    messages = plan.messages[1:] if case.system else plan.messages
    if case.system:
        assert plan.messages[0] == Turn(role="system", content=case.system)
    kept = [see(turn) for turn in messages]
    asked = [see(turn) for turn in case.turns]
    _check_no_orphans(asked, kept, case.turns)
    _check_order(kept)
    assert all(turn.content or see(turn).calls for turn in messages), "a message is empty"
    _check_required_turns(case, asked, kept)
    assert plan.fits == (plan.tokens_after <= case.max_tokens)
    assert plan.fits == (plan.reason is None)
    assert plan.summary is None or case.summarize
    assert [removal.index for removal in plan.removed] == sorted(
        {removal.index for removal in plan.removed}
    )
    for removal in plan.removed:
        assert removal.role == case.turns[removal.index].role


def _check_no_orphans(asked: list[Seen], kept: list[Seen], turns: list[Turn]) -> None:
    waiting = _may_wait(asked, turns)
    called: set[str] = set()
    answered: set[str] = set()
    for seen in kept:
        assert set(seen.results) <= called, "a result without its call"
        answered.update(seen.results)
        called.update(seen.calls)
    assert called - answered <= waiting, "a call without its result"


def _may_wait(asked: list[Seen], turns: list[Turn]) -> set[str]:
    """Return the call ids of the last turn with calls, if only results and system turns follow."""
    for index in range(len(turns) - 1, -1, -1):
        seen = asked[index]
        if seen.calls:
            return set(seen.calls)
        only_results = bool(seen.results) and not seen.own_text
        if not only_results and turns[index].role != "system":
            return set()
    return set()


def _check_order(kept: list[Seen]) -> None:
    marks = [mark for seen in kept for mark in seen.marks]
    assert marks == sorted(set(marks)), "messages are duplicated or in another order"


def _check_required_turns(case: Case, asked: list[Seen], kept: list[Seen]) -> None:
    """Check that the plan keeps all system turns and the last turns.

    The last turns start at the first of the last `keep_turns` user turns. Calls without results,
    and results without calls, may be removed from them.
    """
    there = {mark for seen in kept for mark in seen.marks}
    calls = {call for seen in kept for call in seen.calls}
    tail = _tail(case, asked)
    all_called: set[str] = set()
    all_answered = {result for seen in asked for result in seen.results}
    for index, (turn, seen) in enumerate(zip(case.turns, asked, strict=True)):
        if turn.role == "system":
            assert set(seen.marks) <= there, "a system turn was removed"
        if index >= tail:
            if seen.own_text and not seen.results:
                assert set(seen.marks) <= there, "one of the last turns was removed"
            assert set(seen.results) & all_called <= calls, "a call of the last turns went"
            assert set(seen.calls) & all_answered <= calls, "a call of the last turns went"
        all_called.update(seen.calls)


def _tail(case: Case, asked: list[Seen]) -> int:
    left = case.keep_turns
    for index in range(len(case.turns) - 1, -1, -1):
        seen, turn = asked[index], case.turns[index]
        if turn.role == "user" and left and (seen.own_text or not seen.results):
            left -= 1
            if left == 0:
                return index
    return len(case.turns) if case.keep_turns == 0 else 0
