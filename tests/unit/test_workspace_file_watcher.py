"""Tests that the file watcher reports all changes, and sleeps while nothing changes."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.config.safe_files import stamp_of
from sidecar.project import file_watcher
from sidecar.project.file_watcher import Changes, FileWatcher, FollowedPaths, _Watches

NEVER = float("inf")


class Subscriber:
    """Records the changes reported for some paths, and polls them only if `poll` is given."""

    def __init__(
        self, *paths: Path, poll: float = NEVER, notify: Callable[[Changes], object] = bool
    ) -> None:
        self.reports: queue.SimpleQueue[Changes] = queue.SimpleQueue()
        self.watcher = FileWatcher()

        def report(changes: Changes) -> None:
            notify(changes)
            self.reports.put(changes)

        self.subscription = self.watcher.subscribe(lambda: list(map(str, paths)), report, poll)
        assert self.reports.get(timeout=60) is None  # The paths are now being watched.

    def until_reported(self, *paths: Path) -> None:
        """Wait until changes to all of these paths have been reported."""
        left = set(map(str, paths))
        while left:
            left -= self.reports.get(timeout=60) or set()

    def until_rescan_requested(self) -> None:
        """Wait for the report None, which requests a full rescan."""
        while self.reports.get(timeout=60) is not None:
            pass

    def reported_before(self, last: Path, change: Callable[[], object]) -> set[str]:
        """Make a change, wait until `last` is reported, and return all paths reported so far."""
        change()
        seen: set[str] = set()
        while str(last) not in seen:
            seen |= self.reports.get(timeout=60) or set()
        return seen


Follow = Callable[..., Subscriber]


@pytest.fixture
def follow() -> Iterator[Follow]:
    made: list[Subscriber] = []

    def follow_(*paths: Path, **options: Any) -> Subscriber:
        made.append(Subscriber(*paths, **options))
        return made[-1]

    yield follow_
    for each in made:
        each.watcher.close()


@pytest.fixture
def events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the comparison of modification times."""
    monkeypatch.setattr(file_watcher, "TICK_SECONDS", 3_600.0)


@pytest.fixture
def no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a file system that reports no changes."""
    monkeypatch.setattr(file_watcher, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(file_watcher._Handler, "dispatch", lambda *_: None)


@pytest.mark.usefixtures("events_only")
def test_only_followed_files_and_folders_are_reported(tmp_path: Path, follow: Follow) -> None:
    tree, file = tmp_path / "tree", tmp_path / "settings"
    (tree / "below").mkdir(parents=True)
    file.touch()
    subscriber = follow(tree, file)
    (tmp_path / "ledger").write_text("beside")
    (tree / "below" / "session").write_text("a line")
    subscriber.until_reported(tree / "below" / "session")
    (tmp_path / "settings").touch()
    (tmp_path / "ledger").write_text("beside, again")
    seen = subscriber.reported_before(file, lambda: file.write_text("more"))
    assert str(tmp_path / "ledger") not in seen


@pytest.mark.usefixtures("events_only")
def test_a_slow_list_of_files_does_not_delay_other_reports(tmp_path: Path, follow: Follow) -> None:
    file = tmp_path / "file"
    file.touch()
    subscriber = follow(file)
    may_list, slow = threading.Event(), queue.SimpleQueue[Changes]()

    def list_slowly() -> list[str]:
        assert may_list.wait(60)
        return [str(tmp_path / "slow")]

    subscriber.watcher.subscribe(list_slowly, slow.put, NEVER)
    file.write_text("changed")
    subscriber.until_reported(file)
    assert slow.empty()
    may_list.set()
    assert slow.get(timeout=60) is None
    (tmp_path / "slow").touch()
    assert str(tmp_path / "slow") in (slow.get(timeout=60) or ())


@pytest.mark.usefixtures("events_only")
def test_files_stay_followed_if_a_later_list_fails(
    tmp_path: Path, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    lists = iter([[str(tmp_path / "file"), str(tmp_path / "new")]])
    reports = queue.SimpleQueue[Changes]()
    watcher = follow(tmp_path / "other").watcher
    (tmp_path / "file").touch()
    watcher.subscribe(lambda: next(lists), reports.put, NEVER)
    assert reports.get(timeout=60) is None
    (tmp_path / "new").touch()  # asks for the paths again
    while reports.get(timeout=60) is not None:
        pass
    assert "finding files to watch" in caplog.text
    (tmp_path / "file").write_text("changed")
    while str(tmp_path / "file") not in (reports.get(timeout=60) or ()):
        pass


@pytest.mark.usefixtures("events_only")
def test_new_folder_is_watched_with_its_contents(tmp_path: Path, follow: Follow) -> None:
    subscriber = follow(tmp_path)
    made = []
    for day in range(20):
        path = tmp_path / "2026" / f"{day}" / "session"
        path.parent.mkdir(parents=True)
        path.write_text("a line")
        made.append(path)
    subscriber.until_reported(*made)
    made[3].write_text("two lines")
    subscriber.until_reported(made[3])


@pytest.mark.usefixtures("events_only")
def test_replaced_file_is_reported(tmp_path: Path, follow: Follow) -> None:
    """Editors save a file by writing a new file and renaming it."""
    file, written = tmp_path / "file", tmp_path / "written"
    file.touch()
    subscriber = follow(file)
    for text in ("one", "two"):
        written.write_text(text)
        written.replace(file)
        subscriber.until_reported(file)


@pytest.mark.usefixtures("events_only")
def test_linked_folder_is_reported_by_all_its_followed_names(
    tmp_path: Path, follow: Follow
) -> None:
    real = tmp_path / "real"
    real.mkdir()
    links = [tmp_path / "one", tmp_path / "two"]
    for link in links:
        link.symlink_to(real, target_is_directory=True)
    subscriber = follow(*links)
    (real / "session").write_text("a line")
    subscriber.until_reported(*(link / "session" for link in links))


@pytest.mark.usefixtures("no_events")
def test_file_is_followed_without_events(tmp_path: Path, follow: Follow) -> None:
    file = tmp_path / "file"
    file.touch()
    subscriber = follow(file)
    file.write_text("more")
    subscriber.until_reported(file)
    file.unlink()
    subscriber.until_reported(file)
    subscriber.until_rescan_requested()
    file.write_text("back")
    subscriber.until_rescan_requested()
    file.write_text("and changed")
    subscriber.until_reported(file)


def test_new_and_replaced_paths_are_watched(
    tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watcher, "TICK_SECONDS", 0.1)
    tree = tmp_path / "tree"
    subscriber = follow(tree)
    for name in ("one", "two", "three"):
        tree.mkdir()
        subscriber.until_rescan_requested()
        (tree / name).write_text("a line")
        subscriber.until_reported(tree / name)
        tree.rename(tmp_path / name)
        subscriber.until_rescan_requested()


@pytest.mark.usefixtures("events_only")
def test_a_missing_path_is_watched_as_soon_as_it_appears(tmp_path: Path, follow: Follow) -> None:
    """In its first session, an agent creates its home folder and then the watched folder inside."""
    home = tmp_path / "user"
    tree, file = home / "agent" / "sessions", home / "settings"
    subscriber = follow(tree, file)
    for folder in (home, home / "agent", tree):
        folder.mkdir()
        subscriber.until_rescan_requested()
    (tree / "session").write_text("a line")
    subscriber.until_reported(tree / "session")
    for _ in range(2):
        file.write_text("new")
        subscriber.until_rescan_requested()
        file.unlink()
        subscriber.until_reported(file)


def test_recreated_folder_with_the_same_inode_is_watched(
    tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On ext4, a recreated folder may have the same inode number as before."""
    monkeypatch.setattr(file_watcher, "TICK_SECONDS", 0.5)
    monkeypatch.setattr(
        file_watcher, "_identity", lambda path: (1, 1) if os.path.isdir(path) else None
    )
    tree = tmp_path / "tree"
    tree.mkdir()
    subscriber = follow(tree)
    shutil.rmtree(tree)
    tree.mkdir()
    subscriber.until_rescan_requested()
    (tree / "session").write_text("a line")
    subscriber.until_reported(tree / "session")


@pytest.mark.parametrize("writes_before", [True, False], ids=["before", "after"])
def test_no_write_is_missed_while_watches_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes_before: bool
) -> None:
    """A write is reported even if the list of watched paths changes just before or after it."""
    monkeypatch.setattr(file_watcher, "TICK_SECONDS", 0.1)
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    sessions = old / "session", new / "session"
    contents: queue.SimpleQueue[dict[Path, str]] = queue.SimpleQueue()

    def read(changes: Changes) -> None:
        reported = [path for path in sessions if changes is None or str(path) in changes]
        contents.put({path: path.read_text() for path in reported if path.exists()})

    watcher = FileWatcher()
    watcher.subscribe(lambda: [str(old), str(new)], read, NEVER)
    assert contents.get(timeout=60) == {}  # The paths are now being watched.
    update = _Watches.update

    def write_meanwhile(watches: _Watches, *folders: object) -> None:
        if not writes_before:
            update(watches, *folders)  # type: ignore[arg-type]
        for path in sessions:
            path.write_text("a line")
        if writes_before:
            update(watches, *folders)  # type: ignore[arg-type]

    monkeypatch.setattr(_Watches, "update", write_meanwhile)
    new.mkdir()
    seen: dict[Path, str] = {}
    while seen != dict.fromkeys(sessions, "a line"):
        seen |= contents.get(timeout=60)
    watcher.close()


def test_changes_before_watching_are_noticed(
    tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscriber is notified only after the watch is active."""
    order: list[str] = []
    schedule = _Watches._schedule

    def scheduled(watches: _Watches, *args: object) -> None:
        schedule(watches, *args)  # type: ignore[arg-type]
        order.append("watched")

    monkeypatch.setattr(_Watches, "_schedule", scheduled)
    follow(tmp_path, notify=lambda _: order.append("notified"))
    assert order == ["watched", "notified"]


def test_change_reported_by_a_tick_is_not_reported_again(
    tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watcher, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(file_watcher, "QUIET_SECONDS", 0.25)
    monkeypatch.setattr(file_watcher, "LONGEST_SECONDS", 0.25)
    steps: list[str] = []
    changed, ticked = list[str](), threading.Semaphore(0)
    tick, report = FileWatcher._check_watches, FileWatcher._report

    def tick_(watcher: FileWatcher, watches: _Watches) -> None:
        steps.append("tick")
        tick(watcher, watches)
        steps.append("end of tick")
        if changed:
            ticked.release()

    def report_(watcher: FileWatcher, watches: _Watches) -> None:
        has_changes = any(subscription._changed for subscription in watcher._subscriptions)
        steps.append("report" if has_changes else "empty report")
        report(watcher, watches)

    monkeypatch.setattr(FileWatcher, "_check_watches", tick_)
    monkeypatch.setattr(FileWatcher, "_report", report_)
    subscriber = follow(tmp_path, notify=lambda changes: changed.extend(changes or ()))
    (tmp_path / "file").touch()
    for _ in range(6):
        assert ticked.acquire(timeout=60)
    subscriber.watcher.close()
    assert "end of tick, empty report" not in ", ".join(steps)


@pytest.mark.usefixtures("events_only")
def test_changes_in_quick_succession_are_reported_together(
    tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watcher, "QUIET_SECONDS", 2.0)
    monkeypatch.setattr(file_watcher, "LONGEST_SECONDS", 60.0)
    subscriber = follow(tmp_path)
    files = {tmp_path / f"{number}" for number in range(5)}
    for file in files:
        file.touch()
    assert subscriber.reports.get(timeout=60) == frozenset(map(str, files))


def test_watching_does_not_change_warning_filters(tmp_path: Path, follow: Follow) -> None:
    before = list(warnings.filters)
    follow(tmp_path)
    assert warnings.filters == before


def test_cancelled_subscription_reports_nothing(tmp_path: Path, follow: Follow) -> None:
    subscriber = follow(tmp_path)
    other: queue.SimpleQueue[Changes] = queue.SimpleQueue()
    subscriber.watcher.subscribe(lambda: [str(tmp_path)], other.put, NEVER)
    assert other.get(timeout=60) is None
    subscriber.subscription.cancel()
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in (other.get(timeout=60) or ())
    with suppress(queue.Empty):
        raise AssertionError(subscriber.reports.get(timeout=0.2))


@pytest.mark.parametrize(
    ("error", "setting"),
    [
        (errno.ENOSPC, "fs.inotify.max_user_watches"),
        (errno.EMFILE, "fs.inotify.max_user_instances"),
    ],
)
def test_without_watches_changes_are_polled_and_the_limit_is_logged(
    tmp_path: Path,
    follow: Follow,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: int,
    setting: str,
) -> None:
    def refuse(_watches: _Watches) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(_Watches, "_running_observer", refuse)
    monkeypatch.setattr(file_watcher, "TICK_SECONDS", 0.05)
    subscriber = follow(tmp_path, poll=0.1)
    for _ in range(2):
        assert subscriber.reports.get(timeout=60) is None
    (record,) = caplog.records
    assert os.strerror(error) in record.message
    assert "folders every 30 s" in record.message
    assert f"increase {setting}" in record.message


def test_unwatchable_folder_is_watched_later(
    tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poll tries again to watch the folder."""
    started, refused = _Watches._running_observer, threading.Event()

    def refuse(_watches: _Watches) -> None:
        refused.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_Watches, "_running_observer", refuse)
    monkeypatch.setattr(file_watcher, "TICK_SECONDS", 0.05)
    reports = follow(tmp_path, poll=0.1).reports
    assert refused.is_set()
    monkeypatch.setattr(_Watches, "_running_observer", started)
    file, lines = tmp_path / "session", ""
    while str(file) not in (reports.get(timeout=60) or ()):  # Each poll reports None.
        file.write_text(lines := lines + "a line")


def test_folder_deleted_while_being_watched_is_no_error(
    tmp_path: Path,
    follow: Follow,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree, schedule = tmp_path / "tree", _Watches._schedule
    tree.mkdir()

    def remove_and_schedule(watches: _Watches, *args: object) -> None:
        tree.rmdir()
        schedule(watches, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(_Watches, "_schedule", remove_and_schedule)
    follow(tree)
    assert not caplog.records


def test_closed_watcher_stops_its_threads_and_closes_descriptors(
    tmp_path: Path, follow: Follow
) -> None:
    follow(tmp_path).watcher.close()

    def in_use() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = in_use()
    for _ in range(3):
        follow(tmp_path).watcher.close()
    for _ in range(600):
        if all(now <= then for now, then in zip(in_use(), before, strict=True)):
            return
        threading.Event().wait(0.1)
    raise AssertionError((before, in_use()))


def test_paths_are_followed_until_others_stand_for_their_key() -> None:
    watched, cancelled = list[str](), list[str]()

    class Watcher:
        def watch(self, find_paths: Callable[[], tuple[str]], *_: object) -> Any:
            (path,) = find_paths()
            watched.append(path)
            return SimpleNamespace(cancel=lambda: cancelled.append(path))

    followed = FollowedPaths(Watcher())  # type: ignore[arg-type]

    def follow(key: str, path: str) -> None:
        followed.follow(key, path, lambda: (path,), print)

    for key, path in (("a", "1"), ("b", "2"), ("a", "1"), ("a", "3")):
        follow(key, path)
    assert (watched, cancelled) == (["1", "2", "3"], ["1"])
    followed.keep(("b",))
    assert cancelled == ["1", "3"]
    follow("a", "3")
    assert watched == ["1", "2", "3", "3"]


TIMES = (1_700_000_000, 1_700_000_000)


def rewrite(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    os.utime(file, TIMES)


def replace(file: Path, content: bytes) -> None:
    other = file.with_name("new")
    rewrite(other, content)
    other.replace(file)


def copy(file: Path, content: bytes) -> None:
    other = file.with_name("original")
    rewrite(other, content)
    shutil.copy2(other, file)


def link(file: Path, content: bytes) -> None:
    other = file.with_name("target")
    rewrite(other, content)
    file.unlink()
    file.symlink_to(other)


@pytest.mark.parametrize("change", [rewrite, replace, copy, link], ids=lambda each: each.__name__)
def test_stamp_changes_although_size_and_times_do_not(
    change: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    rewrite(file, b"one")
    before = stamp_of(file)
    assert before is not None
    assert stamp_of(file) == before
    change(file, b"two")
    assert (file.stat().st_size, file.stat().st_mtime) == (3, TIMES[0])
    assert stamp_of(file) != before


@pytest.mark.parametrize("path", ["absent", "nul\0inside"])
def test_file_that_does_not_exist_has_no_stamp(path: str, tmp_path: Path) -> None:
    assert stamp_of(tmp_path / path) is None
