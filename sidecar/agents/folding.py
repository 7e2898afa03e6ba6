"""Incremental reading: from a store and the mark of last time to batches of new calls.

A store that was rewritten, cut or rotated no longer has the mark's fingerprint and is read from its
start again: the calls' request ids keep the ledger from counting them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import IO, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from sidecar.agents.tail import chunks, open_quietly
from sidecar.agents.values import Batch, Call, Found, Mark

_COMPRESSED = ".zst"
_HEAD = 4096
_BEFORE = 256

S = TypeVar("S", bound=msgspec.Struct)


class Folded(NamedTuple, Generic[S]):
    """What came of some lines: the state after them, their calls, and lines that were broken."""

    state: S
    calls: Sequence[Call]
    skipped: int = 0

    @property
    def billed(self) -> tuple[Call, ...]:
        """The calls that were answered."""
        return tuple(call for call in self.calls if call.counts)


Fold: TypeAlias = Callable[[S, bytes], Folded[S]]
"""Takes whole lines into a state: a pure function, which leaves the state it is given alone."""


def fold_lines(found: Found, mark: Mark | None, start: S, fold: Fold[S]) -> Iterator[Batch]:
    """A store of lines, from where `mark` stands; `start` is the state before the first line.

    Raises OSError where the file cannot be read.
    """
    if mark is not None and mark.unchanged(found):
        return
    with open_quietly(found.path) as file:
        state, at = _resumed(file, found, mark, start)
        file.seek(at.offset)
        done = Batch((), at)
        for data, passed in chunks(file):
            if done.bytes_read:
                yield done
            folded = fold(state, data) if data else Folded(state, (), 1)
            state = folded.state
            at = _moved(file, at, len(data) + passed, folded)
            done = Batch(folded.billed, at, len(data) + passed)
    yield msgspec.structs.replace(done, mark=_seen(found, at))


def fold_whole(found: Found, mark: Mark | None, start: S, fold: Fold[S]) -> Iterator[Batch]:
    """A store that is rewritten as a whole: folded from its start whenever it changed.

    Raises OSError where the file cannot be read.
    """
    if mark is not None and mark.unchanged(found):
        return
    with open_quietly(found.path) as file:
        data = file.read()
    folded = fold(start, data)
    fresh = Mark(path=found.path, agent=found.agent, skipped=folded.skipped)
    yield Batch(folded.billed, _seen(found, fresh), len(data))


def fold_store(
    found: Found, mark: Mark | None, start: S, fold: Callable[[S], Folded[S]]
) -> Iterator[Batch]:
    """A store that is no plain file of lines: its state holds its own cursors.

    `start` is the state where there is none of an earlier reading. Raises OSError.
    """
    if mark is not None and mark.unchanged(found):
        return
    folded = fold(resumed_state(mark, start))
    done = Mark(
        path=found.path,
        agent=found.agent,
        state=msgspec.msgpack.encode(folded.state),
        skipped=folded.skipped,
    )
    yield Batch(folded.billed, _seen(found, done))


def resumed_state(mark: Mark | None, start: S) -> S:
    """The state that a mark holds; `start` where there is none, or that of another version."""
    if mark is None or not mark.state:
        return start
    try:
        return msgspec.msgpack.decode(mark.state, type=type(start))
    except msgspec.DecodeError:
        return start


def fingerprint(file: IO[bytes], offset: int) -> bytes:
    """Of a file's first bytes and of those before `offset`; where `file` stands is left alone."""
    before = file.tell()
    length = min(offset, _HEAD)
    file.seek(0)
    digest = blake2b(file.read(length), digest_size=8)
    file.seek(max(0, offset - _BEFORE))
    digest.update(file.read(min(offset, _BEFORE)))
    file.seek(before)
    return digest.digest()


def _resumed(file: IO[bytes], found: Found, mark: Mark | None, start: S) -> tuple[S, Mark]:
    """The state and mark to go on from: those of last time where the file still begins so."""
    fresh = start, Mark(path=found.path, agent=found.agent)
    if mark is None or not mark.fingerprint or mark.offset > found.size:
        return fresh
    if fingerprint(file, mark.offset) != mark.fingerprint:
        return fresh
    try:
        return msgspec.msgpack.decode(mark.state, type=type(start)), mark
    except msgspec.DecodeError:  # the state of another version
        return fresh


def _moved(file: IO[bytes], mark: Mark, count: int, folded: Folded[S]) -> Mark:
    """The mark after `count` bytes more; without size and time, as there may be more to read.

    A compressed file has no fingerprint: it never grows, and is read from its start if it changed.
    """
    offset = mark.offset + count
    return msgspec.structs.replace(
        mark,
        inode=0,
        size=0,
        mtime_ns=0,
        offset=offset,
        fingerprint=b"" if mark.path.endswith(_COMPRESSED) else fingerprint(file, offset),
        state=msgspec.msgpack.encode(folded.state),
        skipped=mark.skipped + folded.skipped,
    )


def _seen(found: Found, mark: Mark) -> Mark:
    """A mark at the end of the store as it was listed."""
    return msgspec.structs.replace(
        mark, inode=found.inode, size=found.size, mtime_ns=found.mtime_ns
    )
