"""Reads Copilot CLI's calls from `session-store.db` and from sessions' `events.jsonl`.

The database has one row per call. `session-state/<session>/events.jsonl` reports only output
tokens. Totals at the end of a session are ignored, because they may cover only a part of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import typed
from sidecar.agents.contents import Compaction, ContentEntry, Part, PromptSize
from sidecar.agents.databases import DatabaseState, OneDatabase, column_time, read_only, rows
from sidecar.agents.events import CallFinished, CallSize, Category, SessionSnapshot, Store
from sidecar.agents.fields import (
    CamelRecord,
    Record,
    TokenCount,
    credits_to_usd,
    parse_iso_time,
    reported_usage,
)
from sidecar.agents.file_reading import open_quietly
from sidecar.agents.finding import TwoStores
from sidecar.agents.places import agent_folders
from sidecar.agents.stores import (
    NO_USAGE,
    ContextTrack,
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    read_records,
)
from sidecar.models.catalogue import known_window

if TYPE_CHECKING:
    import sqlite3
    from datetime import datetime

    from sidecar.agents.places import Places
    from sidecar.messages.usage import Usage

AGENT = "copilot-cli"
PROVIDER = "github-copilot"
_STORE, _STATE, _EVENTS = "session-store.db", "session-state", "events.jsonl"
_TABLE = "assistant_usage_events"
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


def _category_of(row: dict[str, Any]) -> Category:
    """Return whether the session, a sub-agent or a compaction made this call."""
    initiator = str(row.get("initiator") or "")
    if initiator == "compaction":
        return "summary"
    child = row.get("agent_id") or row.get("parent_tool_call_id")
    return "subagent" if child or initiator.startswith("sub") else "main"


def _usage_of(row: dict[str, Any]) -> Usage:
    """Return a call's usage. The output includes reasoning tokens."""
    prompt, output, read, written, reasoning = (
        row.get(f"{name}_tokens")
        for name in ("input", "output", "cache_read", "cache_write", "reasoning")
    )
    return reported_usage(prompt, output, read, written or _written_tokens(row), reasoning)


def _written_tokens(row: dict[str, Any]) -> int:
    text = row.get("token_details_json")
    try:
        details = _details(text) if isinstance(text, str | bytes) else []
    except msgspec.DecodeError:
        return 0
    return sum(one.token_count or 0 for one in details if _is_write(one.token_type or ""))


def _is_write(kind: str) -> bool:
    kind = kind.lower()
    return "cache" in kind and ("write" in kind or "creat" in kind)


class _Database(OneDatabase):
    agent, table = AGENT, "sessions"

    def paths(self, places: Places) -> tuple[Path, ...]:
        return tuple(home / _STORE for home in agent_folders(places, AGENT))

    def changes(
        self, path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> Iterator[CallFinished]:
        newest = next(rows(connection, _TABLE, "1 ORDER BY id DESC LIMIT 1"), {}).get("id") or 0
        if newest < float(state.at or 0):  # the database has been replaced
            state.at, state.sessions = None, {}
        folders = {str(row["id"]): row.get("cwd") for row in rows(connection, "sessions")}
        for row in rows(connection, _TABLE, "id > ? ORDER BY id", state.at or 0):
            name = str(row.get("session_id") or "")
            session = state.sessions.setdefault(name, SessionState(name, rank=1))
            session.work_in(folders.get(name))
            yield from self._calls_of_row(session, row)
        state.at = newest
        for name, session in state.sessions.items():
            folder = os.path.join(os.path.dirname(path), _STATE, name)
            session.work_in(folders.get(name) or session.folder or _read_folder(folder))

    def _calls_of_row(self, session: SessionState, row: dict[str, Any]) -> list[CallFinished]:
        usage, category = _usage_of(row), _category_of(row)
        session.model = str(row.get("copilot_usage_model") or row.get("model") or "unknown")
        at, nano = column_time(row.get("created_at")), row.get("total_nano_aiu")
        session.touch(at)
        if category == "summary":
            session.track = session.track.compaction()
        elif category == "main":
            session.track = session.track.call(CallSize.of(usage, session.model))
        return session.call(
            at,
            usage,
            f"{session.id}/{row['id']}",
            session.model,
            PROVIDER,
            category=category,
            cost_usd=credits_to_usd(float(str(nano)) / _NANO) if nano else None,
        )

    def contents(self, path: str, session: str) -> Iterator[ContentEntry]:
        """Yield the parts from a session's events, with the prompt sizes from the database."""
        with read_only(path) as connection:
            found = [*rows(connection, _TABLE, "session_id = ? ORDER BY id", session)]
        sizes = iter([_usage_of(one).prompt_tokens for one in found if _category_of(one) == "main"])
        tools = dict[str, str]()
        events = Path(path).parent / _STATE / session / _EVENTS
        for event in read_records(str(events), _content_event):
            yield from _content_entries(event, sizes, tools)


class _EventFiles(LineReader):
    agent = AGENT
    inner = (_STATE,)
    pattern, levels = rf"[^/]+/{_EVENTS}", 2

    def begin(self, store: Store) -> _Events:
        name = os.path.basename(os.path.dirname(store.path))
        return _Events(SessionState(name, track=ContextTrack(why=NO_USAGE)))


READER = TwoStores(_Database(), _EventFiles(), lambda path: path.endswith(_EVENTS))


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


def _rows_since(path: str) -> str | None:
    """Return the time of the database's first call in ISO 8601 format, or None if it is empty.

    The time applies to all sessions, because events may be read before their session has any rows.
    """
    if not os.path.exists(path):
        return None
    with read_only(path) as connection:
        first = next(rows(connection, _TABLE, "1 ORDER BY id"), {})
    at = column_time(first.get("created_at"))
    return at.isoformat() if at else None


class _Events(SessionLines):
    until: str | None = None
    """The time of the first call in the database, in ISO 8601 format."""
    tier: str | None = None

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        """Yield the calls in the event log that were made before the first call in the database."""
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
        """The reported context window or, if there is none, the context tier's limit."""
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
            reported_usage(0, data.output_tokens),
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
