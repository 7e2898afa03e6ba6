"""Determines how full a session's context window is, in the same way for all agents.

The size is that of the main conversation's newest call since the last compaction: its whole
input, plus its output, which the next request sends back. Calls are never added up, and calls
that write a summary do not count.
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
"""Error band (±%) of an agent's own estimate after a compaction."""


class ContextTrack(msgspec.Struct, frozen=True, gc=False):
    """The last known size of a conversation. Immutable; methods return a new track."""

    newest: CallSize | None = None
    why: str | None = None
    """Why the size is unknown."""
    is_estimate: bool = False
    """Whether the size is the agent's estimate after a compaction."""

    def call(self, reading: CallSize) -> ContextTrack:
        """Return the track after a call. A call without a prompt size leaves the size unchanged."""
        if reading.prompt > 0:
            return ContextTrack(newest=reading)
        return self if self.newest or self.why else ContextTrack(why=NO_USAGE)

    def compaction(self) -> ContextTrack:
        """Return the track after a compaction to an unknown size."""
        return ContextTrack(why=COMPACTED)

    def estimate(self, tokens: int, model: str | None) -> ContextTrack:
        """Return the track after the agent has estimated the size left by a compaction or undo."""
        return (
            ContextTrack(newest=CallSize(tokens, 0, model), is_estimate=True)
            if tokens > 0
            else self
        )

    def rewind(self) -> ContextTrack:
        """Return the track after turns were removed, which makes the size unknown."""
        return ContextTrack(why=REWOUND)


def occupancy(
    track: ContextTrack,
    quality: Quality = "exact",
    *,
    error_percent: float = 0.0,
    window: int | None = None,
    note: str | None = None,
) -> Occupancy:
    """Return how full the context window is.

    Args:
        track: The last known size.
        quality: Accuracy of the size.
        error_percent: Error band (±%) of a size that is not exact.
        window: The context window in tokens, for agents whose calls do not report it.
        note: Shown with the size.
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
