"""Changes of agents' files as the system reports them, with a slow poll where it does not."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from threading import Event

    from sidecar.agents.places import Places
    from sidecar.agents.reader import Reader

_log = logging.getLogger(__name__)

POLL_SECONDS = 30.0
_ADDED = 1
"""`watchfiles.Change.added`, which is an integer."""
_STEP_MS, _DEBOUNCE_MS = 20, 150


def changes(
    readers: Sequence[Reader],
    places: Places,
    stop: Event,
    *,
    poll_seconds: float = POLL_SECONDS,
) -> Iterator[frozenset[str] | None]:
    """The paths that changed, a moment after they did, until `stop` is set.

    None says that `poll_seconds` went by, or that folders came or went: anything may have changed,
    as some file systems report nothing. It blocks, so it wants a thread of its own.
    """
    while not stop.is_set():
        folders = _existing(readers, places)
        try:
            if folders:
                yield from _changes(folders, readers, places, stop, poll_seconds)
            else:
                stop.wait(poll_seconds)
        except OSError as error:  # no more watches to be had, or a folder that went away
            _log.info("session files are polled: %s", error.strerror or type(error).__name__)
            stop.wait(poll_seconds)
        if not stop.is_set():
            yield None


def _changes(
    folders: tuple[str, ...],
    readers: Sequence[Reader],
    places: Places,
    stop: Event,
    poll_seconds: float,
) -> Iterator[frozenset[str] | None]:
    """What the system reports of these folders, for as long as they are the ones to watch."""
    from watchfiles import watch

    changes = watch(
        *folders,
        watch_filter=None,
        step=_STEP_MS,
        debounce=_DEBOUNCE_MS,
        rust_timeout=max(1, int(poll_seconds * 1000)),
        yield_on_timeout=True,
        stop_event=stop,
        raise_interrupt=False,
        ignore_permission_denied=True,
    )
    checked = time.monotonic()
    for found in changes:
        yield frozenset(_paths(found)) or None
        if time.monotonic() - checked >= poll_seconds:
            checked = time.monotonic()
            if _existing(readers, places) != folders:
                return


def _paths(found: Iterable[tuple[int, str]]) -> Iterator[str]:
    """What changed. Of a new folder all that is in it: it was written before it was watched."""
    for change, path in found:
        yield path
        if change == _ADDED:
            for folder, _, names in os.walk(path):
                yield from (os.path.join(folder, name) for name in names)


def _existing(readers: Sequence[Reader], places: Places) -> tuple[str, ...]:
    """The readers' folders and files that are there, each once."""
    folders = (folder for reader in readers for folder in reader.folders(places))
    return tuple(folder for folder in dict.fromkeys(folders) if os.path.exists(folder))
