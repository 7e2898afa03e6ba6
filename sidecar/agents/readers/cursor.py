"""Reads the size of the contexts in Cursor's `User/globalStorage/state.vscdb`.

Cursor writes no tokens of single calls, so there are no calls and no costs. The database may have
gigabytes. Its rows are replaced, so that a changed row has a new number, and only the rows of
conversations are read, by the range of their keys.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from sidecar import typed
from sidecar.agents.databases import OneDatabase, column_text, columns, read_database, read_only
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    Record,
    TokenCount,
    decode_document,
    time_from_ms,
    token_count,
)
from sidecar.agents.session_events import CallSize, Store, StoreRead
from sidecar.agents.stores import SessionState
from sidecar.agents.vscode_storage import Uri, local_path, storage

_TABLE, _FIRST, _END = "cursorDiskKV", "composerData:", "composerData;"
_NOTE = "Cursor's own number; its files contain no calls and no costs"
_BAND = 10.0
"""The margin of error of Cursor's own number in percent (±), which nobody could check."""
_AUTO = "default"


class _Breakdown(CamelRecord):
    total_used_tokens: Number = None


class _ModelConfig(CamelRecord):
    model_name: str | None = None


class _Workspace(Record):
    id: str | None = None
    uri: Uri | str | None = None


class _Conversation(CamelRecord):
    name: str | None = None
    context_tokens_used: Number = None
    context_token_limit: TokenCount = None
    prompt_token_breakdown: _Breakdown | None = None
    model_settings: _ModelConfig | None = msgspec.field(name="modelConfig", default=None)
    created_at: Number = None
    last_updated_at: Number = None
    workspace_identifier: _Workspace | None = None
    subagent_info: msgspec.Raw = msgspec.Raw(b"null")


_conversation = typed.decoder(_Conversation)


class _State(msgspec.Struct):
    number: int = 0
    sessions: dict[str, SessionState] = {}


class Cursor(OneDatabase):
    files = ("globalStorage/state.vscdb",)
    table = _TABLE

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        user = Path(store.path).parent.parent
        return read_database(
            store, state, _State, lambda connection, state: _read_changes(user, connection, state)
        )

    def title(self, store: Store, title_at: str) -> str | None:
        with read_only(store.path) as connection:
            query = f"SELECT value FROM {_TABLE} WHERE key = ?"  # noqa: S608
            for (value,) in connection.execute(query, (f"{_FIRST}{title_at}",)):
                return column_text(decode_document(_bytes_of(value), _Conversation).name)
        return None


READER = Cursor()


def _read_changes(user: Path, connection: sqlite3.Connection, state: _State) -> StoreRead:
    if not columns(connection, _TABLE):
        return StoreRead()
    keys = f"FROM {_TABLE} WHERE key >= ? AND key < ?"
    names = connection.execute(f"SELECT key {keys}", (_FIRST, _END))
    known = {str(key).removeprefix(_FIRST) for (key,) in names}
    state.sessions = {name: one for name, one in state.sessions.items() if name in known}
    skipped = 0
    # With the plus sign, SQLite uses the index of the keys instead of the row numbers.
    query = f"SELECT rowid, key, value {keys} AND +rowid > ?"
    for number, key, value in connection.execute(query, (_FIRST, _END, state.number)):
        state.number = max(state.number, number)
        try:
            one = _conversation(_bytes_of(value))
        except msgspec.DecodeError:
            skipped += value is not None
            continue
        if bytes(one.subagent_info) == b"null" and one.created_at:
            name = str(key).removeprefix(_FIRST)
            state.sessions[name] = _session_of(user, name, one)
    found = [one.snapshot("estimate", _BAND, _NOTE) for one in state.sessions.values()]
    return StoreRead((), found, skipped)


def _session_of(user: Path, name: str, one: _Conversation) -> SessionState:
    session = SessionState(name, title_at=name if one.name else None)
    session.began_at = time_from_ms(one.created_at)
    session.updated_at = time_from_ms(one.last_updated_at) or session.began_at
    workspace = one.workspace_identifier or _Workspace()
    folder = local_path(workspace.uri)
    if folder is None and workspace.id:
        folder = "\n".join(storage(str(user / "workspaceStorage" / workspace.id)).folders)
    session.work_in(folder)
    model = one.model_settings.model_name if one.model_settings else None
    session.model = None if model == _AUTO else model
    breakdown = one.prompt_token_breakdown or _Breakdown()
    tokens = token_count(one.context_tokens_used) or token_count(breakdown.total_used_tokens)
    size = CallSize(tokens, 0, session.model, one.context_token_limit)
    session.track = session.track.call(size)
    return session


def _bytes_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
