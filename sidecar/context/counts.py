"""Each turn's count for one model: made once, kept with it, any tail of them summed at once."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from sidecar.context.counter import Counter, Sums, sums_of
from sidecar.context.sections import RestoredPart

if TYPE_CHECKING:
    from sidecar.counting.count import Measure
    from sidecar.messages.turns import Turn

LARGEST_KEPT = 16
"""More than are shown, so that a turn that is counted anew leaves enough others."""


class TurnCounts:
    """The counts of a conversation's turns for one model, in their order.

    Adding a turn, the total and the sum from any turn on take the same time however long the
    conversation is.
    """

    def __init__(self, measures: Sequence[Measure] = ()) -> None:
        self._measures: list[Measure] = []
        self._upto: list[Sums] = [Sums()]
        self._largest: list[tuple[int, int]] = []
        """A heap of (tokens, -index); earlier turns win among equals."""
        for measure in measures:
            self.add(measure)

    def copy(self) -> TurnCounts:
        """The same counts, which grow apart from these."""
        made = TurnCounts()
        made._measures, made._upto = self._measures.copy(), self._upto.copy()
        made._largest = self._largest.copy()
        return made

    def __len__(self) -> int:
        return len(self._measures)

    def __getitem__(self, index: int) -> Measure:
        return self._measures[index]

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All of them, by turn."""
        return tuple(self._measures)

    def add(self, measure: Measure) -> None:
        """Note the count of the next turn."""
        entry = (measure.tokens, -len(self._measures))
        if len(self._largest) < LARGEST_KEPT:
            heapq.heappush(self._largest, entry)
        else:
            heapq.heappushpop(self._largest, entry)
        self._measures.append(measure)
        self._upto.append(self._upto[-1].plus(sums_of(measure)))

    def catch_up(
        self, turns: Sequence[Turn], counter: Counter, restored: Sequence[Measure] = ()
    ) -> None:
        """Count the turns that have no count yet; of the first ones only what was `restored` is
        known."""
        for measure in restored[len(self._measures) :]:
            self.add(RestoredPart(measure).measure(counter))
        for index in range(len(self._measures), len(turns)):
            self.add(counter.message(turns[index]))

    def between(self, start: int, end: int | None = None) -> Sums:
        """The sum of the turns from `start` to before `end` (all that follow by default)."""
        stop = len(self._measures) if end is None else end
        return self._upto[stop].minus(self._upto[min(start, stop)])

    def recount_tail(self, start: int, measures: Sequence[Measure]) -> None:
        """Give the turns from `start` on other counts, as when the endpoint has counted them."""
        del self._measures[start:], self._upto[start + 1 :]
        self._largest = [entry for entry in self._largest if -entry[1] < start]
        heapq.heapify(self._largest)
        for measure in measures:
            self.add(measure)

    def largest(self) -> list[tuple[int, int]]:
        """(turn, tokens) of the largest turns, most tokens first."""
        return [(-index, tokens) for tokens, index in sorted(self._largest, reverse=True)]


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """`total` shared in proportion to `weights`, in whole tokens that add up to it exactly.

    Where all weights are 0 the shares are equal. `total` below 0 counts as 0.
    """
    if not weights:
        return []
    given = weights if any(weights) else [1] * len(weights)
    running = list(accumulate(given, initial=0))
    cut = [max(0, total) * part // running[-1] for part in running]
    return [after - before for before, after in pairwise(cut)]
