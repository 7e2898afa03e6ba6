"""Watches files for changes and notifies subscribers.

The watcher thread sleeps until the operating system reports a change. Some file systems do
not report changes, so the thread also compares file times every `TICK_SECONDS`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Container, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.config.safe_files import FileStamp, stamp_of
from sidecar.errors import log_defect
from sidecar.operating_system import IS_LINUX, IS_MACOS

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver, EventEmitter

logger = logging.getLogger(__name__)

TICK_SECONDS = 2.0
POLL_SECONDS = 30.0
"""Default interval in seconds at which subscribers are notified even without a change."""
QUIET_SECONDS = 0.02
"""Delay after the last change before changes are reported, in seconds."""
LONGEST_SECONDS = 0.1
"""Maximum delay between a change and its report, in seconds."""

Changes = frozenset[str] | None
"""The changed paths, or None if any path may have changed."""
FindPaths = Callable[[], Collection[str]]
"""A function that returns the paths to follow. It runs on its own thread and may block.

A path can be a file, a folder (followed recursively), or a path that does not exist yet.
"""


class FoundPaths(NamedTuple):
    """The result of looking up a subscription's paths, or None if this has failed."""

    subscription: PathSubscription
    paths: Collection[str] | None


class PathSubscription:
    """The paths followed by one subscriber."""

    def __init__(
        self, find_paths: FindPaths, notify: Callable[[Changes], object], poll_seconds: float
    ) -> None:
        self.is_active = True
        self.is_stale = False
        """Whether the paths to follow must be looked up again."""
        self.is_looking_up = False
        self._find_paths, self._notify = find_paths, notify
        self._poll_seconds, self._polled_at = poll_seconds, time.monotonic()
        self._changed: set[str] = set()
        self.folders: frozenset[str] = frozenset()
        self._stamps: dict[str, FileStamp | None] = {}

    def cancel(self) -> None:
        self.is_active = False

    @property
    def parents(self) -> set[str]:
        """The folders to watch for changes to the followed files and for new paths.

        On macOS, missing paths are only checked at each tick because watching the home folder
        would report every change below it.
        """
        return {
            _nearest_folder(path)
            for path, stamp in self._stamps.items()
            if stamp is not None or not IS_MACOS
        }

    def look_up_paths(self, report: Callable[[FoundPaths], object]) -> None:
        """Find the paths to follow on a thread of its own, because listing files may take long."""
        self.is_stale, self.is_looking_up = False, True
        work = partial(self._look_up_paths, report)
        threading.Thread(target=work, name="followed files", daemon=True).start()

    def _look_up_paths(self, report: Callable[[FoundPaths], object]) -> None:
        paths = None
        try:
            paths = self._find_paths()
        except Exception as exc:  # there is no caller to handle the error
            log_defect(exc, "finding files to watch")
        report(FoundPaths(self, paths))

    def follow(self, found: Collection[str] | None) -> None:
        """Follow the paths that were found. If this has failed, keep the old ones."""
        self.is_looking_up = False
        if found is not None:
            paths = frozenset(found)
            self.folders = frozenset(filter(os.path.isdir, paths))
            self._stamps = {path: stamp_of(path) for path in paths - self.folders}

    def compare_stamps(self) -> None:
        """Check the times of all followed files, and record the files that have changed."""
        before, self._stamps = self._stamps, {path: stamp_of(path) for path in self._stamps}
        changed = [path for path, stamp in self._stamps.items() if stamp != before[path]]
        self._changed.update(changed)
        self.is_stale |= any(None in (self._stamps[path], before[path]) for path in changed)

    def is_poll_due(self) -> bool:
        """Return whether the subscriber is due for its regular notification."""
        return time.monotonic() - self._polled_at >= self._poll_seconds

    def record(self, path: str) -> bool:
        """Record a changed path if it is followed. Returns whether a report is needed.

        If a missing path or one of its parents has changed, the subscription becomes stale.
        """
        is_followed = path in self._stamps or path.startswith(
            tuple(folder + os.sep for folder in self.folders)
        )
        if is_followed:
            self._changed.add(path)
        self.is_stale |= any(
            stamp is None and f"{missing}{os.sep}".startswith(f"{path}{os.sep}")
            for missing, stamp in self._stamps.items()
        )
        return is_followed or self.is_stale

    def report_changes(self) -> None:
        if self._changed:
            changed, self._changed = frozenset(self._changed), set()
            self._stamps |= {path: stamp_of(path) for path in changed & self._stamps.keys()}
            self._call(changed)

    def report_all(self) -> None:
        self._polled_at = time.monotonic()
        self._changed.clear()
        self._call(None)

    def _call(self, changes: Changes) -> None:
        try:
            self._notify(changes)
        except RuntimeError:  # the subscriber's event loop is closed
            self.cancel()


class FileWatcher:
    """Watches files on one thread and notifies subscribers of changes."""

    def __init__(self, start_seconds: float = 0.0) -> None:
        """Create a watcher.

        Args:
            start_seconds: Delay before importing the watchdog library, which takes 0.1 s.
        """
        self.start_seconds = start_seconds
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._subscriptions: list[PathSubscription] = []
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def subscribe(
        self,
        find_paths: FindPaths,
        notify: Callable[[Changes], object],
        poll_seconds: float = POLL_SECONDS,
    ) -> PathSubscription:
        """Follow the paths that `find_paths` returns. Always call this from the same thread.

        `notify` is called on the watcher thread with the changed paths. It is called with
        None if any path may have changed. This happens when watching starts, every
        `poll_seconds`, and when followed paths appear or disappear.
        """
        subscription = PathSubscription(find_paths, notify, poll_seconds)
        self._inbox.put(subscription)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="files", daemon=True)
            self._thread.start()
        return subscription

    def watch(
        self,
        find_paths: FindPaths,
        notify: Callable[[Changes], object],
        poll_seconds: float = POLL_SECONDS,
    ) -> PathSubscription:
        """Follow paths as `subscribe` does, but call `notify` on the running event loop."""
        loop = asyncio.get_running_loop()

        def deliver(changes: Changes) -> None:
            loop.call_soon_threadsafe(notify_active, changes)

        def notify_active(changes: Changes) -> None:
            if subscription.is_active:
                notify(changes)

        subscription = self.subscribe(find_paths, deliver, poll_seconds)
        return subscription

    def close(self) -> None:
        self._closed.set()
        self._inbox.put(None)

    def _run(self) -> None:
        if self._closed.wait(self.start_seconds):
            return
        watches = _Watches(self._inbox.put)
        try:
            self._watch(watches)
        except Exception as exc:  # there is no caller to handle the error
            log_defect(exc, "watching files")
        finally:
            watches.close()

    def _watch(self, watches: _Watches) -> None:
        report_at, latest_at = math.inf, math.inf
        tick_at = time.monotonic() + TICK_SECONDS
        while not self._closed.is_set():
            message = _next_message(self._inbox, min(report_at, tick_at))
            now = time.monotonic()
            if isinstance(message, PathSubscription):
                self._subscriptions.append(message)
                message.look_up_paths(self._inbox.put)
            elif isinstance(message, FoundPaths):
                self._follow(watches, message)
            elif message is not None and self._record(message):
                latest_at = min(latest_at, now + LONGEST_SECONDS)
                report_at = min(now + QUIET_SECONDS, latest_at)
            if now >= tick_at:
                report_at, latest_at, tick_at = math.inf, math.inf, now + TICK_SECONDS
                self._check_watches(watches)
            elif now >= report_at:
                report_at, latest_at = math.inf, math.inf
                self._report(watches)

    def _record(self, path: str) -> bool:
        followed = [subscription.record(path) for subscription in self._subscriptions]
        return any(followed)

    def _report(self, watches: _Watches) -> None:
        active = [subscription for subscription in self._subscriptions if subscription.is_active]
        has_ended = len(active) < len(self._subscriptions)
        self._subscriptions = active
        for subscription in active:
            subscription.report_changes()
        for subscription in active:
            if subscription.is_stale and not subscription.is_looking_up:
                subscription.look_up_paths(self._inbox.put)
        if has_ended:
            self._update_watches(watches)

    def _check_watches(self, watches: _Watches) -> None:
        are_outdated = watches.are_outdated()
        for subscription in self._subscriptions:
            subscription.compare_stamps()
            subscription.is_stale |= are_outdated or subscription.is_poll_due()
        self._report(watches)

    def _follow(self, watches: _Watches, found: FoundPaths) -> None:
        """Follow the paths that were found, and notify the subscriber."""
        subscription = found.subscription
        subscription.follow(found.paths)
        if not subscription.is_active:
            return
        self._update_watches(watches)
        subscription.report_all()
        if subscription.is_stale:
            subscription.look_up_paths(self._inbox.put)

    def _update_watches(self, watches: _Watches) -> None:
        """Watch the paths of all subscriptions.

        New watches are added before old watches are removed, so no change is missed.
        """
        active = [subscription for subscription in self._subscriptions if subscription.is_active]
        folders = {path for subscription in active for path in subscription.folders}
        parents = {path for subscription in active for path in subscription.parents}
        watches.update(folders, parents)


class FollowedPaths:
    """The paths that one subscriber follows, by key. Used on the event loop only."""

    def __init__(self, watcher: FileWatcher) -> None:
        self._watcher = watcher
        self._followed: dict[Hashable, tuple[object, PathSubscription]] = {}

    def follow(
        self,
        key: Hashable,
        wanted: object,
        find_paths: FindPaths,
        notify: Callable[[Changes], object],
        poll_seconds: float = math.inf,
    ) -> None:
        """Follow paths as `FileWatcher.watch` does, instead of those that the key stood for.

        Does nothing if `wanted`, which determines the paths, is the same as before.
        """
        if key not in self._followed or self._followed[key][0] != wanted:
            self.keep(self._followed.keys() - {key})
            self._followed[key] = wanted, self._watcher.watch(find_paths, notify, poll_seconds)

    def keep(self, keys: Container[Hashable]) -> None:
        """Stop following the paths of all other keys."""
        for key in [key for key in self._followed if key not in keys]:
            self._followed.pop(key)[1].cancel()


_Message = str | PathSubscription | FoundPaths | None
"""A changed path, a new subscription, the paths of one, or None to wake up the thread."""


def _next_message(inbox: queue.SimpleQueue[_Message], until: float) -> _Message:
    """Return the next message, or None after the timeout."""
    try:
        return inbox.get(timeout=max(0.0, until - time.monotonic()))
    except queue.Empty:
        return None


def _nearest_folder(path: str) -> str:
    parent = os.path.dirname(path)
    return parent if os.path.isdir(parent) or parent == path else _nearest_folder(parent)


_LIMITS = {
    errno.ENOSPC: "fs.inotify.max_user_watches",
    errno.EMFILE: "fs.inotify.max_user_instances",
}
"""Linux settings that limit file watching, keyed by error number."""


class _Folder(NamedTuple):
    path: str
    is_tree: bool


class _Watch(NamedTuple):
    emitter: EventEmitter
    handler: _Handler
    identity: tuple[int, int] | None


class _Watches:
    """The folders watched by the operating system for this process. Not thread-safe."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._observer: BaseObserver | None = None
        self._watches: dict[_Folder, _Watch] = {}
        self._has_failed = False

    def update(self, trees: Iterable[str], folders: Iterable[str]) -> None:
        """Replace the watched folders. `trees` are watched recursively, `folders` are not."""
        wanted: dict[_Folder, list[str]] = {}
        for paths, is_tree in ((trees, True), (folders, False)):
            for path in paths:
                wanted.setdefault(_Folder(os.path.realpath(path), is_tree), []).append(path)
        for folder, names in wanted.items():
            if folder in self._watches and not self._is_outdated(folder):
                self._watches[folder].handler.names = names
                continue
            self._unschedule(folder)
            self._schedule(folder, names)
        for folder in self._watches.keys() - wanted.keys():
            self._unschedule(folder)

    def are_outdated(self) -> bool:
        """Return whether a watch has stopped, or its folder has been deleted or replaced."""
        return any(map(self._is_outdated, self._watches))

    def _is_outdated(self, folder: _Folder) -> bool:
        watch = self._watches[folder]
        return not watch.emitter.is_alive() or watch.identity != _identity(folder.path)

    def close(self) -> None:
        if self._observer is not None:
            self._observer.stop()

    def _schedule(self, folder: _Folder, names: list[str]) -> None:
        identity = _identity(folder.path)
        try:
            observer = self._running_observer()
            handler = _Handler(folder.path, names, self._report)
            watch = observer.schedule(
                handler,  # type: ignore[arg-type]
                folder.path,
                recursive=folder.is_tree,
                event_filter=_event_types(),
            )
        except (FileNotFoundError, NotADirectoryError):  # the folder has just been deleted
            return
        except OSError as error:
            self._warn(error)
            return
        emitter = next(emitter for emitter in observer.emitters if emitter.watch is watch)
        self._watches[folder] = _Watch(emitter, handler, identity)

    def _unschedule(self, folder: _Folder) -> None:
        if folder in self._watches and self._observer is not None:
            self._observer.unschedule(self._watches.pop(folder).emitter.watch)

    def _warn(self, error: OSError) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        limit = _LIMITS.get(error.errno or 0) if IS_LINUX else None
        logger.warning(
            "cannot watch files for changes: %s. Settings and other individual files are now "
            "checked every %.0f s, and folders every %.0f s.%s",
            error.strerror or type(error).__name__,
            TICK_SECONDS,
            POLL_SECONDS,
            f" To fix this, increase {limit} with sysctl." if limit else "",
        )

    def _running_observer(self) -> BaseObserver:
        if self._observer is None:
            from watchdog.observers import Observer

            observer: Any = Observer()
            observer.start()
            self._observer = observer
        return self._observer


class _Handler:
    def __init__(self, path: str, names: list[str], report: Callable[[str], None]) -> None:
        self._path, self.names, self._report = path, names, report

    def dispatch(self, event: FileSystemEvent) -> None:
        for path in filter(None, (event.src_path, event.dest_path)):
            below = str(path).removeprefix(self._path)
            for name in self.names:
                self._report(name + below)


def _event_types() -> list[type[FileSystemEvent]]:
    from watchdog import events

    files = [events.FileCreatedEvent, events.FileModifiedEvent, events.FileMovedEvent]
    folders = [events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent]
    return [*files, events.FileDeletedEvent, *folders]


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
