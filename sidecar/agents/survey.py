"""Lists the agents with sessions on this machine, and checks that their files can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.fields import time_from_ns
from sidecar.agents.registry import stores_of
from sidecar.defects import log_defect

if TYPE_CHECKING:
    from sidecar.agents.events import Store, StoreReader
    from sidecar.agents.places import Places


class Surveyed(msgspec.Struct, frozen=True, rename="camel"):
    """The stores of one agent, with the newest one as a sample."""

    agent: str
    stores: int
    size: int
    """Size of all stores in bytes."""
    newest_at: datetime
    calls: int
    """Calls in the newest store."""
    skipped: int
    """Broken lines in the newest store."""
    problem: str | None = None
    """Why the newest store cannot be read."""


def survey(readers: Sequence[StoreReader], places: Places) -> Iterator[Surveyed]:
    for reader in readers:
        stores = stores_of(reader, places)
        if not stores:
            continue
        newest = max(stores, key=lambda found: (found.live, found.mtime_ns))
        calls, skipped, problem = _sample_store(reader, newest)
        size = sum(found.size for found in stores)
        at = time_from_ns(newest.mtime_ns)
        yield Surveyed(reader.agent, len(stores), size, at, calls, skipped, problem)


def _sample_store(reader: StoreReader, store: Store) -> tuple[int, int, str | None]:
    calls = skipped = 0
    state, is_complete = b"", False
    try:
        while not is_complete:
            read = reader.read(store, state)
            calls += len(read.calls)
            skipped += read.skipped
            state, is_complete = read.state, read.is_complete
    except OSError as error:
        return calls, skipped, error.strerror or str(error)
    except Exception as exc:
        log_defect(exc, f"a session file of {store.agent}")
        return calls, skipped, "has an unknown format"
    return calls, skipped, None
