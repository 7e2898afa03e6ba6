"""All calls that agents' stores hold, once each, from where the last reading stopped.

The caller keeps each batch's calls and mark in one transaction; whoever stops between two batches
goes on from there. Only bytes that are new are read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.reader import MarksCopies, Reader, stores_of
from sidecar.agents.values import Batch, Found, Mark
from sidecar.defects import log_defect

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots

_log = logging.getLogger(__name__)


class IngestPlan(msgspec.Struct, frozen=True):
    """The stores that changed since their marks, in the order of reading, and those gone."""

    stores: tuple[Found, ...]
    vanished: tuple[str, ...]
    """Paths of marks without a store: their calls stay, the marks can go."""

    @property
    def size(self) -> int:
        """Bytes of the stores, for progress; less will be read where marks stand inside them."""
        return sum(found.size for found in self.stores)


def plan(
    readers: Sequence[Reader], places: Places, marks: Mapping[str, Mark], roots: Roots | None = None
) -> IngestPlan:
    """What to read: all, or what may be of `roots`. Opens no store but the heads of new ones.

    A call that was copied belongs to the session that made it: older stores come first, and those
    that say that they were begun as copies after all others of their agent. Main conversations
    come before the sub-agents' replays.
    """
    stores: list[Found] = []
    listed: set[str] = set()
    names = {reader.agent for reader in readers}
    for reader in readers:
        found = stores_of(reader, places, roots)
        listed.update(one.path for one in found)
        stores += fresh(reader, found, marks)
    gone = (
        path
        for path, mark in marks.items()
        if path not in listed and mark.agent in names and not os.path.exists(path)
    )
    return IngestPlan(tuple(stores), () if roots is not None else tuple(gone))


def fresh(reader: Reader, found: Iterable[Found], marks: Mapping[str, Mark]) -> list[Found]:
    """Those of an agent's stores that changed since their marks, in the order of reading."""
    new = [one for one in found if _is_new(one, marks.get(one.path))]
    copies = {one.path for one in new if one.path not in marks and _is_copy(reader, one)}
    return sorted(new, key=lambda one: (not one.live, one.path in copies, one.mtime_ns))


def read(
    readers: Sequence[Reader], stores: Iterable[Found], marks: Mapping[str, Mark]
) -> Iterator[Batch]:
    """The new calls of `stores`. A store that cannot be read now is left for another time."""
    by_agent = {reader.agent: reader for reader in readers}
    for found in stores:
        try:
            yield from by_agent[found.agent].read(found, marks.get(found.path))
        except OSError as error:
            _log.info(
                "%s: a session file cannot be read: %s", found.agent, error.strerror or "damaged"
            )
        except Exception as exc:  # whatever one store holds, the others are read
            log_defect(exc, f"a session file of {found.agent}")


def _is_new(found: Found, mark: Mark | None) -> bool:
    return mark is None or not mark.unchanged(found)


def _is_copy(reader: Reader, found: Found) -> bool:
    try:
        return isinstance(reader, MarksCopies) and found.live and reader.is_copy(found)
    except OSError:
        return False
    except Exception as exc:
        log_defect(exc, f"a session file of {reader.agent}")
        return False
