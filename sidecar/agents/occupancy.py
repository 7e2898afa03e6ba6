"""The one rule of how full a session's window is; every reader goes by it. Pure.

The newest call of the main conversation after the last compaction counts: all its input, cached or
not, plus its output, which the next request sends back. Calls are never added up, a summarisation
call is no size of what is left, and 0 is not a value.
"""

from __future__ import annotations

import msgspec

from sidecar.agents.values import CallSize, Occupancy, Quality

COMPACTED = "compacted: the new size appears with the next turn"
REWOUND = "rewound: the new size appears with the next turn"
NO_USAGE = "this model reports no usage"
NOT_VISIBLE = "not visible from this machine"
ESTIMATED = "compacted: the agent's estimate until the next turn"
ESTIMATE_BAND = 25.0
"""Percent: half of the band of an agent's own estimate of what a compaction left."""


class ContextTrack(msgspec.Struct, frozen=True, gc=False):
    """What the lines so far say: the calls of the main conversation, summarisations left out."""

    newest: CallSize | None = None
    why: str | None = None
    """Why the size is not known, where it is not."""
    is_estimate: bool = False
    """Whether `newest` is no call, but the agent's own estimate of what a compaction left."""

    def call(self, reading: CallSize) -> ContextTrack:
        """A call of the main conversation; one without a prompt's size changes nothing known."""
        if reading.prompt > 0:
            return ContextTrack(newest=reading)
        return self if self.newest or self.why else ContextTrack(why=NO_USAGE)

    def compaction(self) -> ContextTrack:
        """The conversation was replaced by a summary of unknown size."""
        return ContextTrack(why=COMPACTED)

    def estimate(self, tokens: int, model: str | None) -> ContextTrack:
        """The agent estimates what is left after a compaction or an undo."""
        return (
            ContextTrack(newest=CallSize(tokens, 0, model), is_estimate=True)
            if tokens > 0
            else self
        )

    def rewind(self) -> ContextTrack:
        """The newest turns were taken back, and what is left was never measured."""
        return ContextTrack(why=REWOUND)


def occupancy(
    track: ContextTrack,
    quality: Quality = "exact",
    *,
    error_percent: float = 0.0,
    window: int | None = None,
    note: str | None = None,
) -> Occupancy:
    """How full the window is. `window`: the agent's figure where its calls carry none.

    `error_percent`: half of the band of what is no exact number.
    """
    newest = track.newest
    if newest is None:
        return Occupancy(
            limit=window,
            quality=quality,
            compacted=track.why == COMPACTED,
            note=track.why or note,
        )
    size = Occupancy(
        tokens=newest.prompt + newest.output,
        limit=newest.window or window,
        quality=quality,
        error_percent=error_percent,
        note=note,
    )
    if not track.is_estimate:
        return size
    return msgspec.structs.replace(
        size, quality="estimate", error_percent=ESTIMATE_BAND, note=note or ESTIMATED
    )
