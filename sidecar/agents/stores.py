"""Base of all readers: reading agents' stores forward, in one pass.

To write a reader, add a module to `sidecar.agents.readers` with one `READER` that implements
`events.StoreReader`, and list its folders in `places.py`. `finding.FileStores` finds stores that
are files, and `databases.OneDatabase` finds SQLite databases:

    class KimiCli(FileStores):
        agent, inner, pattern = "kimi-cli", ("sessions",), r".*wire\\.jsonl"

        def read(self, store: Store, state: bytes = b"") -> StoreRead:
            return read_lines(store, state, lambda: _Wire(SessionState(id=...)))

`read` calls one of these functions:

- `read_lines` for files of JSON lines that grow. The reader's state is a `msgspec.Struct` with
  everything that later lines depend on. `state.read(lines)` updates the state and yields the calls
  of these lines; `state.snapshots()` then returns the session as it is now, usually from a
  `SessionState`, or nothing for the file of a sub-agent.
- `read_document` for files that are rewritten as a whole.
- `databases.read_database` for SQLite, and `read_store` for everything else. Their states hold
  cursors of their own.

Rules for readers:

- Decode only what is used: `typed.decoder` with a `fields.Record` that names the fields. Message
  text never enters a record, a state or a result.
- Give every call a `request` that stays the same whenever its line is read again.
- Don't keep titles. `SessionState.title_at` holds the position of the title's line
  (`lines.position`), and `title` reads it with `record_at`.
- Count lines that cannot be decoded; raise OSError for a store that is gone, locked or half
  written.

The state is saved with a fingerprint of the store's head and of the bytes before the offset. A
store that was rewritten, truncated, rotated or replaced is read from its start; the request ids
prevent its calls from being counted twice. Large files are read in steps that are saved one by
one. If the fields of a state change so that a saved state no longer decodes, the store is read
from its start. If only their meaning changes, increase `session_index._VERSION`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from hashlib import blake2b
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from sidecar import typed
from sidecar.agents.events import (
    CallFinished,
    CallSize,
    Category,
    Quality,
    SessionSnapshot,
    Store,
    StoreRead,
)
from sidecar.agents.fields import provider_of
from sidecar.agents.file_reading import HEAD, chunks, first_lines, open_quietly
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from decimal import Decimal

    from sidecar.messages.usage import Usage

COMPACTED = "compacted: the new size appears with the next turn"
REWOUND = "rewound: the new size appears with the next turn"
NO_USAGE = "this model reports no usage"
NOT_VISIBLE = "not visible from this machine"
ESTIMATED = "compacted: the agent's estimate until the next turn"
ESTIMATE_BAND = 25.0
"""The error band (±%) of an agent's own estimate after a compaction."""


class ContextTrack(msgspec.Struct, frozen=True, gc=False):
    """The last known size of a context. It is immutable, and its methods return new values."""

    newest: CallSize | None = None
    why: str | None = None
    """The reason why the size is unknown."""
    is_estimate: bool = False
    """Whether the size is the agent's estimate after a compaction."""

    def call(self, reading: CallSize) -> ContextTrack:
        """Return the size after a call. A call that reports no prompt tokens does not change it."""
        if reading.prompt > 0:
            return ContextTrack(newest=reading)
        return self if self.newest or self.why else ContextTrack(why=NO_USAGE)

    def compaction(self) -> ContextTrack:
        """Return the size after a compaction, which is unknown."""
        return ContextTrack(why=COMPACTED)

    def estimate(self, tokens: int, model: str | None) -> ContextTrack:
        """Return the agent's own estimate of the size after a compaction or an undo."""
        return (
            ContextTrack(newest=CallSize(tokens, 0, model), is_estimate=True)
            if tokens > 0
            else self
        )

    def rewind(self) -> ContextTrack:
        """Return the size after turns were removed, which is unknown."""
        return ContextTrack(why=REWOUND)


_COMPRESSED = ".zst"
_STEP = 8 << 20
"""The number of bytes to read at once. Larger files are read in steps."""
_HEAD = 4096
_BEFORE = 256
_BLOCK = 16 << 10

T = TypeVar("T")


class SessionState(msgspec.Struct):
    """What a reader knows of a main conversation. It is a part of the reader's state."""

    id: str
    first_folder: str | None = None
    folder: str | None = None
    branch: str | None = None
    began: datetime | None = None
    at: datetime | None = None
    """The time of the newest line."""
    model: str | None = None
    """The model to show if the newest call names none."""
    track: ContextTrack = ContextTrack()
    window: int | None = None
    """The context window in tokens, for agents whose calls do not report it."""
    active: bool | None = None
    title_at: str | None = None
    parent: str | None = None
    ended: bool = False
    rank: int = 0

    def touch(self, at: datetime | None) -> None:
        """Set the time of the newest line, and of the first line if this is the first. Ignores
        None.
        """
        if at is not None:
            self.began, self.at = self.began or at, at

    def work_in(self, folder: str | None) -> None:
        """Set the folder that the agent works in. Ignores None and an empty string."""
        if folder:
            self.first_folder, self.folder = self.first_folder or folder, folder

    def call(
        self,
        at: datetime | None,
        usage: Usage,
        request: str,
        model: str | None,
        provider: str | None = None,
        *,
        session: str | None = None,
        workspace: str | None = None,
        category: Category = "main",
        cost_usd: Decimal | None = None,
        agent_cost_usd: Decimal | None = None,
        telemetry_id: str | None = None,
    ) -> list[CallFinished]:
        """Return a call of the session, in a list that is empty if the time of the call is unknown.

        Args:
            at: The time of the call.
            usage: The tokens of the call.
            request: The provider's id of the call, or an id derived from its line.
            model: The model, if known.
            provider: The provider; by default the one that the model's name implies.
            session: The session to which the call belongs; by default this one.
            workspace: The folder that the agent works in; by default the session's folder.
            category: The purpose of the call.
            cost_usd: The USD that the provider billed.
            agent_cost_usd: The USD that the agent computed from its own price list.
            telemetry_id: The id of the call in the agent's own telemetry.
        """
        if at is None:
            return []
        model = model or "unknown"
        call = CallFinished(
            at=at,
            session=self.id if session is None else session,
            model=model,
            provider=provider or provider_of(model),
            usage=usage,
            request=request,
            workspace=(self.folder or "") if workspace is None else workspace,
            category=category,
            cost_usd=cost_usd,
            agent_cost_usd=agent_cost_usd,
            telemetry_id=telemetry_id,
        )
        return [call]

    def snapshot(
        self, quality: Quality = "exact", error_percent: float = 0.0, note: str | None = None
    ) -> SessionSnapshot:
        """Return the row of the session for the session index."""
        track, newest = self.track, self.track.newest
        if newest is None:
            error_percent, note = 0.0, track.why or note
        elif track.is_estimate:
            quality, error_percent, note = "estimate", ESTIMATE_BAND, note or ESTIMATED
        return SessionSnapshot(
            name=self.id,
            first_folder=self.first_folder,
            folder=self.folder,
            parent=self.parent,
            model=(newest.model if newest else None) or self.model,
            tokens=newest.prompt + newest.output if newest else None,
            window=(newest.window if newest else None) or self.window,
            quality=quality,
            error_percent=error_percent,
            note=note,
            compacted=newest is None and track.why == COMPACTED,
            branch=self.branch,
            began_at=_milliseconds(self.began),
            updated_at=_milliseconds(self.at),
            active=self.active,
            ended=self.ended,
            rank=self.rank,
            title_at=self.title_at,
        )


def _milliseconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)


class Lines:
    """Decodes the complete lines of a file one by one, and counts the broken lines."""

    def __init__(self, path: str, data: bytes, offset: int) -> None:
        self.path, self.data = path, data
        self.line = b""
        self.skipped = 0
        self._offset = self._position = offset

    @property
    def position(self) -> str:
        """The position of the last record's line, for `record_at`."""
        return str(self._position)

    def records(self, decode: Callable[[bytes], T]) -> Iterator[T]:
        """Yield a record for each line. Broken lines are counted and left out."""
        start, find = 0, self.data.find
        while (end := find(b"\n", start)) >= 0:
            line = self.data[start:end]
            try:
                record = decode(line)
            except msgspec.DecodeError:
                self.skipped += bool(line.strip())
            else:
                self.line, self._position = line, self._offset + start
                yield record
            start = end + 1


class LineState(Protocol):
    """The reader's state for a file of lines. It is a mutable `msgspec.Struct`."""

    def read(self, lines: Lines) -> Iterable[CallFinished]:
        """Update the state with new lines, and yield the calls in these lines."""

    def snapshots(self) -> Iterable[SessionSnapshot]:
        """Return the session in the file, or nothing for a sub-agent's file."""


S = TypeVar("S")
L = TypeVar("L", bound=LineState)


class StartOverError(SidecarError):
    """The state lacks something that a line depends on, so the whole file must be read."""


def read_lines(store: Store, state: bytes, new: Callable[[], L]) -> StoreRead:
    """Read what was added to a file of lines.

    Args:
        store: The file. A compressed file is read from its start whenever it changes.
        state: The state that the last reading returned, or empty at first.
        new: Creates the reader's initial state.

    Raises:
        OSError: The file cannot be read.
    """
    with open_quietly(store.path) as file:
        cursor = _usable_cursor(file, store, state)
        held = None if cursor is None else _unpack_or_none(cursor.state, type(new()))
        try:
            if cursor is not None and held is not None:
                return _read_on(file, store, held, cursor.offset)
            return _read_on(file, store, new(), 0)
        except StartOverError:
            return _read_on(file, store, new(), 0, one_step=True)


class StoreContents(NamedTuple):
    """The calls and sessions in a document or database."""

    calls: Iterable[CallFinished] = ()
    sessions: Iterable[SessionSnapshot] = ()
    skipped: int = 0
    """The number of broken parts."""
    has_all_sessions: bool = True
    """Whether `sessions` contains all sessions of the store rather than the changed ones."""
    is_settled: bool = True
    """Whether the store need not be read again until it changes."""


def read_document(store: Store, parse: Callable[[bytes], StoreContents]) -> StoreRead:
    """Read a file that the agent rewrites as a whole.

    Args:
        store: The file.
        parse: Returns the sessions and calls in the file's contents.

    Raises:
        OSError: The file is missing or incomplete.
    """
    with open_quietly(store.path) as file:
        data = file.read()
    contents = parse(data)
    digest = blake2b(data, digest_size=8).digest()
    return _store_read(contents, digest, len(data))


def read_store(
    store: Store, state: bytes, new: Callable[[], S], parse: Callable[[S], StoreContents]
) -> StoreRead:
    """Read a store that is not a single file.

    Args:
        store: The store.
        state: The state that the last reading returned, or empty at first.
        new: Creates the reader's initial state, which contains its own position in the store.
        parse: Updates the reader's state, and returns the new calls and the changed or all
            sessions.

    Raises:
        OSError: The store cannot be read.
    """
    kept = _unpack_or_none(state, _Identified)
    # If the file was replaced, its rows are other ones.
    same = kept is not None and kept.inode == store.inode
    held = _unpack_or_none(kept.state, type(new())) if kept and same else None
    is_new = held is None
    held = held or new()
    contents = parse(held)
    read = _store_read(contents, _pack(_Identified(store.inode, _pack_raw(held))), 0)
    return msgspec.structs.replace(read, has_lost_state=is_new)


def reader_state(state: bytes, kind: type[T]) -> T | None:
    """Return the reader's part of a state of `read_lines`, or None if it cannot be decoded."""
    cursor = _unpack_or_none(state, _Cursor)
    return None if cursor is None else _unpack_or_none(cursor.state, kind)


def read_records(path: str, decode: Callable[[bytes], T]) -> Iterator[T]:
    """Yield the records in a file of lines. Broken lines are left out.

    Raises:
        OSError: The file cannot be read.
    """
    with open_quietly(path) as file:
        for data, _ in chunks(file):
            for line in data.splitlines():
                with suppress(msgspec.DecodeError):
                    yield decode(line)


def first_records(store: Store, decode: Callable[[bytes], T], most: int) -> Iterator[T]:
    """Yield the records in the first `most` bytes of a store. Broken lines are left out.

    Raises:
        OSError: The file cannot be read.
    """
    for line in first_lines(store.path, most):
        with suppress(msgspec.DecodeError):
            yield decode(line)


def record_at(store: Store, position: str, decode: Callable[[bytes], T]) -> T | None:
    """Return the record at a position that `Lines.position` returned, or None if it is broken.

    Raises:
        OSError: The file cannot be read.
    """
    line = b""
    with open_quietly(store.path) as file:
        file.seek(int(position))
        while len(line) < HEAD and (data := file.read(_BLOCK)):
            end = data.find(b"\n")
            line += data if end < 0 else data[:end]
            if end >= 0:
                break
    try:
        return decode(line)
    except msgspec.DecodeError:
        return None


class _Cursor(msgspec.Struct, frozen=True, array_like=True, tag="lines"):
    offset: int
    fingerprint: bytes
    """A digest of the first bytes of the file and of the bytes before `offset`."""
    state: msgspec.Raw


class _Identified(msgspec.Struct, frozen=True, array_like=True, tag="store"):
    inode: int
    state: msgspec.Raw


def _usable_cursor(file: IO[bytes], store: Store, state: bytes) -> _Cursor | None:
    """Return where to continue reading, or None if the beginning of the file has changed."""
    cursor = _unpack_or_none(state, _Cursor)
    if cursor is None or store.path.endswith(_COMPRESSED) or cursor.offset > store.size:
        return None
    return cursor if _fingerprint_of(file, cursor.offset) == cursor.fingerprint else None


def _read_on(
    file: IO[bytes], store: Store, state: L, begin: int, *, one_step: bool = False
) -> StoreRead:
    is_compressed = store.path.endswith(_COMPRESSED)
    most = None if one_step or is_compressed else begin + _STEP
    calls: list[CallFinished] = []
    offset, skipped, is_complete = begin, 0, True
    file.seek(begin)
    for data, passed in chunks(file):
        lines = Lines(store.path, data, offset)
        calls += [call for call in state.read(lines) if call.counts]
        offset += len(data) + passed
        skipped += lines.skipped + bool(passed)
        if most is not None and offset >= most:
            is_complete = False
            break
    sessions = tuple(state.snapshots())
    listed = f"{store.inode} {store.size} {store.mtime_ns}".encode()
    fingerprint = listed if is_compressed else _fingerprint_of(file, offset)
    return StoreRead(
        calls=tuple(calls),
        sessions=sessions,
        state=_pack(_Cursor(offset, fingerprint, _pack_raw(state))),
        restarted=begin == 0,
        is_complete=is_complete,
        bytes_read=offset - begin,
        skipped=skipped,
    )


def _store_read(contents: StoreContents, state: bytes, size: int) -> StoreRead:
    return StoreRead(
        calls=tuple(call for call in contents.calls if call.counts),
        sessions=tuple(contents.sessions),
        state=state,
        restarted=contents.has_all_sessions,
        is_settled=contents.is_settled,
        bytes_read=size,
        skipped=contents.skipped,
    )


def _fingerprint_of(file: IO[bytes], offset: int) -> bytes:
    length = min(offset, _HEAD)
    file.seek(0)
    digest = blake2b(file.read(length), digest_size=8)
    file.seek(max(0, offset - _BEFORE))
    digest.update(file.read(min(offset, _BEFORE)))
    return digest.digest()


def _pack(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def _pack_raw(state: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(state))


def _unpack_or_none(data: bytes | msgspec.Raw, kind: type[T]) -> T | None:
    """Decode a state, or return None if it is empty or has the fields of another version."""
    try:
        return typed.unpack(data, kind)
    except msgspec.DecodeError:
        return None
