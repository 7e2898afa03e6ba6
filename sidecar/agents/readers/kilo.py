"""Kilo Code: a database like opencode's since 7.0, before that tasks like Cline's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sidecar.agents.readers.cline import Tasks
from sidecar.agents.readers.opencode import OpenCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots
    from sidecar.agents.values import Batch, Found, Glance, Mark

AGENT = "kilo"


class Kilo:
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT

    def __init__(self) -> None:
        self._new = OpenCode(AGENT)
        self._old = Tasks(AGENT, "kilocode.kilo-code", has_copies=True)

    def folders(self, places: Places) -> tuple[str, ...]:
        return (*self._new.folders(places), *self._old.folders(places))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:
        yield from self._new.find(places, roots)
        yield from self._old.find(places, roots)

    def store_at(self, places: Places, path: str) -> Found | None:
        return self._new.store_at(places, path) or self._old.store_at(places, path)

    def glance(
        self, places: Places, found: Found, roots: Roots, before: Glance | None = None
    ) -> Glance:
        return self._of(found).glance(places, found, roots, before)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return self._of(found).read(found, mark)

    def _of(self, found: Found) -> OpenCode | Tasks:
        return self._old if f"{os.sep}tasks{os.sep}" in found.path else self._new


READER = Kilo()
