"""Finds agents' stores and reads them incrementally. All session readers build on this module.

A fork of a known agent, and an agent whose files have a record of each call, need only a table in
`sidecar/known_agents.toml`. For any other agent, add a table, and create a module in
`sidecar.agents.readers` that defines a `READER`, an implementation of
`session_events.StoreReader`. There is a base class for each kind of store:

- `LineReader` for JSON Lines files that the agent appends to. `begin` returns the reader's state,
  a `SessionLines` with everything needed to interpret later lines. `state.read(lines)` updates the
  state and yields the calls in the lines. `state.snapshots()` returns the session in its current
  form, or nothing for a sub-agent's file:

      class KimiCli(LineReader):
          inner, pattern = ("sessions",), r".*wire\\.jsonl"

          def begin(self, store: Store) -> LineState:
              return _Wire(SessionState(id=...))

      class _Wire(SessionLines):
          def read(self, lines: Lines) -> Iterator[CallFinished]:
              session = self.session
              for line in lines.records(_line):  # _line = typed.decoder(_Line)
                  session.touch(parse_iso_time(line.time))
                  session.work_in(line.folder)
                  usage = reported_usage(line.input, line.output, line.cached)
                  session.track = session.track.call(CallSize.of(usage, line.model))
                  yield from session.call(session.updated_at, usage, line.id, line.model)

- `DocumentReader` for files that the agent always rewrites completely.
- `databases.OneDatabase` for SQLite databases.
- `FileStores` and `read_store` for everything else. The reader's state includes its
  position in the store.
- `TwoStores` combines two readers, such as those of an old and a new format.

Rules for readers:

- Decode only the fields that you need, using `typed.decoder` and a subclass of
  `file_reading.Record`. Records, states and results must not contain message text.
- Give every call a `request` id that stays the same when its line is read again.
- Do not store titles. Set `SessionState.title_at` to the position of the title's line
  (`lines.position`), and let `title` read the line with `record_at`.
- Add the parts of the conversation to `SessionState.sizes` in order. If they are in another file or
  table, implement `measure` instead.
- Let `Lines.records` count what cannot be decoded. Raise OSError if a store is missing, locked or
  incomplete.

The saved state includes a fingerprint of the start of the file and of the bytes before the offset.
If a file has been rewritten, truncated, rotated or replaced, it is read again from the start. The
request ids prevent its calls from being counted twice. Large files are read in several steps, and
the state is saved after each step. If you change the fields of a state so that saved states can no
longer be decoded, all stores are read from the start. If you change only the meaning of a field,
increment `session_index._VERSION`.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from hashlib import blake2b
from heapq import heappop, heappush
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes
from sidecar.agents.file_reading import (
    HEAD,
    chunks,
    first_lines,
    open_quietly,
    whole_objects,
)
from sidecar.agents.folders import Places, Roots, agent_folders, first_path, session_folders
from sidecar.agents.session_events import (
    NEVER,
    CallFinished,
    CallSize,
    Category,
    McpToolCall,
    Quality,
    SessionFacts,
    Store,
    StoredSession,
    StoreRead,
    StoreReader,
)
from sidecar.cost.cache_losses import CacheChain, CacheFacts, ChainCall
from sidecar.cost.ledger_events import split
from sidecar.errors import SidecarError
from sidecar.messages.vendor_usage import Usage
from sidecar.models.catalogue import provider_of

COMPACTED = "compacted: the new size appears with the next turn"
REWOUND = "rewound: the new size appears with the next turn"
NO_USAGE = "this model reports no usage"
NOT_VISIBLE = "not visible from this machine"
ESTIMATED = "compacted: this is the agent's estimate until the next turn"
ESTIMATE_BAND = 25.0
"""The margin of error in percent (±) of an agent's own estimate after a compaction."""


class ContextTrack(msgspec.Struct, frozen=True, gc=False):
    """The last known size of a context. Immutable: methods return a new instance."""

    newest: CallSize | None = None
    why: str | None = None
    """The reason for an unknown size, as shown to the user."""
    is_estimate: bool = False
    """Whether the agent estimated the size."""
    model: str | None = None
    """The model of the last call. A compaction does not change it."""

    def call(self, reading: CallSize) -> ContextTrack:
        """Return the size after a call. A call without prompt tokens does not change the size."""
        if reading.prompt > 0:
            return ContextTrack(newest=reading, model=reading.model or self.model)
        return self if self.newest or self.why else ContextTrack(why=NO_USAGE)

    def compaction(self) -> ContextTrack:
        """Return a context whose size is unknown because of a compaction."""
        return ContextTrack(why=COMPACTED, model=self.model)

    def estimate(self, tokens: int, model: str | None) -> ContextTrack:
        """Return the size that the agent itself estimated after a compaction or an undo."""
        return (
            ContextTrack(newest=CallSize(tokens, 0, model or self.model), is_estimate=True)
            if tokens > 0
            else self
        )

    def rewind(self) -> ContextTrack:
        """Return a context whose size is unknown because turns have been removed."""
        return ContextTrack(why=REWOUND, model=self.model)


_COMPRESSED = (".zst", ".zstd")
_LONGEST_FACT = 64
_STEP = 8 << 20
"""The number of bytes per step. Larger files are read in several steps."""
_HEAD = 4096
_BEFORE = 256
_BLOCK = 16 << 10

T = TypeVar("T")


class SessionState(SessionFacts):
    """What a reader remembers about a main conversation between reads."""

    updated_at: datetime | None = None
    """When the last line was written."""
    model: str | None = None
    """The model to display if the latest call does not name its model."""
    track: ContextTrack = ContextTrack()
    window: int | None = None
    """The context window in tokens, for agents that do not record it with each call."""
    sizes: ContextSizes = msgspec.field(default_factory=ContextSizes)
    facts: CacheFacts = CacheFacts()
    """What is known about the next call that can explain a lost cache."""
    chain: CacheChain = CacheChain()
    """The newest calls of the conversation, to notice a lost cache."""

    def note(self, **facts: Any) -> None:
        """Update `facts`. None is ignored, and so are values that are too long for a fact."""
        known = {
            name: value
            for name, value in facts.items()
            if value is not None and not (isinstance(value, str) and len(value) > _LONGEST_FACT)
        }
        if known:
            self.facts = msgspec.structs.replace(self.facts, **known)

    def judge(self, call: CallFinished) -> CallFinished:
        """Return the call with the verdict whether it lost its cache.

        Calls must be passed in order. Those outside of the main conversation stay as they are.
        """
        if call.category != "main" or call.facts is None:
            return call
        buckets = call.last_request or call.buckets
        self.chain, loss = self.chain.judge(
            ChainCall(
                call.request_id,
                call.at if call.at.tzinfo else call.at.replace(tzinfo=UTC),
                call.model,
                buckets.prompt,
                buckets.cache_read,
                buckets.cache_writes,
                buckets.cache_write_1h,
                call.facts,
            )
        )
        return msgspec.structs.replace(call, loss=loss)

    def touch(self, at: datetime | None) -> None:
        """Update the times of the first and last line. None is ignored."""
        if at is not None:
            self.began_at, self.updated_at = self.began_at or at, at

    def work_in(self, folder: str | None) -> None:
        """Set the working directory. None and an empty string are ignored."""
        if folder:
            self.first_folder, self.folder = self.first_folder or folder, folder

    def call(
        self,
        at: datetime | None,
        usage: Usage,
        request_id: str,
        model: str | None,
        provider: str | None = None,
        *,
        session: str | None = None,
        workspace: str | None = None,
        category: Category = "main",
        reported_cost: Decimal | None = None,
        agent_cost: Decimal | None = None,
        telemetry_id: str | None = None,
        tier: str = "",
    ) -> list[CallFinished]:
        """Return a list with one call, or an empty list if the call's time is unknown.

        Args:
            at: When the call was made. Defaults to the time of the session's last line.
            usage: The call's token counts.
            request_id: The provider's id for the call, or an id derived from the call's line.
            model: The model, if known.
            provider: The provider. Defaults to the provider that the model's name implies.
            session: The id of the session that made the call. Defaults to this session.
            workspace: The agent's working directory. Defaults to the session's first folder.
            category: The call's purpose.
            reported_cost: The amount in USD that the provider billed, as reported by the agent.
            agent_cost: The cost in USD that the agent calculated from its own price list, or 0 if
                it does not know the price.
            telemetry_id: The call's id in the agent's telemetry.
            tier: The service tier, as returned by `messages.billing.normal_tier`.
        """
        at = at or self.updated_at
        if at is None:
            return []
        model, facts = model or "unknown", None
        if category == "main":
            facts, self.facts = self.facts, self.facts.after_call()
        call = CallFinished(
            at=at,
            session=self.id if session is None else session,
            model=model,
            provider=provider or provider_of(model),
            buckets=split(usage),
            request_id=request_id,
            workspace=first_path(self.folder) if workspace is None else workspace,
            branch=self.branch or "",
            category=category,
            reported_cost=reported_cost,
            agent_cost=agent_cost or None,
            telemetry_id=telemetry_id,
            tier=tier,
            is_copy=self.began_at is not None and at < self.began_at,
            facts=facts,
        )
        return [call]

    def snapshot(
        self, quality: Quality = "exact", error_percent: float = 0.0, note: str | None = None
    ) -> StoredSession:
        """Return the session's current data for the session index."""
        track, newest = self.track, self.track.newest
        if newest is None:
            error_percent, note = 0.0, track.why or note
        elif track.is_estimate:
            quality, error_percent, note = "estimate", ESTIMATE_BAND, note or ESTIMATED
        return StoredSession(
            **{name: getattr(self, name) for name in SessionFacts.__struct_fields__},
            updated_at=self.updated_at or NEVER,
            model=(newest.model if newest else track.model) or self.model,
            tokens=newest.prompt + newest.output if newest else None,
            limit=(newest.window if newest else None) or self.window,
            quality=quality,
            error_percent=error_percent,
            note=note,
            compacted=newest is None and track.why == COMPACTED,
            sizes=self.sizes.pack(),
        )


def store_from_path(agent: str, path: str | Path, *, live: bool = True) -> Store | None:
    """Return the store at a path, or None if there is no regular file at this path."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would block
        return None
    return Store(agent, str(path), status.st_ino, status.st_size, status.st_mtime_ns, live)


def with_size_of(store: Store, *others: Store) -> Store:
    """Combine the files that make up a store.

    Returns a copy of `store`. The copy has the total size of all given files, and the latest of
    their modification times.
    """
    files = (store, *others)
    size, newest = sum(file.size for file in files), max(file.mtime_ns for file in files)
    return msgspec.structs.replace(store, size=size, mtime_ns=newest)


def database_store(agent: str, path: str | Path) -> Store | None:
    """Return a SQLite database as a store.

    Its size and modification time include those of the write-ahead log.
    """
    found, log = store_from_path(agent, path), store_from_path(agent, f"{path}-wal")
    return with_size_of(found, log) if found and log else found


def database_files(path: str | Path) -> tuple[str, ...]:
    """Return the files that change when a SQLite database is written to."""
    return str(path), f"{path}-wal"


def list_folder(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """Yield a folder's entries. A missing or unreadable folder has no entries."""
    try:
        with os.scandir(folder) as scan:
            yield from scan
    except OSError:
        return


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one. A link in a loop is not a folder."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def walk(folder: str | Path, levels: int = 0) -> Iterator[str]:
    """Yield the paths of all files in a folder and its subfolders.

    Links are followed, as agents do. Each real folder is searched once, if possible by its own
    path. Links to a folder that contains `folder` are not followed.

    Args:
        folder: The folder, which may be missing.
        levels: The number of folder levels to search, including the folder itself, or 0 for all
            levels.
    """
    return (entry.path for entry in _entries_below(str(folder), levels) if not is_folder(entry))


def followed_links(folder: str | Path, levels: int = 0) -> Iterator[str]:
    """Yield the links that `walk` follows. Their targets must be watched separately."""
    return (entry.path for entry in _entries_below(str(folder), levels) if entry.is_symlink())


def _entries_below(folder: str, levels: int) -> Iterator[os.DirEntry[str]]:
    """Yield the files in a folder and its subfolders, and the links to other folders.

    Links come last, so that a file or folder is first reached by its own path.
    """
    searched = {_identity(str(parent)) for parent in Path(os.path.realpath(folder)).parents}
    pending: list[tuple[bool, str, int, os.DirEntry[str] | None]] = [(False, folder, 1, None)]
    while pending:  # not recursive, as folders may be nested too deeply
        is_link, path, level, entry = heappop(pending)
        if entry is not None and is_link and not is_folder(entry):
            yield entry
        elif (identity := _identity(path)) not in searched:
            searched.add(identity)
            if entry is not None and is_link:
                yield entry
            for inner in list_folder(path):
                if not (inner.is_symlink() or is_folder(inner)):
                    yield inner
                elif not (levels and level >= levels and is_folder(inner)):
                    heappush(pending, (inner.is_symlink(), inner.path, level + 1, inner))


def _identity(folder: str) -> tuple[int, int] | None:
    """Return numbers that identify a real folder, or None if there is no folder at this path."""
    try:
        status = os.stat(folder)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


class FileStores(StoreReader):
    """Base class for readers of agents that store their sessions in files."""

    inner: tuple[str, ...]
    """The folders that contain stores, relative to the agent's data folders."""
    pattern: str
    """A regular expression for the relative paths of stores, with `/` as the separator."""

    @property
    def levels(self) -> int:
        """The number of folder levels to search, or 0 for all levels, if the pattern has `.*`."""
        parts = self.pattern.replace("[^/]", "").split("|")
        return 0 if ".*" in self.pattern else 1 + max(part.count("/") for part in parts)

    def folders(self, places: Places) -> tuple[str, ...]:
        folders = self.searched_folders(places)
        links = (link for folder in folders for link in followed_links(folder, self.levels))
        return tuple(dict.fromkeys((*folders, *links)))

    def searched_folders(self, places: Places) -> tuple[str, ...]:
        """Return the folders that contain stores."""
        homes, named = agent_folders(places, self.agent), self.named_folders(places)
        inside = (home / inner for home in homes for inner in self.inner)
        return tuple(map(str, dict.fromkeys((*inside, *named))))

    def named_folders(self, places: Places) -> tuple[Path, ...]:
        """Return the folders that a variable or a setting of the agent names for its sessions."""
        return session_folders(places, self.agent)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:  # noqa: ARG002
        for folder in self.searched_folders(places):
            yield from self.stores_in(folder, folder)

    def store_at(self, places: Places, path: str) -> Store | None:
        folders = self.searched_folders(places)
        inside = (folder for folder in folders if path.startswith(folder + os.sep))
        return next((self._store_in(folder, path) for folder in inside), None)

    def make_store(self, path: str) -> Store | None:
        """Return the store at a path that matches the pattern, or None if the file is gone."""
        return store_from_path(self.agent, path)

    def stores_in(self, folder: str, start: str) -> Iterator[Store]:
        """Yield the stores below `start`, which is `folder` or a folder inside it."""
        for path in walk(start, self.levels):
            if store := self._store_in(folder, path):
                yield store

    def _store_in(self, folder: str, path: str) -> Store | None:
        relative = path[len(folder) + 1 :].replace(os.sep, "/")
        return self.make_store(path) if re.fullmatch(self.pattern, relative) else None


class TwoStores(StoreReader):
    """Combines the readers for an agent's new and old file formats."""

    def __init__(self, new: StoreReader, old: StoreReader, is_old: Callable[[str], bool]) -> None:
        """Combine two readers.

        Args:
            new: The reader for the new format.
            old: The reader for the old format.
            is_old: Returns whether the store at a path uses the old format.
        """
        self._new, self._old, self._is_old = new, old, is_old
        self.agent = new.agent

    def for_agent(self, agent: str) -> TwoStores:
        return TwoStores(self._new.for_agent(agent), self._old.for_agent(agent), self._is_old)

    def folders(self, places: Places) -> tuple[str, ...]:
        return (*self._new.folders(places), *self._old.folders(places))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        yield from self._new.find(places, roots)
        yield from self._old.find(places, roots)

    def store_at(self, places: Places, path: str) -> Store | None:
        return self._new.store_at(places, path) or self._old.store_at(places, path)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return self._reader_of(store).read(store, state)

    def title(self, store: Store, title_at: str) -> str | None:
        return self._reader_of(store).title(store, title_at)

    def window(self, places: Places, session: StoredSession) -> int | None:
        return self._reader_of(session).window(places, session)

    def compacts_at(self, window: int, model: str) -> int:
        return self._new.compacts_at(window, model)

    def own_full(self, window: int, model: str) -> int | None:
        return self._new.own_full(window, model)

    def made_call(self, path: str, session: str, call: McpToolCall) -> bool:
        return (self._old if self._is_old(path) else self._new).made_call(path, session, call)

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        (self._old if self._is_old(path) else self._new).measure(path, session, sizes)

    def _reader_of(self, stored: Store | StoredSession) -> StoreReader:
        return self._old if self._is_old(stored.path) else self._new


class Lines:
    """Decodes a chunk's lines one by one, and counts what cannot be decoded.

    Usually a line is a record. If it is not, all whole records in it are decoded.
    """

    def __init__(self, path: str, data: bytes, offset: int) -> None:
        self.path, self.data = path, data
        self.line = b""
        self.skipped = 0
        self._offset = self._position = offset

    @property
    def position(self) -> str:
        """The position of the last decoded record, to be passed to `record_at`."""
        return str(self._position)

    def records(self, decode: typed.Decoder[T]) -> Iterator[T]:
        """Yield the records. What does not belong to one is counted and skipped."""
        start, find = 0, self.data.find
        while (end := find(b"\n", start)) >= 0:
            line = self.data[start:end]
            try:
                record = decode(line, self._count_loss)
            except msgspec.DecodeError:
                if line.strip():
                    yield from self._recover(line, start, decode)
            else:
                self.line, self._position = line, self._offset + start
                yield record
            start = end + 1

    def _count_loss(self) -> None:
        self.skipped += 1

    def _recover(self, line: bytes, offset: int, decode: typed.Decoder[T]) -> Iterator[T]:
        """Yield the records in a line that is not a single one."""
        passed = 0
        for start, end in whole_objects(line):
            self.skipped += not _is_blank(line[passed:start])
            passed = end
            try:
                record = decode(line[start:end], self._count_loss)
            except msgspec.DecodeError:
                self.skipped += 1
            else:
                self.line, self._position = line[start:end], self._offset + offset + start
                yield record
        self.skipped += not _is_blank(line[passed:])


def _is_blank(text: bytes) -> bool:
    return not text.removeprefix(codecs.BOM_UTF8).strip(b", \t\r\n\v\f")


class LineState(Protocol):
    """What a reader remembers about a line-based file between reads.

    Implementations are mutable structs, usually subclasses of `SessionLines`.
    """

    def read(self, lines: Lines) -> Iterable[CallFinished]:
        """Update the state with new lines, and yield the calls that they contain."""

    def snapshots(self) -> Iterable[StoredSession]:
        """Return the session in the file, or nothing if the file belongs to a sub-agent."""


class SessionLines(msgspec.Struct):
    """Base class for the reader state of a file that contains a single session."""

    session: SessionState

    def read(self, lines: Lines) -> Iterable[CallFinished]:
        raise NotImplementedError

    def snapshots(self) -> Iterable[StoredSession]:
        return (self.session.snapshot(),)


S = TypeVar("S")
L = TypeVar("L", bound=LineState)


class StartOverError(SidecarError):
    """The file must be read from the start, because a line needs data that the state lacks."""


def read_lines(store: Store, state: bytes, new: Callable[[], L]) -> StoreRead:
    """Read the lines that were added to a file.

    Args:
        store: The file. If a compressed file has changed, it is read from the start.
        state: The state from the previous read, or empty on the first read.
        new: Creates the reader's initial state.

    Raises:
        OSError: The file cannot be read.
    """
    with open_quietly(store.path) as file:
        cursor = _usable_cursor(file, store, state)
        saved = None if cursor is None else _unpack_or_none(cursor.state, type(new()))
        try:
            if cursor is not None and saved is not None:
                return _read_on(file, store, saved, cursor.offset)
            return _read_on(file, store, new(), 0)
        except StartOverError:
            return _read_on(file, store, new(), 0, one_step=True)


class LineReader(FileStores):
    """Base class for readers of JSON Lines files that the agent appends to."""

    def begin(self, store: Store) -> LineState:
        """Return the initial state, for reading a file from the start."""
        raise NotImplementedError

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_lines(store, state, partial(self.begin, store))

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:  # noqa: ARG002
        store = self.make_store(path)
        state = self.begin(store) if store else None
        if isinstance(state, SessionLines):
            state.session.sizes = sizes
            with open_quietly(path) as file:
                for data, _ in chunks(file):
                    for _ in state.read(Lines(path, data, 0)):
                        pass


def read_document(store: Store, parse: Callable[[Store, bytes], StoreRead]) -> StoreRead:
    """Read a file that the agent always rewrites completely.

    Args:
        store: The file.
        parse: Extracts the calls and sessions from the file's contents.

    Raises:
        OSError: The file is missing or incomplete.
    """
    with open_quietly(store.path) as file:
        data = file.read()
    digest = blake2b(data, digest_size=8).digest()
    return _without_empty_calls(parse(store, data), state=digest, bytes_read=len(data))


class DocumentReader(FileStores):
    """Base class for readers of files that the agent always rewrites completely."""

    def parse(self, store: Store, data: bytes) -> StoreRead:
        """Return the calls and sessions in a file. Raises OSError if the file is incomplete."""
        raise NotImplementedError

    def read(self, store: Store, state: bytes = b"") -> StoreRead:  # noqa: ARG002
        return read_document(store, self.parse)


def read_store(
    store: Store, state: bytes, new: Callable[[], S], parse: Callable[[S], StoreRead]
) -> StoreRead:
    """Read a store that consists of several files or a database.

    Args:
        store: The store.
        state: The state from the previous read, or empty on the first read.
        new: Creates the reader's initial state, which includes its position in the store.
        parse: Updates the reader's state, and returns new calls and either the changed sessions or
            all sessions.

    Raises:
        OSError: The store cannot be read.
    """
    file, saved = _unpack_or_none(state, _Identified), None
    if file is not None and file.inode == store.inode:
        # After the file is replaced, the saved row ids are invalid.
        saved = _unpack_or_none(file.state, type(new()))
    current = saved or new()
    read = parse(current)
    state = _pack(_Identified(store.inode, _pack_raw(current)))
    return _without_empty_calls(read, state=state, has_lost_state=saved is None)


def reader_state(state: bytes, kind: type[T]) -> T | None:
    """Extract the reader's state from data saved by `read_lines`, or None if it is invalid."""
    cursor = _unpack_or_none(state, _Cursor)
    return None if cursor is None else _unpack_or_none(cursor.state, kind)


def read_records(path: str, decode: typed.Decoder[T]) -> Iterator[T]:
    """Yield the records in a line-based file. What cannot be decoded is skipped.

    Raises:
        OSError: The file cannot be read.
    """
    with open_quietly(path) as file:
        for data, _ in chunks(file):
            yield from Lines(path, data, 0).records(decode)


def first_records(path: str, decode: typed.Decoder[T]) -> Iterator[T]:
    """Yield the records in the first 64 KB of a file. What cannot be decoded is skipped.

    Raises:
        OSError: The file cannot be read.
    """
    for line in first_lines(path, 64 << 10):
        yield from Lines(path, line + b"\n", 0).records(decode)


def record_at(path: str, position: str, decode: typed.Decoder[T], most: int = HEAD) -> T | None:
    """Return the record at a position from `Lines.position`, or None if it is malformed.

    Raises:
        OSError: The file cannot be read.
    """
    line = b""
    with open_quietly(path) as file:
        file.seek(int(position))
        while len(line) < most and (data := file.read(_BLOCK)):
            end = data.find(b"\n")
            line += data if end < 0 else data[:end]
            if end >= 0:
                break
    lines = Lines(path, line + b"\n", 0)
    for record in lines.records(decode):
        return record if lines.position == "0" else None
    return None


class _Cursor(msgspec.Struct, frozen=True, array_like=True, tag="lines"):
    offset: int
    fingerprint: bytes
    """A digest of the file's start and the bytes just before `offset`."""
    state: msgspec.Raw


class _Identified(msgspec.Struct, frozen=True, array_like=True, tag="store"):
    inode: int
    state: msgspec.Raw


def _usable_cursor(file: IO[bytes], store: Store, state: bytes) -> _Cursor | None:
    """Return the saved position, or None if the data before it has changed."""
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
    judge = state.session.judge if isinstance(state, SessionLines) else lambda call: call
    offset, skipped, is_complete = begin, 0, True
    file.seek(begin)
    for data, passed in chunks(file):
        lines = Lines(store.path, data, offset)
        calls += [judge(call) for call in state.read(lines) if call.counts]
        offset += passed or len(data)
        skipped += lines.skipped + bool(passed)
        if most is not None and offset >= most:
            is_complete = False
            break
    sessions = tuple(state.snapshots())
    listed = f"{store.inode} {store.size} {store.mtime_ns}".encode()
    fingerprint = listed if is_compressed else _fingerprint_of(file, offset)
    return StoreRead(
        calls=calls,
        sessions=sessions,
        state=_pack(_Cursor(offset, fingerprint, _pack_raw(state))),
        has_all_sessions=begin == 0,
        is_complete=is_complete,
        bytes_read=offset - begin,
        skipped=skipped,
    )


def _without_empty_calls(read: StoreRead, **fields: Any) -> StoreRead:
    """Return a read with other fields, and without calls that used nothing."""
    calls = [call for call in read.calls if call.counts]
    return msgspec.structs.replace(read, calls=calls, **fields)


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
    try:
        return typed.unpack(data, kind)
    except msgspec.DecodeError:
        return None
