"""opencode: `opencode*.db` since 1.2, files below `storage/` before; other tables since 2.0.

Forks copy messages under new ids, and an upgrade leaves the old tables behind. So a call is known
by what a copy keeps: when it was made, its model and its tokens. Kilo Code keeps such a database.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.databases import columns, fold_database, read_only
from sidecar.agents.fields import CamelRecord, Number, Record, beside, from_ms, whole, whole_file
from sidecar.agents.folding import Folded, fold_whole
from sidecar.agents.homes import homes, named_database
from sidecar.agents.listing import below, database, entries, files_of, stat_of
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.readers.opencode_messages import MessagePath, OpenCodeMessage, decode
from sidecar.agents.readers.opencode_settings import own_window
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, Reading, StoredSession, stored

if TYPE_CHECKING:
    import sqlite3

    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

_SESSIONS, _MESSAGES = os.path.join("storage", "session"), os.path.join("storage", "message")
_NEWEST = 50
_COMPACTIONS = ("compaction", "summary")


class _Row(msgspec.Struct, frozen=True):
    """A session."""

    id: str
    folder: str
    parent: str | None
    title: str | None
    updated: float
    forked: str | None = None
    boundary: int | str | None = None


class _Cursor(msgspec.Struct, frozen=True):
    """Of a database: when the newest message that was read was changed, by table."""

    message: int = 0
    session_message: int = 0


class _Nothing(msgspec.Struct, frozen=True):
    """Of a file that is one message."""


class _SessionTime(Record):
    updated: Number = None


class _SessionFile(CamelRecord):
    id: str | None = None
    directory: str | None = None
    title: str | None = None
    parent_id: str | None = msgspec.field(default=None, name="parentID")
    time: _SessionTime | None = None


class OpenCode:
    """See `sidecar.agents.reader.Reader`."""

    def __init__(self, agent: str, files: str | None = None) -> None:
        """`files`: what the name of a database begins with; the agent's where it is no other."""
        self.agent, self._files = agent, files or agent

    def folders(self, places: Places) -> tuple[str, ...]:
        homes = self._homes(places)
        stores = (one for home in homes for one in self._databases(places, home))
        files = (os.path.join(home, part) for home in homes for part in (_SESSIONS, _MESSAGES))
        return (*(path for store in stores for path in files_of(store)), *files)

    def _homes(self, places: Places) -> tuple[str, ...]:
        found = [str(home) for home in homes(places, self.agent)]
        own = named_database(places, self.agent)
        return tuple(dict.fromkeys([*found, str(own.parent)] if own else found))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:  # noqa: ARG002
        for home in self._homes(places):
            for path in self._databases(places, home):
                found = database(self.agent, path)
                if found is not None:
                    yield found
            yield from below(self.agent, os.path.join(home, _SESSIONS), ".json")
            yield from below(self.agent, os.path.join(home, _MESSAGES), ".json", live=False)

    def store_at(self, places: Places, path: str) -> Found | None:
        path = path.removesuffix("-wal").removesuffix("-shm")
        if self._is_database(places, path):
            return database(self.agent, path)
        for home in self._homes(places):
            for part in (_SESSIONS, _MESSAGES):
                if path.startswith(os.path.join(home, part) + os.sep) and path.endswith(".json"):
                    return stat_of(self.agent, path, live=part == _SESSIONS)
        return None

    def glance(self, look: Look) -> Glance:
        found, roots = look.found, look.roots
        if found.path.endswith(".json"):
            return self._glance_file(found, look)
        with read_only(found.path) as connection:
            made = tuple(
                self._session(found, row, _track(connection, row), look.places)
                for row in _sessions(connection).values()
                if row.parent is None and roots.hold(row.folder)
            )
        return Glance(found, made)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        if found.path.endswith(".json"):
            if not found.live:
                return fold_whole(found, mark, _Nothing(), self._fold_file)
            return iter(())
        return fold_database(found, mark, _Cursor(), self._fold)

    def _databases(self, places: Places, home: str) -> list[str]:
        paths = (entry.path for entry in entries(home))
        return [path for path in paths if self._is_database(places, path)]

    def _is_database(self, places: Places, path: str) -> bool:
        own = named_database(places, self.agent)
        if own and path == str(own):
            return True
        folder, name = os.path.split(path)
        return (
            folder in self._homes(places) and name.startswith(self._files) and name.endswith(".db")
        )

    def _fold(self, connection: sqlite3.Connection, state: _Cursor) -> Folded[_Cursor]:
        """The finished calls among the messages that changed: rows are written again in place."""
        sessions = _sessions(connection)
        calls: list[Call] = []
        skipped = 0
        cursors = msgspec.structs.asdict(state)
        for table in ("message", "session_message"):
            for name, updated, seq, data in _changed(connection, table, cursors[table]):
                cursors[table] = max(cursors[table], updated)
                row = sessions.get(name)
                if row is not None and _is_copied(row, seq):
                    continue
                try:
                    one = decode(data)
                except msgspec.DecodeError:
                    skipped += 1
                    continue
                call = self._call(one, name, row)
                if call is not None:
                    calls.append(call)
        return Folded(_Cursor(**cursors), calls, skipped)

    def _call(self, one: OpenCodeMessage, session: str, row: _Row | None) -> Call | None:
        folder = row.folder if row else (one.path or MessagePath()).cwd
        parent = row.parent if row else None
        return one.call(self.agent, parent or session, folder or "", parent is not None)

    def _session(
        self, found: Found, row: _Row, newest: _Newest, places: Places, rank: int = 1
    ) -> StoredSession:
        window = own_window(places, self.agent, row.folder, *newest.model)
        return stored(
            found,
            row.id,
            row.folder,
            from_ms(row.updated),
            occupancy(newest.track, window=window),
            model=newest.model[1] or None,
            title=row.title,
            parent=row.forked,
            active=newest.active,
            rank=rank,
        )

    def _fold_file(self, state: _Nothing, data: bytes) -> Folded[_Nothing]:
        one = whole(data, OpenCodeMessage)
        call = self._call(one, one.session_id or "", None) if one.role == "assistant" else None
        return Folded(state, () if call is None else (call,))

    def _glance_file(self, found: Found, look: Look) -> Glance:
        one = whole_file(found.path, _SessionFile)
        if one.id is None or one.parent_id or not look.roots.hold(one.directory):
            return Glance(found)
        updated = (one.time or _SessionTime()).updated or 0
        row = _Row(one.id, one.directory or "", None, one.title, updated)
        messages = Path(found.path).parents[2] / "message" / one.id
        newest = _newest_of_files(messages)
        return Glance(found, (self._session(found, row, newest, look.places, rank=0),))


READER = OpenCode("opencode")


def _sessions(connection: sqlite3.Connection) -> dict[str, _Row]:
    """All sessions; those of the newer table win."""
    found: dict[str, _Row] = {}
    wanted = ("parent_id", "title", "time_updated", "fork_session_id", "fork_boundary")
    for table in ("session", "session_v2"):
        known = columns(connection, table)
        if not {"id", "directory"} <= known:
            continue
        names = ", ".join(name if name in known else "NULL" for name in wanted)
        rows = connection.execute(f"SELECT id, directory, {names} FROM {table}")  # noqa: S608
        found |= {
            row[0]: _Row(row[0], row[1] or "", row[2], row[3], row[4] or 0, row[5], row[6])
            for row in rows
        }
    return found


def _is_copied(row: _Row, seq: int | None) -> bool:
    """Whether a message came with a fork: up to its boundary they have their parent's numbers."""
    boundary = row.boundary if row.forked else None
    return isinstance(boundary, int) and seq is not None and seq <= boundary


def _changed(
    connection: sqlite3.Connection, table: str, since: int
) -> Iterator[tuple[str, int, int | None, bytes]]:
    """Assistants' messages that changed at `since` (milliseconds) or later.

    What a session left in the old table is passed over once it is in the new one.
    """
    known = columns(connection, table)
    if not {"session_id", "time_updated", "data"} <= known:
        return
    seq, who = ("seq", "type = 'assistant'") if "seq" in known else ("NULL", "1")
    if table == "message" and columns(connection, "session_v2"):
        who = "session_id NOT IN (SELECT id FROM session_v2)"
    yield from connection.execute(
        f"SELECT session_id, time_updated, {seq}, CAST(data AS BLOB) FROM {table}"  # noqa: S608
        f" WHERE time_updated >= ? AND {who} ORDER BY time_updated",
        (since,),
    )


class _Newest:
    """What a session's newest messages say, from the newest back to the last call."""

    def __init__(self) -> None:
        self.track = Track()
        self.active: bool | None = None
        self.model: tuple[str, str] = "", ""
        """Provider and model."""

    def take(self, one: OpenCodeMessage) -> bool:
        """Take a message; True where nothing older is needed."""
        if self.active is None:
            self.active = not one.ends_turn
        if one.role == "user":
            return False
        name, provider = one.named
        self.model = self.model if self.model[1] else (provider, name)
        if one.is_summary:
            self.track = self.track.compaction()
            return True
        if one.tokens is None:
            return False
        usage = one.tokens.usage
        if usage.prompt_tokens or (one.time and one.time.completed):
            # Without either the reply is under way: its numbers come with its end.
            self.track = self.track.call(Reading.of(usage, name))
        return self.track.newest is not None


def _track(connection: sqlite3.Connection, row: _Row) -> _Newest:
    """What a session's newest messages say."""
    newest = _Newest()
    compacted = _compacted_at(connection, row.id)
    for kind, at, data in _messages(connection, row.id):
        if at < compacted or kind in _COMPACTIONS:
            break
        with suppress(msgspec.DecodeError):
            one = decode(data)
            one.role = one.role or kind
            if one.role in ("user", "assistant") and newest.take(one):
                return newest
    else:
        if not compacted:
            return newest
    newest.track = newest.track.compaction()
    return newest


def _messages(
    connection: sqlite3.Connection, session: str
) -> Iterator[tuple[str | None, int, bytes]]:
    """Kind, time and data of a session's messages, the newest first; of the newer table if any."""
    for table, kind, order in (
        ("session_message", "type", "seq"),
        ("message", "NULL", "time_created"),
    ):
        known = columns(connection, table)
        if not {"session_id", "data"} <= known:
            continue
        at = "time_created" if "time_created" in known else "time_updated"
        rows = connection.execute(
            f"SELECT {kind}, {at}, CAST(data AS BLOB) FROM {table} WHERE session_id = ?"  # noqa: S608
            f" ORDER BY {order} DESC LIMIT {_NEWEST}",
            (session,),
        ).fetchall()
        if rows:
            yield from rows
            return


def _compacted_at(connection: sqlite3.Connection, session: str) -> int:
    """When a session was last compacted, in milliseconds since 1970; 0 for never.

    Only the beginning of a part is looked at: it names the part's type.
    """
    if not {"session_id", "time_created", "data"} <= columns(connection, "part"):
        return 0
    row = connection.execute(
        "SELECT max(time_created) FROM part WHERE session_id = ?"
        ' AND instr(substr(data, 1, 200), \'"type":"compaction"\') > 0',
        (session,),
    ).fetchone()
    return int(row[0] or 0)


def _newest_of_files(folder: Path) -> _Newest:
    """What the newest message files say; their names rise with time."""
    newest = _Newest()
    names = sorted((entry.path for entry in entries(folder)), reverse=True)
    for path in names[:_NEWEST]:
        one = beside(path, OpenCodeMessage)
        if one is not None and one.role in ("user", "assistant") and newest.take(one):
            break
    return newest
