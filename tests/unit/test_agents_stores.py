"""Tests that agents' files are read line by line, and that each read continues the previous one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import pytest

from benchmarks.agents import claude, codex
from sidecar import typed
from sidecar.agents import file_reading, stores
from sidecar.agents.compressed import zstd
from sidecar.agents.file_reading import chunks, first_lines, open_quietly, reported_usage
from sidecar.agents.session_events import CallFinished, Store, StoredSession, StoreRead
from sidecar.agents.stores import Lines, SessionState, read_lines, record_at, store_from_path
from tests.unit.agents_world import World

STEP = 20_000


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_STEP", STEP)
    monkeypatch.setattr(stores, "chunks", partial(file_reading.chunks, size=STEP // 4))


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("agent", ["claude-code", "codex"])
def test_large_file_is_read_in_steps(tmp_path: Path, agent: str) -> None:
    world = World(tmp_path, agent)
    if agent == "codex":
        home = codex.CodexHome(tmp_path / ".codex")
        path, truth = codex.everyday(home, world.root, 12).path, home.truth
    else:
        house = claude.ClaudeHome(tmp_path / ".claude")
        path, truth = claude.everyday(house, world.root).path, house.truth
    (reader,) = world.readers
    (store,) = [one for one in world.stores() if one.path == str(path)]
    reads, state = list[StoreRead](), b""
    while not reads or not reads[-1].is_complete:
        reads.append(reader.read(store, state))
        state = reads[-1].state
    assert len(reads) > 2
    assert sum(one.bytes_read for one in reads) == store.size
    assert [one.has_all_sessions for one in reads] == [True] + [False] * (len(reads) - 1)
    world.check(truth)


@pytest.mark.usefixtures("small_steps")
def test_large_compressed_file_is_read_in_one_step(tmp_path: Path) -> None:
    world = World(tmp_path, "codex")
    home = codex.CodexHome(tmp_path / ".codex")
    codex.everyday(home, world.root, 12).compress(zstd.compress)
    world.check(home.truth)


def test_record_after_corrupt_data_cannot_be_read(tmp_path: Path) -> None:
    whole = zstd.compress(b'{"id": 1}\n' * 100_000)
    middle = len(whole) // 2
    path = tmp_path / "session.jsonl.zst"
    path.write_bytes(whole[:middle] + b"damaged!" + whole[middle + 8 :])
    store = store_from_path("codex", path)
    assert store is not None
    with pytest.raises(OSError, match="corrupt"):
        record_at(store.path, "900000", _line)


class Line(msgspec.Struct):
    """A line in the format of a fictitious agent."""

    id: int
    after: int | None = None
    title: str | None = None


_line = typed.decoder(Line)


class Tree(msgspec.Struct):
    """The reader's state for a file whose lines form a tree. Only the latest id is saved."""

    session: SessionState
    newest: int = 0
    begun: int = 0
    known: list[int] = []
    """The ids of the lines seen in the current read. They are not saved."""

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        for line in lines.records(_line):
            if line.after not in (None, self.newest, *self.known):
                raise stores.StartOverError
            self.newest = line.id
            self.known.append(line.id)
            if line.title:
                self.session.title_at = lines.position
        yield from ()

    def snapshots(self) -> Iterable[StoredSession]:
        self.known = []
        return (self.session.snapshot(),)


def write(path: Path, *lines: dict[str, object]) -> Store:
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    found = store_from_path("tree", path)
    assert found is not None
    return found


def read(store: Store, state: bytes = b"") -> StoreRead:
    return read_lines(store, state, lambda: Tree(SessionState("a")))


@pytest.mark.parametrize(
    ("folders", "workspace"),
    [
        ("/a/b\n/c", "/a/b"), ("C:\\a", "C:\\a"), ("name:site", ""), ("md5:0f", ""),
        ("sha256:0f", ""), (None, ""),
    ],
)  # fmt: skip
def test_calls_belong_to_the_first_folder_of_their_session_if_it_is_known(
    folders: str | None, workspace: str
) -> None:
    session = SessionState("s")
    session.work_in(folders)
    (call,) = session.call(datetime.now(UTC), reported_usage(1, 1), "r", "gpt-5")
    assert call.workspace == workspace


def test_line_that_needs_lost_state_restarts_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "tree.jsonl"
    first = read(write(path, {"id": 1}, {"id": 2, "after": 1}))
    second = read(write(path, {"id": 3, "after": 2}), first.state)
    third = read(write(path, {"id": 4, "after": 1}), second.state)
    assert [one.has_all_sessions for one in (first, second, third)] == [True, False, True]
    assert third.bytes_read == path.stat().st_size


def test_title_is_read_from_the_position_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "tree.jsonl"
    write(path, {"id": 1}, {"id": 2, "title": "x" * 50_000})
    store = write(path, {"id": 3, "title": "the newest"}, {"id": 4})
    (changed,) = read(store).sessions
    assert changed.title_at is not None
    found = record_at(store.path, changed.title_at, _line)
    assert found is not None
    assert found.title == "the newest"
    path.write_text("another file\n" * 9_000)
    assert record_at(store.path, changed.title_at, _line) is None


def test_state_of_another_version_restarts_the_reading(tmp_path: Path) -> None:
    store = write(tmp_path / "tree.jsonl", {"id": 1})
    state = read(store).state
    assert read(store, state).has_all_sessions is False
    again = read_lines(store, state, lambda: Other(1))
    assert (again.has_all_sessions, again.bytes_read) == (True, store.size)


class Other(msgspec.Struct):
    """A state whose fields differ from those of `Tree`."""

    session: int

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        assert list(lines.records(_line))
        yield from ()

    def snapshots(self) -> Iterable[StoredSession]:
        return ()


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_chunks_contain_only_complete_lines(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"a\nbb\n" + b"c" * 40 + b"\nhalf")
    with open_quietly(str(path)) as file:
        read = list(chunks(file, size))
    assert b"".join(data for data, _ in read) == b"a\nbb\n" + b"c" * 40 + b"\n"
    assert all(data.endswith(b"\n") for data, _ in read)


def test_very_long_line_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reading, "LONGEST_LINE", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"first\n" + b"x" * 1000 + b"\nlast\n" + b"y" * 1000)
    with open_quietly(str(path)) as file:
        read = list(chunks(file, 64))
    assert b"".join(data for data, _ in read) == b"first\nlast\n"
    assert sum(len(data) + passed for data, passed in read) == len(b"first\nlast\n") + 1001


def test_compressed_file_is_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd.compress(b"one\ntwo\n") + zstd.compress(b"three\n"))
    assert list(first_lines(str(path))) == [b"one", b"two", b"three"]


def test_damaged_compressed_file_raises_oserror(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd.compress(b"one\n" * 1000)[:-6])
    with pytest.raises(OSError, match="zstd"):
        list(first_lines(str(path)))


def test_reading_does_not_change_the_access_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n")
    os.utime(path, (1, 2_000_000_000))
    assert list(first_lines(str(path))) == [b"one"]
    assert path.stat().st_atime == 1


def test_reading_the_head_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [b"%03d" % number + b"x" * 96 for number in range(200)]
    path.write_bytes(b"".join(line + b"\n" for line in lines) + b"half")
    assert list(first_lines(str(path))) == lines
    assert list(first_lines(str(path), 5_050)) == lines[:50]


@pytest.mark.parametrize("kind", ["fifo", "zero"])
def test_special_file_does_not_block(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "session.jsonl"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="regular"):
        next(first_lines(str(path)))
