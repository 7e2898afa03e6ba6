"""Reads Antigravity CLI's `conversations/<id>.db`, and those of the Antigravity editor.

Each row of `gen_metadata` is a protobuf message that describes one call. Its schema is not
published, so fields are identified by their numbers. Older `.pb` files are encrypted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from sidecar import typed
from sidecar.agents.databases import DatabaseState, column_text, read_database, rows
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    cached_until_changed,
    reported_usage,
    time_from_ms,
    time_from_ns,
)
from sidecar.agents.folders import Places
from sidecar.agents.session_events import CallFinished, CallSize, Store, StoreRead
from sidecar.agents.stores import FileStores, SessionState, database_store, read_records
from sidecar.agents.vscode_storage import local_path

_MAIN = "conversations"
_CHAT_MODEL, _USAGE, _TIMES, _MODEL, _MODEL_LABEL = 1, 4, 9, 19, 21
"""The fields of a call's message: the chat model, and in it the others."""
_INPUT, _OUTPUT, _CACHE_WRITE, _CACHE_READ, _RESPONSE = 2, 3, 4, 5, 11
"""The fields of the usage. The input is without the cache, and the output includes thinking."""
_LAYOUT_CHANGED = "has an unknown layout: Antigravity has changed its format"

Value = int | bytes


def fields_of(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the number and value of each field in a message, until it is malformed.

    A value is a number, or the bytes of a text or of an inner message.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, position = _varint(message, position)
        if size is None or position + size > end:
            return
        yield key >> 3, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    number = 0
    for shift, byte in enumerate(message[position : position + 10]):
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return number, position + shift + 1
    return number, len(message)


def _at(message: object, *path: int) -> Value | None:
    """Return the value at a path of field numbers, or None if it does not exist."""
    for number in path:
        message = dict(fields_of(message)).get(number) if isinstance(message, bytes) else None
    return message if isinstance(message, Value) else None


def _number(message: Value | None, *path: int) -> int:
    value = _at(message, *path)
    return value if isinstance(value, int) else 0


def _text(message: Value | None, *path: int) -> str | None:
    value = _at(message, *path)
    return column_text(value.decode("utf-8", "replace")) if isinstance(value, bytes) else None


def _time(message: Value | None) -> datetime | None:
    """Return the time in a message of seconds and nanoseconds."""
    return time_from_ms(_number(message, 1) * 1000 + _number(message, 2) / 1e6)


class _Prompt(CamelRecord):
    conversation_id: str | None = None
    workspace: str | None = None
    timestamp: Number = None


_prompt = typed.decoder(_Prompt)


@cached_until_changed
def _folders(path: str) -> dict[str, str]:
    """Return the folder of each conversation in `history.jsonl`, which has a line per prompt."""
    prompts = read_records(path, _prompt)
    pairs = ((one.conversation_id, one.workspace) for one in prompts)
    return {name: folder for name, folder in pairs if name and folder}


class Antigravity(FileStores):
    inner = (_MAIN, "implicit")
    pattern = r"[^/]+\.db"

    def store_at(self, places: Places, path: str) -> Store | None:
        return super().store_at(places, path.removesuffix("-wal").removesuffix("-shm"))

    def make_store(self, path: str) -> Store | None:
        return database_store(self.agent, path)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_database(store, state, DatabaseState, partial(_read_rows, store))


READER = Antigravity()


def _read_rows(store: Store, connection: sqlite3.Connection, state: DatabaseState) -> StoreRead:
    """Return the new calls of a conversation.

    Raises OSError if no row is understood.
    """
    path = Path(store.path)
    is_main = path.parent.name == _MAIN
    session = state.sessions.setdefault(path.stem, SessionState(path.stem))
    about = next(rows(connection, "trajectory_metadata_blob"), {}).get("data")
    history = path.parent.parent / "history.jsonl"
    folder = (_folders(history) or {}).get(path.stem) or local_path(_text(about, 1, 1))
    session.work_in(folder)
    session.began_at = session.began_at or _time(_at(about, 2))
    calls, skipped = list[CallFinished](), 0
    since = -1 if state.at is None else state.at
    for number, data in connection.execute(
        "SELECT idx, data FROM gen_metadata WHERE idx > ? ORDER BY idx", (since,)
    ):
        state.advance(number)
        chat = _at(data, _CHAT_MODEL) if isinstance(data, bytes) else None
        used = _at(chat, _USAGE)
        usage = reported_usage(
            _number(used, _INPUT),
            _number(used, _OUTPUT),
            _number(used, _CACHE_READ),
            _number(used, _CACHE_WRITE),
            includes_cached=False,
        )
        if not usage.prompt_tokens:
            skipped += 1
            continue
        session.model = _text(chat, _MODEL) or session.model or _text(chat, _MODEL_LABEL)
        session.touch(_time(_at(chat, _TIMES, 4)) or time_from_ns(store.mtime_ns))
        session.track = session.track.call(CallSize.of(usage, session.model))
        calls += session.call(
            None,
            usage,
            _text(used, _RESPONSE) or f"{session.id}/{number}",
            session.model,
            category="main" if is_main else "subagent",
        )
    if skipped and session.track.newest is None:
        raise OSError(_LAYOUT_CHANGED)
    sessions = [session.snapshot()] if is_main else []
    return StoreRead(calls, sessions, skipped)
