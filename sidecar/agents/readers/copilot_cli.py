"""Reads Copilot CLI's calls from `session-store.db` and its sessions' `events.jsonl`.

The database has one row per call. The events of a session are in `session-state/<session>`, and
they contain only the number of output tokens. The totals at the end of a session are not used,
because it is unknown which part of the session they cover.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.contents import Compaction, ContentEntry, Part, PromptSize
from sidecar.agents.databases import columns, read_database, read_only
from sidecar.agents.events import (
    CallFinished,
    CallSize,
    Category,
    SessionSnapshot,
    Store,
    StoreRead,
    StoreReader,
)
from sidecar.agents.fields import CamelRecord, Record, TokenCount, credits_to_usd, parse_iso_time
from sidecar.agents.file_reading import open_quietly
from sidecar.agents.finding import database_files, database_store, list_folder, store_from_path
from sidecar.agents.places import agent_folders
from sidecar.agents.stores import (
    NO_USAGE,
    ContextTrack,
    Lines,
    SessionState,
    StoreContents,
    read_lines,
    read_records,
)
from sidecar.messages.usage import Usage, usage_from_parts, usage_from_prompt
from sidecar.models.catalogue import known_window

if TYPE_CHECKING:
    import sqlite3
    from datetime import datetime

    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots

AGENT = "copilot-cli"
PROVIDER = "github-copilot"
_STORE, _STATE, _EVENTS = "session-store.db", "session-state", "events.jsonl"
_TABLE = "assistant_usage_events"
_WANTED = (
    "model", "copilot_usage_model", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "reasoning_tokens", "token_details_json", "created_at",
    "total_nano_aiu", "initiator", "agent_id", "parent_tool_call_id",
)  # fmt: skip
_NANO = 10**9
_MILLION, _USUAL = 1_000_000, 200_000
_HEAD = 256 << 10
_CWD = re.compile(r"^cwd:\s*(.+?)\s*$", re.MULTILINE)


class _Detail(CamelRecord):
    token_type: str | None = None
    token_count: TokenCount = None


class _Data(CamelRecord):
    message_id: str | None = None
    model: str | None = None
    selected_model: str | None = None
    new_model: str | None = None
    output_tokens: TokenCount = None
    token_limit: TokenCount = None
    context_tier: str | None = None
    parent_tool_call_id: str | None = None


class _Event(CamelRecord):
    id: str | None = None
    type: str | None = None
    timestamp: str | None = None
    data: _Data | None = None


_event = typed.decoder(_Event)
_TURN = {
    "user.message": True,
    "assistant.turn_start": True,
    "assistant.turn_end": False,
    "session.shutdown": False,
}
"""Whether a turn is running, keyed by the type of the last event."""
_details = typed.decoder(list[_Detail])


class _Row:
    def __init__(self, values: tuple[object, ...], names: tuple[str, ...]) -> None:
        found = dict(zip(names, values, strict=True))
        self.id = int(str(found["id"]))
        self.session = str(found["session_id"] or "")
        self.model = str(found.get("copilot_usage_model") or found.get("model") or "unknown")
        self.at = parse_iso_time(str(found.get("created_at") or ""))
        self.nano = found.get("total_nano_aiu")
        self._found = found

    @property
    def category(self) -> Category:
        """The purpose of the call. Sub-agents have separate context windows."""
        if self._found.get("initiator") == "compaction":
            return "summary"
        initiator = str(self._found.get("initiator") or "")
        child = self._found.get("agent_id") or self._found.get("parent_tool_call_id")
        return "subagent" if child or initiator.startswith("sub") else "main"

    @property
    def usage(self) -> Usage:
        """The usage of the call. The output includes reasoning tokens."""
        numbers = (self._found.get(f"{name}_tokens") for name in _NUMBERS)
        prompt, read, write, output, reasoning = (max(0, int(str(one or 0))) for one in numbers)
        return usage_from_prompt(prompt, read, write or self._written, 0, output, reasoning)

    @property
    def _written(self) -> int:
        text = self._found.get("token_details_json")
        try:
            details = _details(text) if isinstance(text, str | bytes) else []
        except msgspec.DecodeError:
            return 0
        written = (one for one in details if _is_write(one.token_type or ""))
        return sum(one.token_count or 0 for one in written)


_NUMBERS = ("input", "cache_read", "cache_write", "output", "reasoning")


def _is_write(kind: str) -> bool:
    kind = kind.lower()
    return "cache" in kind and ("write" in kind or "creat" in kind)


class CopilotCli(StoreReader):
    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        homes = self._homes(places)
        stores = (path for home in homes for path in database_files(os.path.join(home, _STORE)))
        return (*stores, *(os.path.join(home, _STATE) for home in homes))

    def _homes(self, places: Places) -> tuple[str, ...]:
        return tuple(map(str, agent_folders(places, AGENT)))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:  # noqa: ARG002
        for home in self._homes(places):
            store = database_store(AGENT, os.path.join(home, _STORE))
            if store is not None:
                yield store
            for session in list_folder(os.path.join(home, _STATE)):
                events = store_from_path(AGENT, os.path.join(session.path, _EVENTS))
                if events is not None:
                    yield events

    def store_at(self, places: Places, path: str) -> Store | None:
        path = path.removesuffix("-wal").removesuffix("-shm")
        if not any(path.startswith(folder + os.sep) for folder in self._homes(places)):
            return None
        if os.path.basename(path) == _STORE:
            return database_store(AGENT, path)
        return store_from_path(AGENT, path) if os.path.basename(path) == _EVENTS else None

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        if os.path.basename(store.path) == _STORE:
            folder = os.path.join(os.path.dirname(store.path), _STATE)
            return read_database(store, state, _Rows, partial(_events_of_rows, folder))
        return read_lines(store, state, partial(_Events.of, os.path.dirname(store.path)))

    def contents(self, path: str, session: str) -> Iterator[ContentEntry]:
        """Yield the parts in a session's events. Prompt sizes come from the database."""
        if not path.endswith(".db"):
            return
        with read_only(path) as connection:
            found = [*_read_rows(connection, "session_id = ?", (session,))]
        sizes = iter([one.usage.prompt_tokens for one in found if one.category == "main"])
        tools = dict[str, str]()
        events = Path(path).parent / "session-state" / session / "events.jsonl"
        for event in read_records(str(events), _content_event):
            yield from _content_entries(event, sizes, tools)


READER = CopilotCli()


class _ToolRequest(CamelRecord):
    tool_call_id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _ContentData(CamelRecord):
    content: msgspec.Raw = msgspec.Raw(b"")
    transformed_content: msgspec.Raw = msgspec.Raw(b"")
    tool_requests: list[_ToolRequest] | None = None
    tool_call_id: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"")


class _ContentEvent(Record):
    type: str | None = None
    data: _ContentData | None = None


_content_event = typed.decoder(_ContentEvent)


def _content_entries(
    event: _ContentEvent, sizes: Iterator[int], tools: dict[str, str]
) -> Iterator[ContentEntry]:
    data = event.data or _ContentData()
    if event.type == "session.compaction_complete":
        yield Compaction()
    elif event.type == "user.message":
        yield Part("user", bytes(data.transformed_content) or data.content)
    elif event.type == "assistant.message":
        if (size := next(sizes, None)) is not None:
            yield PromptSize(size, has_all_before=True)
        yield Part("assistant", data.content)
        for request in data.tool_requests or ():
            tools[request.tool_call_id or ""] = request.name or ""
            yield Part("call", request.arguments, request.name or "")
    elif event.type == "tool.execution_complete":
        yield Part("result", data.result, tools.get(data.tool_call_id or "", ""))


class _Rows(msgspec.Struct):
    row: int = 0
    sessions: dict[str, SessionState] = msgspec.field(default_factory=dict)

    def update(self, row: _Row) -> None:
        session = self.sessions.get(row.session)
        if session is None:
            session = self.sessions[row.session] = SessionState(row.session, rank=1)
        session.touch(row.at)
        if row.category == "summary":
            session.track = session.track.compaction()
        elif row.category == "main":
            session.track = session.track.call(CallSize.of(row.usage, row.model))
        session.model = row.model


def _events_of_rows(folder: str, connection: sqlite3.Connection, state: _Rows) -> StoreContents:
    newest = _newest_row(connection)
    if newest < state.row:  # the database has been replaced
        state.row, state.sessions = 0, {}
    folders = _read_folders(connection)
    calls: list[CallFinished] = []
    for row in _read_rows(connection, "id > ?", (state.row,)):
        state.update(row)
        if row.at is None:
            continue
        calls.append(
            CallFinished(
                at=row.at,
                session=row.session,
                model=row.model,
                provider=PROVIDER,
                usage=row.usage,
                request=f"{row.session}/{row.id}",
                workspace=folders.get(row.session) or "",
                category=row.category,
                cost_usd=credits_to_usd(float(str(row.nano)) / _NANO) if row.nano else None,
            )
        )
    state.row = newest
    state.sessions = {name: one for name, one in state.sessions.items() if name in folders}
    sessions = []
    for name, session in state.sessions.items():
        session.work_in(folders[name] or session.folder or _read_folder(os.path.join(folder, name)))
        sessions.append(session.snapshot())
    return StoreContents(calls, sessions)


def _read_rows(
    connection: sqlite3.Connection, where: str, values: tuple[object, ...]
) -> Iterator[_Row]:
    known = columns(connection, _TABLE)
    if not {"id", "session_id"} <= known:
        return
    names = ("id", "session_id", *(name for name in _WANTED if name in known))
    query = f"SELECT {', '.join(names)} FROM {_TABLE} WHERE {where} ORDER BY id"  # noqa: S608
    for row in connection.execute(query, values):
        yield _Row(row, names)


def _newest_row(connection: sqlite3.Connection) -> int:
    if "id" not in columns(connection, _TABLE):
        return 0
    return int(connection.execute(f"SELECT max(id) FROM {_TABLE}").fetchone()[0] or 0)  # noqa: S608


def _read_folders(connection: sqlite3.Connection) -> dict[str, str | None]:
    if not {"id", "cwd"} <= columns(connection, "sessions"):
        return {}
    rows = connection.execute("SELECT id, cwd FROM sessions").fetchall()
    return {str(name): cwd if isinstance(cwd, str) else None for name, cwd in rows}


def _rows_since(path: str) -> str | None:
    """Return the time of the first call in the database in ISO 8601 format, or None if it is empty.

    This covers all sessions, because the events of a session may be read before it has any rows.
    """
    if not os.path.exists(path):
        return None
    with read_only(path) as connection:
        first = next(_read_rows(connection, "TRUE", ()), None)
    return first.at.isoformat() if first and first.at else None


class _Events(msgspec.Struct):
    session: SessionState
    until: str | None = None
    """The time from which the database covers the calls, in ISO 8601 format."""
    tier: str | None = None

    @classmethod
    def of(cls, folder: str) -> _Events:
        return cls(SessionState(os.path.basename(folder), track=ContextTrack(why=NO_USAGE)))

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        """Yield the calls in the events that are older than the first call in the database."""
        folder, session = Path(lines.path).parent, self.session
        session.work_in(_read_folder(str(folder)))
        self.until = self.until or _rows_since(str(folder.parents[1] / _STORE))
        begins = parse_iso_time(self.until)
        for event in lines.records(_event):
            at, data = parse_iso_time(event.timestamp), event.data or _Data()
            session.touch(at)
            session.active = _TURN.get(event.type or "", session.active)
            session.model = data.new_model or session.model or data.selected_model or data.model
            session.window = data.token_limit or session.window
            self.tier = data.context_tier or self.tier
            if event.type == "session.compaction_complete":
                session.track = session.track.compaction()
            elif event.type == "assistant.message":
                session.track = ContextTrack(why=NO_USAGE)
                if at and data.output_tokens and (begins is None or at < begins):
                    yield from self._call(event, at, data)

    def snapshots(self) -> Iterable[SessionSnapshot]:
        session = msgspec.structs.replace(self.session, window=self._window)
        return (session.snapshot("lower bound"),)

    @property
    def _window(self) -> int | None:
        """The reported context window, or else the limit of the context tier."""
        session = self.session
        if session.window or not self.tier or not session.model:
            return session.window
        listed = known_window(session.model)
        if listed is None or listed < _MILLION:
            return None
        return _USUAL if self.tier == "default" else listed

    def _call(self, event: _Event, at: datetime, data: _Data) -> list[CallFinished]:
        name = self.session.id
        return self.session.call(
            at,
            usage_from_parts(0, 0, 0, 0, data.output_tokens or 0, 0),
            data.message_id or event.id or f"{name}/{event.timestamp}",
            data.model,
            PROVIDER,
            category="subagent" if data.parent_tool_call_id else "main",
        )


def _read_folder(folder: str) -> str | None:
    try:
        with open_quietly(os.path.join(folder, "workspace.yaml")) as file:
            found = _CWD.search(file.read(_HEAD).decode("utf-8", "replace"))
    except OSError:
        return None
    return found.group(1).strip("'\"") if found else None
