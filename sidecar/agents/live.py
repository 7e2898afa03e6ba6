"""The sessions of a workspace as they are now: at the start, and again after each change.

`look` takes what it returned before and opens only what changed since, the newest first. It writes
nothing and shares nothing; a worker thread runs it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.reader import Look, Reader, stores_of
from sidecar.agents.values import Found, Glance, StoredSession, bounded
from sidecar.defects import log_defect

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots


MOST_OLD = 100
"""Older stores of an agent that are looked into for a session of the roots."""


class SeenStores(msgspec.Struct, frozen=True):
    """The stores of some roots that were looked at, by path, and what could not be read."""

    glances: Mapping[str, Glance] = {}
    failed: Mapping[str, str] = {}
    """By path, why a store could not be read."""

    @property
    def sessions(self) -> tuple[StoredSession, ...]:
        """Each session once, from its best store, with what others know of it; newest first."""
        best: dict[tuple[str, str], StoredSession] = {}
        for glance in self.glances.values():
            for session in glance.sessions:
                key = session.source, session.id
                known = best.get(key)
                best[key] = session if known is None else _together(known, session)
        return tuple(sorted(best.values(), key=lambda one: one.updated_at, reverse=True))


def look(
    readers: Sequence[Reader],
    places: Places,
    roots: Roots,
    before: SeenStores | None = None,
    *,
    since_ns: int = 0,
) -> SeenStores:
    """All sessions of `roots` whose stores changed at `since_ns` (nanoseconds since 1970) or later.

    Where an agent has none so new, its newest one is taken, if it is among `MOST_OLD` older stores.
    """
    before = before or SeenStores()
    glances: dict[str, Glance] = {}
    failed: dict[str, str] = {}
    for reader in readers:
        stores = [found for found in stores_of(reader, places, roots) if found.live]
        stores.sort(key=lambda found: found.mtime_ns, reverse=True)
        has_session, tried = False, 0
        for found in stores:
            old = found.mtime_ns < since_ns
            tried += old
            if old and (has_session or tried > MOST_OLD):
                break
            glance = _glance(reader, places, found, roots, before, failed)
            if glance is not None:
                glances[found.path] = glance
                has_session = has_session or bool(glance.sessions)
    return SeenStores(glances, failed)


def look_again(
    readers: Sequence[Reader],
    places: Places,
    roots: Roots,
    before: SeenStores,
    changed: Collection[str],
) -> SeenStores:
    """`before`, and the stores that the files at `changed` are of as they are now."""
    glances, failed = dict(before.glances), dict(before.failed)
    for path in changed:
        found = store_at(readers, places, path)
        if found is None:
            glances.pop(path, None)
        elif found.live:
            reader = next(one for one in readers if one.agent == found.agent)
            glance = _glance(reader, places, found, roots, before, failed)
            if glance is not None:
                glances[found.path] = glance
    return SeenStores(glances, failed)


def store_at(readers: Sequence[Reader], places: Places, path: str) -> Found | None:
    """The store that a change of the file at `path` is a change of; None where it is of none."""
    stores = (reader.store_at(places, path) for reader in readers)
    return next((found for found in stores if found is not None), None)


def _glance(
    reader: Reader,
    places: Places,
    found: Found,
    roots: Roots,
    before: SeenStores,
    failed: dict[str, str],
) -> Glance | None:
    """What a store shows; what it showed last time where it has not changed since."""
    known = before.glances.get(found.path)
    if known is not None and known.found == found:
        return known
    try:
        glance = reader.glance(Look(places, found, roots, known))
        sessions = tuple(filter(None, map(bounded, glance.sessions)))
    except OSError as error:
        failed[found.path] = error.strerror or str(error)
        return known
    except Exception as exc:
        # A store may hold anything, and none may cost the sessions of the others. It is not
        # opened again until it changes.
        log_defect(exc, f"a session file of {reader.agent}")
        failed[found.path] = "holds what no session has"
        return msgspec.structs.replace(known or Glance(found), found=found)
    failed.pop(found.path, None)
    return msgspec.structs.replace(glance, sessions=sessions)


def _together(one: StoredSession, other: StoredSession) -> StoredSession:
    """One session of two stores: by the better, or by the one that knows its size at all."""
    best, rest = sorted((one, other), key=_order, reverse=True)
    size, spare = best.occupancy, rest.occupancy
    if size.tokens is None and not size.compacted and spare.tokens is not None:
        size, spare = spare, size
    return msgspec.structs.replace(
        best,
        title=best.title or rest.title,
        model=best.model or rest.model,
        active=rest.active if best.active is None else best.active,
        occupancy=msgspec.structs.replace(size, limit=size.limit or spare.limit),
    )


def _order(session: StoredSession) -> tuple[int, float]:
    return session.rank, session.updated_at.timestamp()
