"""Reads OpenClaw's `agents/<agent>/agent/openclaw-agent.sqlite`, whose events are Pi's entries.

Until the summer of 2026, OpenClaw wrote Pi's files, `agents/<agent>/sessions/*.jsonl`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from functools import partial

import msgspec

from sidecar.agents.databases import columns, read_database
from sidecar.agents.folders import Places
from sidecar.agents.readers.pi import Pi, PiSession, window_in_settings
from sidecar.agents.session_events import CallFinished, Store, StoredSession, StoreRead
from sidecar.agents.stores import (
    FileStores,
    Lines,
    SessionState,
    StartOverError,
    TwoStores,
    database_store,
)

_MOST_BYTES = 64 << 20
"""The maximum size of a decompressed event in bytes."""

_DAMAGED = b"?\n"
"""A line that is counted as malformed."""


class _State(msgspec.Struct):
    sessions: dict[str, PiSession] = {}
    numbers: dict[str, int] = {}
    """The number of the last event that was read of each session."""


class OpenClawDatabases(FileStores):
    inner = ("agents",)
    pattern = r"[^/]+/agent/openclaw-agent\.sqlite"

    def store_at(self, places: Places, path: str) -> Store | None:
        return super().store_at(places, path.removesuffix("-wal").removesuffix("-shm"))

    def make_store(self, path: str) -> Store | None:
        return database_store(self.agent, path)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_database(store, state, _State, partial(_read_events, store.path))

    def window(self, places: Places, session: StoredSession) -> int | None:
        return window_in_settings(places, self.agent, session)


class OpenClawFiles(Pi):
    inner = ("agents",)
    pattern = r"[^/]+/sessions/[^/]+\.jsonl(\.(reset|deleted)\..*)?"


READER = TwoStores(OpenClawDatabases(), OpenClawFiles(), lambda path: ".jsonl" in path)


def _read_events(path: str, connection: sqlite3.Connection, state: _State) -> StoreRead:
    newest = dict(
        connection.execute(
            "SELECT session_id, max(seq) FROM transcript_events WHERE typeof(seq) = 'integer' "
            "AND typeof(session_id) = 'text' GROUP BY session_id"
        )
    )
    state.sessions = {name: one for name, one in state.sessions.items() if name in newest}
    running = _running(connection)
    calls, skipped = list[CallFinished](), 0
    for name, number in newest.items():
        known = state.sessions.get(name) if number >= state.numbers.get(name, 0) else None
        if known is None or state.numbers[name] < number:
            since = -1 if known is None else state.numbers[name]
            try:
                session, found, lost = _read_session(path, connection, name, since, known)
            except StartOverError:
                session, found, lost = _read_session(path, connection, name, -1, None)
            calls += found
            skipped += lost
            state.sessions[name], state.numbers[name] = session, number
        if name in running:
            state.sessions[name].session.active = running[name]
    sessions = [one for session in state.sessions.values() for one in session.snapshots()]
    return StoreRead(calls, sessions, skipped)


def _read_session(
    path: str, connection: sqlite3.Connection, name: str, since: int, known: PiSession | None
) -> tuple[PiSession, list[CallFinished], int]:
    """Read a session's events after a number, and return its state, calls and malformed events."""
    session = known
    if session is None:
        session = PiSession(SessionState(name))
        session.steps = {}
    rows = connection.execute(
        "SELECT seq, event_json, event_zstd FROM transcript_events "
        "WHERE session_id = ? AND seq > ? AND typeof(seq) = 'integer' ORDER BY seq",
        (name, since),
    )
    calls, skipped = list[CallFinished](), 0
    for number, *event in rows:
        lines = Lines(path, _line_of(event), number)
        calls += (call for call in session.read(lines) if call.counts)
        skipped += lines.skipped
    return session, calls, skipped


def _line_of(row: Iterable[object]) -> bytes:
    text, data = row
    if isinstance(data, bytes) and not text:
        from sidecar.agents.compressed import decompress

        try:
            return decompress(data, _MOST_BYTES) + b"\n"
        except OSError:
            return _DAMAGED
    return str(text or "").encode() + b"\n"


def _running(connection: sqlite3.Connection) -> dict[str, bool]:
    """Return whether the current sessions are running."""
    if not {"current_session_id", "status"} <= columns(connection, "session_nodes"):
        return {}
    nodes = connection.execute("SELECT current_session_id, status FROM session_nodes")
    return {str(name): status == "running" for name, status in nodes if name and status}
