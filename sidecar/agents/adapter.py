"""Readers with `glance` and `read` behind the protocol of the session index, until converted.

What such a reader glances at becomes the events of all sessions of a store, whole each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.events import (
    Compacted,
    ContextSize,
    SessionChanged,
    SessionEnded,
    SessionEvent,
    SessionStarted,
    Store,
    StoreRead,
    StoreReader,
)
from sidecar.agents.reader import Look, MarksCopies, Reader
from sidecar.agents.roots import Roots
from sidecar.agents.values import Glance, Mark, StoredSession, bounded
from sidecar.defects import log_defect

if TYPE_CHECKING:
    from sidecar.agents.places import Places

_STEP = 8 << 20
"""Bytes of a store that are read at once."""


class _AnyFolder(Roots, frozen=True):
    """Roots that hold every session that names a folder."""

    def hold(self, cwd: str | None) -> bool:
        return bool(cwd)


class AdaptedReader:
    """See `sidecar.agents.events.StoreReader`."""

    def __init__(self, reader: Reader, places: Places, roots: Roots) -> None:
        """`roots`: sessions whose folder is given by a digest or a bare name are found in these."""
        self.agent = reader.agent
        self._reader, self._places, self._roots = reader, places, _AnyFolder(roots.paths)
        self.folders, self.find, self.store_at = reader.folders, reader.find, reader.store_at
        self._titles = lru_cache(maxsize=256)(self._titles_of)

    def is_copy(self, store: Store) -> bool:
        return isinstance(self._reader, MarksCopies) and self._reader.is_copy(store)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        events: list[SessionEvent] = []
        mark, size, is_complete = _mark_of(state), 0, True
        skipped = mark.skipped if mark else 0
        for batch in self._reader.read(store, mark):
            events += batch.calls
            mark, size = batch.mark, size + batch.bytes_read
            if size >= _STEP and not mark.unchanged(store):
                is_complete = False
                break
        if is_complete and store.live:
            glance = self._glance(store)
            # Readers of transcripts remember the folder that a session was begun in.
            first = glance.memory if isinstance(glance.memory, str) else None
            first = first or getattr(glance.memory, "cwd", None)
            for session in glance.sessions:
                events += _events_of(session, first)
        return StoreRead(
            events=tuple(events),
            state=b"" if mark is None else msgspec.msgpack.encode(mark),
            restarted=is_complete,
            is_complete=is_complete,
            bytes_read=size,
            skipped=max(0, (mark.skipped if mark else 0) - skipped),
        )

    def title(self, store: Store, title_at: str) -> str | None:
        return self._titles(store).get(title_at)

    def window(self, places: Places) -> int | None:  # noqa: ARG002 - glances know it
        return None

    def _titles_of(self, store: Store) -> dict[str, str]:
        return {one.id: one.title for one in self._glance(store).sessions if one.title}

    def _glance(self, store: Store) -> Glance:
        try:
            glance = self._reader.glance(Look(self._places, store, self._roots))
        except OSError:
            raise
        except Exception as exc:  # its calls count all the same
            log_defect(exc, f"a session file of {self.agent}")
            return Glance(store)
        sessions = tuple(filter(None, map(bounded, glance.sessions)))
        return msgspec.structs.replace(glance, sessions=sessions)


def index_readers(
    readers: Sequence[Reader | StoreReader], places: Places, roots: Roots
) -> tuple[StoreReader, ...]:
    """The readers behind the index's protocol: as they are where they have it."""
    return tuple(
        one if isinstance(one, StoreReader) else AdaptedReader(one, places, roots)
        for one in readers
    )


def _mark_of(state: bytes) -> Mark | None:
    try:
        return msgspec.msgpack.decode(state, type=Mark)
    except msgspec.DecodeError:  # none yet, or of another version
        return None


def _events_of(session: StoredSession, first: str | None) -> Iterator[SessionEvent]:
    name, size = session.id, session.occupancy
    yield SessionStarted(
        session=name, folder=first or session.cwd, parent=session.parent, rank=session.rank
    )
    yield SessionChanged(
        session=name,
        folder=session.cwd,
        at=session.updated_at,
        model=session.model,
        active=session.active,
        title_at=name if session.title else None,
    )
    if size.compacted:
        yield Compacted(session=name)
    yield ContextSize(
        session=name,
        tokens=size.tokens,
        window=size.limit,
        quality=size.quality,
        error_percent=size.error_percent,
        note=size.note,
    )
    if session.ended:
        yield SessionEnded(session=name)
