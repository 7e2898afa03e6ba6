"""Counts of a conversation's sections: each has the number that its document has everywhere.

A section is counted by `Counts`, as the status and `tokens/count` do: by the user's endpoint, else
by an estimate that was corrected for its kind of text. The number is kept with the section, and
holds until its text or what the count rests on changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sidecar.context.sections import RestoredPart, Section, SectionCount, SectionSource
from sidecar.workspace.documents import Snapshot
from sidecar.workspace.followed import FollowedText

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.context.session import Session
    from sidecar.workspace.counts import Counts
    from sidecar.workspace.gauges import Gauge


class SectionCounts:
    """Counts sections of one workspace's sessions. For the event loop."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._taken: WeakKeyDictionary[SectionSource, Snapshot] = WeakKeyDictionary()
        """Of sections that were given as texts: their pieces remember what they count."""

    def is_stale(
        self, section: Section, model: str, settings: Settings, *, ask: bool = False
    ) -> bool:
        """Whether a section's count no longer holds. `ask`: or an endpoint could give another."""
        known, source = section.document_count, section.source
        if isinstance(source, RestoredPart):
            return False
        if isinstance(source, FollowedText) and source.followed.text() is not source:
            return True
        if known is None or known.source is not source or known.model != model:
            return True
        return known.basis != self._counts.basis(model, settings) or (ask and not known.final)

    async def refresh(self, session: Session, settings: Settings, *, ask: bool) -> None:
        """Count the sections of a session whose counts no longer hold.

        `ask`: wait for the endpoint; else its number is used where it is known.
        """
        model, sections = session.model, session.sections
        behind = [
            index
            for index, section in enumerate(sections)
            if self.is_stale(section, model, settings, ask=ask)
        ]
        found = await asyncio.gather(
            *[self._count(sections[i], model, settings, ask) for i in behind]
        )
        for index, (now, then) in zip(behind, found, strict=True):
            session.update_section(index, now, then)

    async def _count(
        self, section: Section, model: str, settings: Settings, ask: bool
    ) -> tuple[SectionCount, SectionCount | None]:
        """A section's count, and that of the text that was reported, made in the same way."""
        counts, source = self._counts, section.source
        taken = self._snapshot(source)
        if ask:
            gauge = await counts.gauge(taken, model, settings)
        else:
            gauge = counts.gauge_now(taken, model, settings)
        basis = counts.basis(model, settings)
        measure = await counts.measure(taken, gauge)
        final = gauge.whole is not None or not counts.asks(model, settings)
        now = SectionCount(model, measure, source, basis, final)
        then = section.reported
        if then is None or isinstance(then.source, RestoredPart):
            return now, None
        return now, await self._again(then, now, gauge, settings)

    async def _again(
        self, then: SectionCount, now: SectionCount, gauge: Gauge, settings: Settings
    ) -> SectionCount:
        """A text that was reported, counted as another one is now."""
        if then.source is now.source:
            return now
        if then.is_like(now):
            return then
        taken = self._snapshot(then.source)
        # The server's number for one text says how the other is estimated.
        one = gauge._replace(whole=None) if gauge.whole is not None else None
        gauge = one or self._counts.here(taken, now.model, settings)
        measure = await self._counts.measure(taken, gauge)
        return SectionCount(now.model, measure, then.source, now.basis, now.final)

    def _snapshot(self, source: SectionSource) -> Snapshot:
        if isinstance(source, FollowedText):
            return source.taken
        taken = self._taken.get(source)
        if taken is None:
            taken = self._taken[source] = Snapshot(text=source.text())
        return taken
