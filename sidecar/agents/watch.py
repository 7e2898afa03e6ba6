"""Changes of agents' files as the system reports them, with a slow poll where it does not.

Only readers of agents that have been used here are loaded. What an agent would leave at its first
use is looked for every second: a look at some thirty names, which takes no watch on a home folder.
"""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sidecar.agents.homes import files_in, is_here, traces
from sidecar.agents.reader import agents_of, reader_of
from sidecar.agents.roots import Roots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from threading import Event

    from sidecar.agents.places import Places
    from sidecar.config.settings import Agents

_log = logging.getLogger(__name__)

POLL_SECONDS = 30.0
NEW_SECONDS = 1.0
"""How often it is looked whether an agent has been used for the first time."""
_NOWHERE = Roots(())
_ADDED = 1
"""`watchfiles.Change.added`, which is an integer."""
_STEP_MS, _DEBOUNCE_MS = 20, 150


class _Watched(NamedTuple):
    """What is watched, and what is waited for."""

    folders: tuple[str, ...]
    """Folders with all below them, and files, which exist."""
    missing: frozenset[str]
    """Where others would begin: their first parent folder that does not exist."""

    @classmethod
    def of(cls, settings: Agents, places: Places, roots: Roots) -> _Watched:
        """Those of the agents that have been used here, and the traces of the others."""
        paths: list[str] = []
        for agent in agents_of(settings):
            if is_here(places, agent, roots.paths):
                paths += (*reader_of(agent).folders(places), *files_in(agent, roots.paths))
            else:
                paths += traces(places, agent, roots.paths)
        existing = {path: os.path.exists(path) for path in paths}
        missing = (_beginning(path) for path, exists in existing.items() if not exists)
        return cls(tuple(path for path, exists in existing.items() if exists), frozenset(missing))

    def is_old(self) -> bool:
        """Whether something that was missing is there."""
        return any(map(os.path.exists, self.missing))


def changes(
    settings: Agents,
    places: Places,
    stop: Event,
    *,
    roots: Roots = _NOWHERE,
    poll_seconds: float = POLL_SECONDS,
) -> Iterator[frozenset[str] | None]:
    """The paths that changed, a moment after they did, until `stop` is set.

    None means that anything may have changed: a new watch has begun, folders came or went, or
    `poll_seconds` went by, as some file systems report nothing. It blocks, so it needs a thread of
    its own.
    """
    while not stop.is_set():
        watched = _Watched.of(settings, places, roots)
        try:
            if watched.folders:
                current = partial(_Watched.of, settings, places, roots)
                yield from _changes(watched, current, stop, poll_seconds)
            else:
                _wait(watched, stop, poll_seconds)
        except OSError as error:  # no more watches to be had, or a folder that went away
            _log.info("session files are polled: %s", error.strerror or type(error).__name__)
            _wait(watched, stop, poll_seconds)
        if not stop.is_set():
            yield None


def _wait(watched: _Watched, stop: Event, seconds: float) -> None:
    """Wait until something missing is there, so many seconds at most."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not watched.is_old():
        if stop.wait(min(left, NEW_SECONDS)):
            return


def _changes(
    watched: _Watched, current: Callable[[], _Watched], stop: Event, poll_seconds: float
) -> Iterator[frozenset[str] | None]:
    """What the system reports of these folders, for as long as they are the ones to watch."""
    from watchfiles import watch

    reported = watch(
        *watched.folders,
        watch_filter=None,
        step=_STEP_MS,
        debounce=_DEBOUNCE_MS,
        rust_timeout=max(1, int(min(poll_seconds, NEW_SECONDS) * 1000)),
        yield_on_timeout=True,
        stop_event=stop,
        raise_interrupt=True,  # only a main thread is ever told: one that waits here is to end
        ignore_permission_denied=True,
    )
    polled = looked = time.monotonic()
    is_new = True
    for found in reported:
        if found:
            yield frozenset(_paths(found))
        if is_new:
            is_new = False
            yield None  # for what was written before this watch was in force
        now = time.monotonic()
        if now - looked >= NEW_SECONDS:
            looked = now
            if watched.is_old():
                return
        if now - polled >= poll_seconds:
            polled = now
            if current() != watched:
                return
            yield None


def _paths(found: Iterable[tuple[int, str]]) -> Iterator[str]:
    """What changed. Of a new folder all that is in it: it was written before it was watched."""
    for change, path in found:
        yield path
        if change == _ADDED:
            for folder, _, names in os.walk(path):
                yield from (os.path.join(folder, name) for name in names)


def _beginning(path: str) -> str:
    """The first part of a path that does not exist."""
    while (parent := os.path.dirname(path)) != path and not os.path.exists(parent):
        path = parent
    return path
