"""Records the files and folders that the test process opens.

Python cannot remove an audit hook. The module therefore adds a single hook, which does nothing
between recordings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_EVENTS = ("open", "os.listdir", "os.scandir")
_recordings: dict[str, list[str]] = {}


@contextmanager
def recorded_opens(path: Path) -> Iterator[list[str]]:
    """Record each path that is opened at or below `path` within the `with` block."""
    _add_hook()
    opened = _recordings[str(path)] = []
    try:
        yield opened
    finally:
        del _recordings[str(path)]


@cache
def _add_hook() -> None:
    sys.addaudithook(_record)


def _record(event: str, arguments: tuple[object, ...]) -> None:
    if _recordings and event in _EVENTS:
        path = str(arguments[0])
        for start, opened in [*_recordings.items()]:
            if path.startswith(start):
                opened.append(path)
