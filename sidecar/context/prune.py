"""Chooses what to remove from a conversation so that it fits and stays valid.

System turns and the last user turns with their replies are kept. A tool call and its results are
removed together. Tool outputs are removed before dialogue, oldest first. Turns that a vendor
would refuse are always removed: results without a call, skipped calls, empty turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from sidecar.context.counter import Counter, Sums
from sidecar.context.results import RemovalReason
from sidecar.counting.count import Measure
from sidecar.messages.content import RESULT_ROLES, Block, Place
from sidecar.messages.turns import (
    NO_OUTPUT,
    Turn,
    has_own_text,
    is_empty,
    is_system,
    parts,
    starts_exchange,
    with_outputs,
    without,
)


class PairedCall:
    """A tool call, and whether it has a result."""

    __slots__ = ("answered", "part", "turn")

    def __init__(self, turn: int, part: Block) -> None:
        self.turn, self.part, self.answered = turn, part, False


class Pairs:
    """The tool calls and results of a conversation, by turn.

    A result belongs to the latest earlier call with its id. Without ids (Gemini, Ollama), it
    belongs to the first unanswered call of its name in the latest turn with calls.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.parts: dict[int, list[Block]] = {}
        """The tool calls and results of each turn."""
        self.orphans: dict[int, set[tuple[Place, int]]] = {}
        """By turn, the (place, at) of calls without a result and results without a call."""
        self.pending: set[int] = set()
        """The last turns whose calls still wait for results. They are not orphans."""
        self._leader: dict[int, int] = {}
        self._by_id: dict[str, list[PairedCall]] = {}
        self._latest: list[PairedCall] = []
        calls: list[PairedCall] = []
        for index, turn in enumerate(turns):
            found = parts(turn)
            if found:
                self.parts[index] = found
                calls += self._read(index, found)
        self._judge(calls, _open_from(turns))

    def group(self, turn: int) -> int:
        """Return the first of the turns that must be removed together with this one."""
        leader = self._leader.get(turn, turn)
        while leader != turn:
            turn, leader = leader, self._leader.get(leader, leader)
        return turn

    def works(self, turn: int) -> bool:
        """Return whether the turn has a tool call or result that is not an orphan."""
        return len(self.parts.get(turn, ())) > len(self.orphans.get(turn, ()))

    def _read(self, index: int, found: list[Block]) -> list[PairedCall]:
        made = []
        for part in found:
            if part.kind == "call":
                call = PairedCall(index, part)
                made.append(call)
                if part.id:
                    self._by_id.setdefault(part.id, []).append(call)
            else:
                self._answer(index, part, made)
        if made:
            self._latest = made
        return made

    def _answer(self, index: int, part: Block, made: list[PairedCall]) -> None:
        call = self._pair_call(part, [*made, *self._latest])
        if call is None:
            self.orphans.setdefault(index, set()).add((part.place, part.at))
            return
        call.answered = True
        first, other = sorted((self.group(call.turn), self.group(index)))
        self._leader[other] = first

    def _pair_call(self, part: Block, latest: list[PairedCall]) -> PairedCall | None:
        if part.id and part.id in self._by_id:
            same_id = self._by_id[part.id]
            return next((call for call in reversed(same_id) if not call.answered), same_id[-1])
        for call in latest:
            loose = not part.id or not call.part.id
            named = not part.name or not call.part.name or part.name == call.part.name
            if loose and named and not call.answered:
                return call
        return None

    def _judge(self, calls: list[PairedCall], open_from: int) -> None:
        for call in calls:
            if call.answered:
                continue
            if call.turn >= open_from:
                self.pending.add(call.turn)
            else:
                spot = (call.part.place, call.part.at)
                self.orphans.setdefault(call.turn, set()).add(spot)


def _open_from(turns: Sequence[Turn]) -> int:
    for index in range(len(turns) - 1, -1, -1):
        turn = turns[index]
        if is_system(turn):
            continue
        if starts_exchange(turn):
            return index + 1
        if turn.role in ("user", *RESULT_ROLES):
            continue
        return index
    return 0


Fits = Callable[[Sums], bool]


class Unit(msgspec.Struct, frozen=True):
    """Turns that can only be removed together."""

    turns: tuple[int, ...]
    reason: RemovalReason


class Cleaned(msgspec.Struct, frozen=True):
    """Changes that are needed even if the conversation fits."""

    turns: dict[int, Turn]
    measures: dict[int, Measure]
    gone: dict[int, RemovalReason]
    """Removed turns by index."""
    stripped: dict[int, RemovalReason]
    """Turns that lose some of their parts."""


class Choice(msgspec.Struct, frozen=True):
    """Turns to remove, and the occupancy without them."""

    gone: dict[int, RemovalReason]
    total: Sums


def clean(turns: Sequence[Turn], pairs: Pairs, counter: Counter) -> Cleaned:
    """Remove orphans and empty turns, which vendors refuse, and fill in empty outputs."""
    cleaned = Cleaned({}, {}, {}, {})
    for index, turn in enumerate(turns):
        spots = pairs.orphans.get(index)
        filled = with_outputs(turn) if index in pairs.parts else turn
        if spots is None and filled is turn and not is_empty(turn):
            continue
        mended = without(filled, spots) if spots else filled
        if not is_empty(mended):
            if spots:
                cleaned.stripped[index] = "orphan"
        elif turn.role in RESULT_ROLES and not spots:
            mended = msgspec.structs.replace(turn, content=NO_OUTPUT)
        else:
            cleaned.gone[index] = "orphan" if spots else "empty"
            continue
        cleaned.turns[index] = mended
        cleaned.measures[index] = counter.message(mended)
    return cleaned


def tail_start(turns: Sequence[Turn], keep_turns: int) -> int:
    """Return the first turn of the last `keep_turns` user turns and their replies."""
    if keep_turns <= 0:
        return len(turns)
    left = keep_turns
    for index in range(len(turns) - 1, -1, -1):
        if starts_exchange(turns[index]):
            left -= 1
            if left == 0:
                return index
    return 0


def units(turns: Sequence[Turn], pairs: Pairs, keep_turns: int) -> list[Unit]:
    """Return what may be removed, in order of removal."""
    groups = _group_turns(turns, pairs)
    tail = tail_start(turns, keep_turns)
    stays = {
        leader
        for leader, members in groups.items()
        if members[-1] >= tail or any(_is_protected(turns, pairs, index) for index in members)
    }
    free = {leader: members for leader, members in groups.items() if leader not in stays}
    tools = [
        Unit(tuple(members), "toolOutput")
        for leader, members in free.items()
        if any(pairs.works(index) for index in members)
        and not any(_is_question(turns[index]) for index in members)
    ]
    return [*tools, *_group_exchanges(turns, pairs, free, tail)]


def choose(
    candidates: Iterable[Unit],
    gone: dict[int, RemovalReason],
    total: Sums,
    sums: Sequence[Sums],
    fits: Fits,
) -> Choice:
    """Remove units until the rest fits or none are left.

    Args:
        candidates: The units in order of removal.
        gone: Turns that are removed in any case.
        total: The occupancy without those turns.
        sums: Each turn's count.
        fits: Returns whether an occupancy is small enough.
    """
    taken = dict(gone)
    for unit in candidates:
        if fits(total):
            break
        for index in unit.turns:
            if index not in taken:
                taken[index] = unit.reason
                total = total.minus(sums[index])
    return Choice(taken, total)


def _group_turns(turns: Sequence[Turn], pairs: Pairs) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for index in range(len(turns)):
        groups.setdefault(pairs.group(index), []).append(index)
    return groups


def _is_protected(turns: Sequence[Turn], pairs: Pairs, index: int) -> bool:
    return is_system(turns[index]) or index in pairs.pending


def _is_question(turn: Turn) -> bool:
    return turn.role == "user" and has_own_text(turn)


def _group_exchanges(
    turns: Sequence[Turn], pairs: Pairs, free: dict[int, list[int]], tail: int
) -> Iterable[Unit]:
    """Group dialogue into whole exchanges, so that the rest still starts with a question."""
    members: list[int] = []
    for index, turn in enumerate(turns[:tail]):
        if starts_exchange(turn) and index not in pairs.parts and members:
            yield Unit(tuple(members), "dialogue")
            members = []
        leader = pairs.group(index)
        if leader == index and leader in free:
            members += free[leader]
    if members:
        yield Unit(tuple(members), "dialogue")
