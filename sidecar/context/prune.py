"""Choosing what to take out of a conversation so that it fits, without breaking it.

System turns and the last user turns with their replies stay. A tool call and its results live and
die together. Tool outputs go before dialogue, and the oldest first. What would be refused by a
vendor anyway (a result without its call, a call that was passed over, a turn without content) goes
in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sidecar.context.counter import Counter, Sums
from sidecar.context.results import RemovalReason
from sidecar.counting.count import Measure
from sidecar.messages.content import RESULT_ROLES
from sidecar.messages.turns import (
    NO_OUTPUT,
    Turn,
    has_own_text,
    is_empty,
    is_system,
    starts_exchange,
    with_outputs,
    without,
)

if TYPE_CHECKING:
    from sidecar.context.pairs import Pairs

Fits = Callable[[Sums], bool]


class Unit(msgspec.Struct, frozen=True):
    """Turns that can only go together."""

    turns: tuple[int, ...]
    reason: RemovalReason


class Cleaned(msgspec.Struct, frozen=True):
    """What has to change in any case."""

    turns: dict[int, Turn]
    """By index: the turn as it must be sent."""
    measures: dict[int, Measure]
    gone: dict[int, RemovalReason]
    """Turns that go as a whole."""
    stripped: dict[int, RemovalReason]
    """Turns that lose a part and stay."""


class Choice(msgspec.Struct, frozen=True):
    """Which turns go, and what the occupancy is then."""

    gone: dict[int, RemovalReason]
    total: Sums


def clean(turns: Sequence[Turn], pairs: Pairs, counter: Counter) -> Cleaned:
    """Mend what no vendor would take: orphans and empty turns go, empty outputs are marked."""
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
    """The first turn of the last `keep_turns` user turns with their replies."""
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
    """What may go, in the order in which it goes."""
    groups = _groups(turns, pairs)
    tail = tail_start(turns, keep_turns)
    stays = {
        leader
        for leader, members in groups.items()
        if members[-1] >= tail or any(_stays(turns, pairs, index) for index in members)
    }
    free = {leader: members for leader, members in groups.items() if leader not in stays}
    tools = [
        Unit(tuple(members), "toolOutput")
        for leader, members in free.items()
        if any(pairs.works(index) for index in members)
        and not any(_is_question(turns[index]) for index in members)
    ]
    return [*tools, *_exchanges(turns, pairs, free, tail)]


def choose(
    candidates: Iterable[Unit],
    gone: dict[int, RemovalReason],
    total: Sums,
    sums: Sequence[Sums],
    fits: Fits,
) -> Choice:
    """Take units away until it fits, or none are left.

    Args:
        candidates: in the order in which they go.
        gone: turns that go in any case.
        total: the occupancy without those.
        sums: each turn's count.
        fits: whether an occupancy is small enough.
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


def _groups(turns: Sequence[Turn], pairs: Pairs) -> dict[int, list[int]]:
    """Turns that live and die together, by the first of them."""
    groups: dict[int, list[int]] = {}
    for index in range(len(turns)):
        groups.setdefault(pairs.group(index), []).append(index)
    return groups


def _stays(turns: Sequence[Turn], pairs: Pairs, index: int) -> bool:
    return is_system(turns[index]) or index in pairs.pending


def _is_question(turn: Turn) -> bool:
    return turn.role == "user" and has_own_text(turn)


def _exchanges(
    turns: Sequence[Turn], pairs: Pairs, free: dict[int, list[int]], tail: int
) -> Iterable[Unit]:
    """Dialogue goes as whole exchanges, so that what is left still starts with its question."""
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
