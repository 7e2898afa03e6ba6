"""Reads agents whose files are described by `calls` and `sessions` in `known_agents.toml`.

There are three forms: lines of JSON, JSON files that are written as a whole, and tables. Only the
named fields are decoded.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sidecar import typed
from sidecar.agents.databases import (
    DatabaseState,
    OneDatabase,
    column_text,
    columns,
    read_database,
    read_only,
)
from sidecar.agents.file_reading import (
    Record,
    decode_document,
    open_quietly,
    parse_time,
    parse_usd,
    read_setting,
    reported_usage,
    time_from_ns,
    token_count,
    try_decode_settings,
)
from sidecar.agents.folders import Places, agent_folders
from sidecar.agents.session_events import (
    CallFinished,
    CallSize,
    Store,
    StoredSession,
    StoreRead,
    StoreReader,
)
from sidecar.agents.stores import (
    ContextTrack,
    FileStores,
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    database_store,
    first_records,
    read_store,
    store_from_path,
)
from sidecar.known_agents import CallFields, Names, SessionFields, all_agents
from sidecar.messages.vendor_usage import Usage

NO_CONTEXT = "the agent's files do not contain the size of the context"
_LATER = "the size appears with the next call"
_TITLE = "title"
"""The place of a title in a file, which is found by its fields."""
_READ_AGAIN = 100
"""The number of newest rows that are read again, because the agent may complete them later."""

Scalar = str | int | float | bool | None
Get = Callable[["Names"], Scalar]


def reader_by_fields(agent: str) -> StoreReader:
    """Return the reader for an agent whose calls are described by fields."""
    file = _form(agent).calls.files[0]
    if file.endswith((".jsonl", ".zst", ".zstd")):
        return RecordLines(agent)
    return RecordDocuments(agent) if file.endswith(".json") else RecordTables(agent)


class _Shape:
    """Decodes some of the fields of a JSON object."""

    def __init__(self, paths: Iterable[str]) -> None:
        inner: dict[str, list[str]] = {}
        for path in paths:
            name, _, rest = path.partition(".")
            inner.setdefault(name, []).extend([rest] if rest else [])
        self._inner = {name: _Shape(rest) if rest else None for name, rest in inner.items()}
        self.names = tuple(inner)
        self._attributes = {name: f"field_{number}" for number, name in enumerate(inner)}
        fields = [
            (self._attributes[name], _type_of(shape), msgspec.field(default=None, name=name))
            for name, shape in self._inner.items()
        ]
        self.kind: Any = msgspec.defstruct("Fields", fields, bases=(Record,), gc=False)
        self.either: Any = _object_or_list(self.kind)
        """The type of an object or a list of such objects."""

    def value(self, record: object, path: str) -> Any:
        """Return the value at a path in a decoded object, or in the last list item that has it."""
        if isinstance(record, list):
            values = (self.value(one, path) for one in reversed(record))
            return next((one for one in values if one is not None), None)
        name, _, rest = path.partition(".")
        found, inner = getattr(record, self._attributes[name], None), self._inner[name]
        return inner.value(found, rest) if inner else found

    def get(self, record: object) -> Get:
        """Return a function that returns the first value of some names."""

        def get(names: Names) -> Scalar:
            values = (self.value(record, path) for path in _each(names))
            return next((one for one in values if one is not None), None)

        return get

    def get_of_row(self, row: dict[str, Any]) -> Get:
        """Return the same as `get` for the columns of a row, some of which contain JSON."""
        record = self.kind()
        for name, inner in self._inner.items():
            value = row.get(name)
            if inner and value is not None:
                value = decode_document(str(value).encode(), inner.either)
            setattr(record, self._attributes[name], value)
        return self.get(record)


def _object_or_list(kind: Any) -> Any:
    return kind | list[kind]


def _type_of(shape: _Shape | None) -> Any:
    return Scalar if shape is None else shape.either | None


def _each(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


class _Form(NamedTuple):
    """What is known about an agent's records."""

    agent: str
    calls: CallFields
    sessions: SessionFields
    call_shape: _Shape
    session_shape: _Shape
    both_shape: _Shape
    """The fields of lines or rows, which may be those of calls and of sessions."""
    patterns: tuple[re.Pattern[str], ...]

    @property
    def sessions_table(self) -> tuple[str, str]:
        """Return a database's table of sessions, or of records, and the column of the session's id.

        The name of the table is empty if each session has a database.
        """
        if self.sessions.file:
            return self.sessions.file, self.sessions.id
        column = next(iter(_each(self.calls.session)), "")
        return (self.calls.rows if column else "", column)

    def session_of(self, path: str) -> str:
        """Return the session's id in the path of its file, or the file's name."""
        found = (pattern.search(path.replace(os.sep, "/")) for pattern in self.patterns)
        match = next(filter(None, found), None)
        return match["id"] if match and match.groupdict() else Path(path).stem

    def id_of(self, get: Get) -> list[str]:
        values = map(get, _each(self.calls.id))
        return [str(one) for one in values if one is not None]

    def describe(self, session: SessionState, get: Get) -> None:
        """Update a session with the values that a record has."""
        fields = self.sessions
        folder = column_text(get(fields.folder))
        session.work_in(os.path.expanduser(folder) if folder else None)
        session.model = column_text(get(fields.model)) or session.model
        session.branch = column_text(get(fields.branch)) or session.branch
        session.subagent_of = column_text(get(fields.subagent_of)) or session.subagent_of
        session.began_at = self.time(get(fields.began)) or session.began_at
        if fields.file or get(fields.ended):
            session.ended = bool(get(fields.ended))

    def time(self, value: Scalar) -> datetime | None:
        at = parse_time(value)
        if at is not None and self.calls.has_local_times and at.tzinfo is UTC:
            return at.replace(tzinfo=None).astimezone()
        return at

    def usage(self, get: Get) -> Usage:
        fields = self.calls
        output, reasoning = token_count(get(fields.output)), token_count(get(fields.reasoning))
        return reported_usage(
            get(fields.input),
            output if fields.output_includes_reasoning else output + reasoning,
            get(fields.cache_read),
            get(fields.cache_write),
            reasoning,
            includes_cached=fields.input_includes_cache,
        )

    def call(
        self, session: SessionState, get: Get, usage: Usage, request: str = ""
    ) -> Iterator[CallFinished]:
        """Yield a record's call, and update the size of the session's context.

        Args:
            session: The session.
            get: Returns the record's values.
            usage: The call's numbers.
            request: The call's id. Defaults to the record's.
        """
        fields, at = self.calls, self.time(get(self.calls.at))
        if usage.prompt_tokens + usage.output_tokens == 0:
            return
        model = column_text(get(fields.model)) or session.model
        window = token_count(get(fields.window)) or None
        if not get(fields.beside) and not fields.has_totals:
            session.track = session.track.call(CallSize.of(usage, model, window))
        named = "/".join(self.id_of(get))
        numbers = "/".join(map(str, msgspec.structs.astuple(usage)))
        yield from session.call(
            at,
            usage,
            request or named or f"{get(fields.at)}/{numbers}",
            model,
            column_text(get(fields.provider)),
            session=session.subagent_of,
            category="subagent" if session.subagent_of else "main",
            reported_cost=_usd(get(fields.cost)),
            agent_cost=_usd(get(fields.agent_cost)),
        )


def _usd(amount: Scalar) -> Any:
    return parse_usd(amount) if isinstance(amount, int | float) else None


@lru_cache(maxsize=64)
def _form(agent: str) -> _Form:
    row = all_agents()[all_agents()[agent].reader or agent]
    calls, sessions = row.calls, row.sessions
    if calls is None:
        raise ValueError(f"{agent} has no calls in known_agents.toml")
    of_calls, of_sessions = _paths_in(calls, "files", "rows"), _paths_in(sessions, "file", "id")
    return _Form(
        agent,
        calls,
        sessions,
        _Shape(of_calls),
        _Shape(of_sessions),
        _Shape([*of_calls, *(() if sessions.file else of_sessions)]),
        tuple(
            re.compile(f"(?:^|/){_pattern(inner, '(?P<id>[^/]*)')}$")
            for _, inner in map(_split, calls.files)
        ),
    )


def _paths_in(fields: CallFields | SessionFields, *others: str) -> list[str]:
    values = msgspec.structs.asdict(fields).items()
    return [
        path
        for name, names in values
        if name not in others and not isinstance(names, bool)
        for path in _each(names)
    ]


def _split(file: str) -> tuple[str, str]:
    """Return the fixed folder of one of `CallFields.files`, and the rest."""
    parts = file.split("/")
    varies = (number for number, part in enumerate(parts) if set(part) & set("*{"))
    first = next(varies, len(parts) - 1)
    return "/".join(parts[:first]), "/".join(parts[first:])


def _pattern(file: str, session: str = "[^/]*") -> str:
    """Return a regular expression for one of `CallFields.files`, and one for the session's id."""
    return re.escape(file).replace(r"\*", "[^/]*").replace(r"\{id\}", session)


class _Records(FileStores):
    """Finds the files of an agent whose calls are described by fields."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        files = [_split(one) for one in _form(agent).calls.files]
        self.inner = tuple(dict.fromkeys(folder for folder, _ in files))
        self.pattern = "|".join(_pattern(inner) for _, inner in files)

    def window(self, places: Places, session: StoredSession) -> int | None:
        return _window_in_settings(places, self.agent, session.model)

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        form = _form(self.agent)
        titles = (column_text(get(form.sessions.title)) for get in _descriptions(form, store.path))
        return next(filter(None, titles), None)


def _descriptions(form: _Form, path: str) -> Iterator[Get]:
    """Yield the records that may describe the session of a file."""
    shape = form.session_shape
    if form.sessions.file:
        name = form.sessions.file.format(id=form.session_of(path))
        path = os.path.join(os.path.dirname(path), name)
    try:
        if path.endswith(".toml"):
            yield shape.get(try_decode_settings(Path(path), shape.kind))
        elif path.endswith(".json"):
            with open_quietly(path) as file:
                yield shape.get(decode_document(file.read(), shape.kind))
        else:
            yield from map(shape.get, first_records(path, typed.decoder(shape.kind)))
    except OSError:
        return


def _window_in_settings(places: Places, agent: str, model: str | None) -> int | None:
    """Return the smallest window that the agent's settings give a model, in tokens, or None."""
    windows = list[int]()
    for home in agent_folders(places, agent):
        for setting in all_agents()[agent].windows:
            names = [name.format(model=model) for name in setting.window.split(".")]
            owner = read_setting(home / setting.file, setting.model.split("."))
            if not setting.model or owner == model:
                windows.append(token_count(read_setting(home / setting.file, names)))
    return min(filter(None, windows), default=None)


class RecordLines(_Records, LineReader):
    """Reads files with a record per line."""

    def begin(self, store: Store) -> _LinesState:
        session = SessionState(_form(self.agent).session_of(store.path))
        return _LinesState(session, self.agent)


class _LinesState(SessionLines):
    agent: str

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        form, session = _form(self.agent), self.session
        if form.sessions.file:
            for get in _descriptions(form, lines.path):
                form.describe(session, get)
        session.title_at = _TITLE if form.sessions.title else None
        for record in lines.records(typed.decoder(form.both_shape.kind)):
            get = form.both_shape.get(record)
            session.touch(form.time(get(form.calls.at)))
            if not form.sessions.file:
                form.describe(session, get)
            yield from form.call(session, get, form.usage(get))


class _Seen(DatabaseState):
    """The sessions, and the totals of each record when it was last read."""

    totals: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)

    def added(
        self, form: _Form, session: SessionState, key: str, get: Get, changed: datetime
    ) -> Iterator[CallFinished]:
        """Yield what was added to a total since the last read, as one call.

        Args:
            form: What is known about the agent's records.
            session: The session.
            key: What identifies the total.
            get: Returns the record's values.
            changed: When the store was last changed, for totals without a time.
        """
        usage, count = form.usage(get), token_count(get(form.calls.count))
        now, before = (*msgspec.structs.astuple(usage), count), self.totals.get(key)
        self.totals[key] = now
        if now == before:
            return
        known = form.time(get(form.calls.at)) or (session.began_at if before is None else None)
        session.touch(known or changed)
        is_reset = before is None or any(a < b for a, b in zip(now, before, strict=True))
        old = (0,) * len(now) if is_reset or before is None else before
        *numbers, calls = (a - b for a, b in zip(now, old, strict=True))
        difference = type(usage)(**dict(zip(usage.__struct_fields__, numbers, strict=True)))
        if not get(form.calls.beside):
            model = column_text(get(form.calls.model)) or session.model
            size = CallSize.of(difference, model, token_count(get(form.calls.window)) or None)
            why = _LATER if form.calls.count else NO_CONTEXT
            session.track = (
                ContextTrack().call(size) if calls == 1 else ContextTrack(why=why, model=model)
            )
        request = key if before is None else f"{key}/{sum(now)}"
        for call in form.call(session, get, difference, request):
            yield msgspec.structs.replace(call, is_unread_past=before is None)


class RecordDocuments(_Records):
    """Reads files with one record or a list of records, which are written as a whole."""

    def make_store(self, path: str) -> Store | None:
        store = store_from_path(self.agent, path)  # a new file each time has a new inode
        return store and msgspec.structs.replace(store, inode=0)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_store(store, state, _Seen, partial(self._parse, store))

    def _parse(self, store: Store, state: _Seen) -> StoreRead:
        form, name = _form(self.agent), _form(self.agent).session_of(store.path)
        session = state.sessions.get(name) or SessionState(name)
        state.sessions = {name: session}
        for get in _descriptions(form, store.path):
            form.describe(session, get)
        session.title_at = _TITLE if form.sessions.title else None
        if not form.calls.has_totals:
            session.track = ContextTrack()
        calls = list[CallFinished]()
        for get in self._records(store.path):
            session.touch(form.time(get(form.calls.at)))
            if form.calls.has_totals:
                calls += state.added(form, session, name, get, time_from_ns(store.mtime_ns))
            else:
                calls += form.call(session, get, form.usage(get))
        return StoreRead(calls, [session.snapshot()])

    def _records(self, path: str) -> Iterator[Get]:
        form = _form(self.agent)
        with open_quietly(path) as file:
            data = file.read()
        names = [name for name in form.calls.rows.split(".") if name]
        kind: Any = form.call_shape.kind if not names else list[form.call_shape.kind]  # type: ignore[name-defined]
        for number, name in enumerate(reversed(names)):
            field = ("inner", kind | None, msgspec.field(default=None, name=name))
            kind = msgspec.defstruct(f"Level{number}", [field], bases=(Record,))
        record = decode_document(data, kind)
        for _ in names:
            record = getattr(record, "inner", None)
        records = record if isinstance(record, list) else [record]
        yield from (form.call_shape.get(one) for one in records if one is not None)


class RecordTables(OneDatabase):
    """Reads tables with a row per call or per total."""

    def __init__(self, agent: str) -> None:
        self.agent, self.files = agent, _form(agent).calls.files
        self.table, self.key = _form(agent).sessions_table

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_database(store, state, _Seen, partial(self._read_contents, store.path))

    def window(self, places: Places, session: StoredSession) -> int | None:
        return _window_in_settings(places, self.agent, session.model)

    def title(self, store: Store, title_at: str) -> str | None:
        form = _form(self.agent)
        with read_only(store.path) as connection:
            for get in _session_rows(form, connection, title_at):
                if title := column_text(get(form.sessions.title)):
                    return title
        return None

    def changes(
        self, path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> Iterator[CallFinished]:
        form, fields = _form(self.agent), _form(self.agent).calls
        if not isinstance(state, _Seen):
            raise TypeError(type(state))
        since = None if fields.has_totals else int(state.at or 0) - _READ_AGAIN
        described, store = set[str](), database_store(self.agent, path)
        changed = time_from_ns(store.mtime_ns if store else 0)
        for number, get in _rows(connection, fields.rows, form.both_shape, since):
            state.advance(number)
            name = str(get(fields.session) or form.session_of(path))
            session = state.sessions.setdefault(name, SessionState(name))
            if name not in described:
                described.add(name)
                for one in _session_rows(form, connection, name) if form.sessions.file else ():
                    form.describe(session, one)
                if session.subagent_of and not session.folder:
                    for one in _session_rows(form, connection, session.subagent_of):
                        session.work_in(column_text(one(form.sessions.folder)))
                session.title_at = name if form.sessions.title else None
            if not form.sessions.file:
                form.describe(session, get)
            session.touch(form.time(get(fields.at)))
            if fields.has_totals:
                key = "/".join([name, *form.id_of(get)])
                yield from state.added(form, session, key, get, changed)
            else:
                yield from form.call(session, get, form.usage(get))


def _session_rows(form: _Form, connection: sqlite3.Connection, name: str) -> Iterator[Get]:
    table, key = form.sessions_table
    for _, get in _rows(connection, table, form.session_shape, None, f'"{key}" = ?', name):
        yield get


def _rows(
    connection: sqlite3.Connection,
    table: str,
    shape: _Shape,
    since: int | None,
    where: str = "1",
    *values: object,
) -> Iterator[tuple[int, Get]]:
    """Yield the number of each row after `since`, and a function that returns its values.

    If `since` is None, all rows have the number 0, because some tables have no numbers.
    """
    known = columns(connection, table)
    names = [name for name in shape.names if name in known]
    if not known:
        return
    number = "0" if since is None else "rowid"
    listed = ", ".join([f"{number} AS number", *(f'"{name}"' for name in names)])
    query = f'SELECT {listed} FROM "{table}" WHERE {number} >= ? AND {where} ORDER BY number'  # noqa: S608
    for place, *row in connection.execute(query, (since or 0, *values)):
        yield place, shape.get_of_row(dict(zip(names, row, strict=True)))
