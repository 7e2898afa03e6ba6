"""Reads Copilot CLI's calls from sessions' `events.jsonl` and from `session-store.db`.

Since 1.0, `session-state/<session>/events.jsonl` has a `session.usage_record` for each call. Calls
before a session's first record are rows of the database, which editors' sessions (ACP) lack.
Without rows, older event logs report only output tokens. Totals at the end of a session are
ignored, because they may cover only a part of it.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes
from sidecar.agents.databases import DatabaseState, OneDatabase, read_only, rows
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    TokenCount,
    cached_until_changed,
    chunks,
    json_digest,
    nano_credits_to_usd,
    open_quietly,
    parse_iso_time,
    parse_time,
    reported_usage,
)
from sidecar.agents.session_events import CallFinished, CallSize, Category, Store, StoredSession
from sidecar.agents.stores import (
    NO_USAGE,
    ContextTrack,
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    TwoStores,
    read_records,
)
from sidecar.messages.vendor_usage import Usage
from sidecar.models.catalogue import known_window

PROVIDER = "github-copilot"
_STORE, _STATE, _EVENTS = "session-store.db", "session-state", "events.jsonl"
_TABLE = "assistant_usage_events"
_MILLION, _USUAL = 1_000_000, 200_000
_HEAD = 256 << 10
_TOLERANCE = timedelta(seconds=1)
_RECORD_WITHIN = timedelta(seconds=5)
"""Without a record after this time, the call was made by a version that writes no records."""
_CWD = re.compile(r"^cwd:\s*(.+?)\s*$", re.MULTILINE)


class _Detail(CamelRecord):
    token_type: str | None = None
    token_count: TokenCount = None


class _Bill(CamelRecord):
    total_nano_aiu: Number = None
    token_details: list[_Detail] | None = None


class _Record(CamelRecord):
    """The usage of a call, or of a compaction's calls."""

    model: str | None = None
    input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    cache_read_tokens: TokenCount = None
    cache_write_tokens: TokenCount = None
    reasoning_tokens: TokenCount = None
    is_byok: bool | None = None
    model_provider: str | None = None
    max_prompt_tokens: TokenCount = None
    initiator: str | None = None
    interaction_type: str | None = None
    parent_tool_call_id: str | None = None
    copilot_usage: _Bill | None = None

    @property
    def usage(self) -> Usage:
        details = (self.copilot_usage or _Bill()).token_details or ()
        return reported_usage(
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens,
            self.cache_write_tokens or _written_tokens(details),
            self.reasoning_tokens,
        )

    @property
    def is_conversation(self) -> bool:
        """Whether the call is part of a conversation, as opposed to a background request."""
        return self.interaction_type in (None, "conversation-agent", "conversation-user")

    @property
    def provider(self) -> str | None:
        """The provider of a call with the user's own key, or None for the model's maker."""
        return _OWN_PROVIDERS.get(self.model_provider or "")


class _ToolRequest(CamelRecord):
    tool_call_id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _Data(CamelRecord):
    message_id: str | None = None
    model: str | None = None
    copilot_version: str | None = None
    reasoning_effort: str | None = None
    selected_model: str | None = None
    new_model: str | None = None
    output_tokens: TokenCount = None
    token_limit: TokenCount = None
    context_tier: str | None = None
    success: bool | None = None
    parent_tool_call_id: str | None = None
    usage: _Record | None = None
    compaction_tokens_used: _Record | None = None
    content: msgspec.Raw = msgspec.Raw(b"")
    transformed_content: msgspec.Raw = msgspec.Raw(b"")
    tool_requests: list[_ToolRequest] | None = None
    tool_call_id: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"")


class _Event(CamelRecord):
    id: str | None = None
    agent_id: str | None = None
    """The sub-agent that the event belongs to."""
    type: str | None = None
    timestamp: str | None = None
    data: _Data | None = None

    def add_parts(self, sizes: ContextSizes) -> None:
        """Add the parts in an event of the main conversation, and a recorded call's prompt size."""
        data = self.data or _Data()
        if self.type == "session.compaction_complete":
            sizes.compact()
        elif self.type == _RECORD and data.usage and data.usage.is_conversation:
            sizes.add_prompt(data.usage.usage.prompt_tokens, has_all_before=True)
        elif self.type == "user.message":
            sizes.add("user", bytes(data.transformed_content) or data.content)
        elif self.type == "assistant.message":
            sizes.add("assistant", data.content)
            for request in data.tool_requests or ():
                tool = sizes.begin_call(request.tool_call_id, request.name)
                sizes.add("call", request.arguments, tool)
        elif self.type == "tool.execution_complete":
            sizes.add("result", data.result, sizes.end_call(data.tool_call_id))


_event = typed.decoder(_Event)
_TURN = {
    "user.message": True,
    "assistant.turn_start": True,
    "assistant.turn_end": False,
    "session.shutdown": False,
}
"""Whether a turn is running, keyed by the type of the last event."""
_details = typed.decoder(list[_Detail])
_RECORD = "session.usage_record"
_RECORD_MARK = f'"{_RECORD}"'.encode()
_OWN_PROVIDERS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "azure_openai": "azure",
    "ollama": "ollama",
    "llama_cpp": "llamacpp",
    "lm_studio": "lmstudio",
    "vllm": "vllm",
}


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
    text = row.get("token_details_json")
    details: list[_Detail] = []
    with suppress(msgspec.DecodeError):
        details = _details(text) if isinstance(text, str | bytes) else []
    return reported_usage(prompt, output, read, written or _written_tokens(details), reasoning)


def _written_tokens(details: Iterable[_Detail]) -> int:
    return sum(one.token_count or 0 for one in details if _is_write(one.token_type or ""))


def _is_write(kind: str) -> bool:
    kind = kind.lower()
    return "cache" in kind and ("write" in kind or "creat" in kind)


class _Database(OneDatabase):
    files, table = (_STORE,), "sessions"

    def changes(
        self, path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> Iterator[CallFinished]:
        newest = next(rows(connection, _TABLE, "1 ORDER BY id DESC LIMIT 1"), {}).get("id") or 0
        if newest < float(state.at or 0):  # the database has been replaced
            state.at, state.sessions = None, {}
        folders = {str(row["id"]): row.get("cwd") for row in rows(connection, "sessions")}
        for row in rows(connection, _TABLE, "id > ? ORDER BY id", state.at or 0):
            name = str(row.get("session_id") or "")
            is_in_log = _is_in_log(row, os.path.join(os.path.dirname(path), _STATE, name))
            if is_in_log is None:
                state.is_settled, newest = False, int(row["id"]) - 1
                break
            session = state.sessions.setdefault(name, SessionState(name, rank=1))
            session.work_in(folders.get(name))
            if not is_in_log:
                yield from self._calls_of_row(session, row)
        state.at = newest
        for name, session in state.sessions.items():
            folder = os.path.join(os.path.dirname(path), _STATE, name)
            session.work_in(folders.get(name) or session.folder or _read_folder(folder))

    def _calls_of_row(self, session: SessionState, row: dict[str, Any]) -> list[CallFinished]:
        usage, category = _usage_of(row), _category_of(row)
        session.model = str(row.get("copilot_usage_model") or row.get("model") or "unknown")
        at, nano = parse_time(row.get("created_at")), row.get("total_nano_aiu")
        session.touch(at)
        effort = row.get("reasoning_effort")
        session.note(effort=str(effort) if effort else None)
        if category == "summary":
            session.note(is_compacted=True)
            session.track = session.track.compaction()
        elif category == "main":
            session.track = session.track.call(CallSize.of(usage, session.model))
        calls = session.call(
            at,
            usage,
            f"{session.id}/{row['id']}",
            session.model,
            PROVIDER,
            category=category,
            reported_cost=nano_credits_to_usd(nano),
        )
        return [*map(session.judge, calls)]

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        _measure(os.path.dirname(path), session, sizes)


class _EventFiles(LineReader):
    inner = (_STATE,)
    pattern = rf"[^/]+/{_EVENTS}"

    def begin(self, store: Store) -> _Events:
        name = os.path.basename(os.path.dirname(store.path))
        return _Events(SessionState(name, track=ContextTrack(why=NO_USAGE)))

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        _measure(str(Path(path).parents[2]), session, sizes)


READER = TwoStores(_Database(), _EventFiles(), lambda path: path.endswith(_EVENTS))


def _measure(home: str, session: str, sizes: ContextSizes) -> None:
    """Add the parts in a session's events. Without records, rows have the prompts' sizes."""
    folder, prompts = os.path.join(home, _STATE, session), list[int]()
    with suppress(OSError), read_only(os.path.join(home, _STORE)) as connection:
        for row in rows(connection, _TABLE, "session_id = ? ORDER BY id", session):
            if _category_of(row) == "main" and not _is_in_log(row, folder):
                prompts.append(_usage_of(row).prompt_tokens)
    left = iter(prompts)
    for event in read_records(os.path.join(folder, _EVENTS), _event):
        if event.agent_id is None:
            if event.type == "assistant.message" and (size := next(left, None)) is not None:
                sizes.add_prompt(size, has_all_before=True)
            event.add_parts(sizes)


def _request_id(at: datetime | None, usage: Usage) -> str:
    """Return a recorded call's id. It is the same in the event logs of all forks."""
    return f"{at.isoformat() if at else ''}/{usage.prompt_tokens}/{usage.output_tokens}"


def _is_in_log(row: dict[str, Any], folder: str) -> bool | None:
    """Return whether the event log has a record of the row's call.

    Returns None if the record may still follow, because Copilot CLI writes the row first, even
    before it creates the log. The times of both may differ by a few milliseconds.
    """
    events, at = os.path.join(folder, _EVENTS), parse_time(row.get("created_at"))
    if at is None:
        return False
    if (since := _recorded_since(events)) is not None:
        return at >= since - _TOLERANCE
    return None if datetime.now(UTC) - at < _RECORD_WITHIN else False


@cached_until_changed
def _recorded_since(path: str) -> datetime | None:
    """Return the time of the first usage record in an event log, or None if there is none."""
    with open_quietly(path) as file:
        for data, _ in chunks(file):
            found = data.find(_RECORD_MARK)
            while found >= 0:
                line = data[data.rfind(b"\n", 0, found) + 1 : data.find(b"\n", found)]
                with suppress(msgspec.DecodeError):
                    event = _event(line)
                    if event.type == _RECORD:
                        return parse_iso_time(event.timestamp)
                found = data.find(_RECORD_MARK, found + 1)
    return None


def _rows_since(path: str) -> str | None:
    """Return the time of the database's first call in ISO 8601 format, or None if it is empty.

    The time applies to all sessions, because events may be read before their session has any rows.
    """
    if not os.path.exists(path):
        return None
    with read_only(path) as connection:
        first = next(rows(connection, _TABLE, "1 ORDER BY id"), {})
    at = parse_time(first.get("created_at"))
    return at.isoformat() if at else None


class _Events(SessionLines):
    until: str | None = None
    """The time of the first call in the database, in ISO 8601 format."""
    tier: str | None = None
    newest: _Record | None = None
    """The newest usage record."""

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        """Yield the calls in the event log.

        Before the first record, messages count if the database has no calls from that time.
        """
        folder, session = Path(lines.path).parent, self.session
        session.work_in(_read_folder(str(folder)))
        self.until = self.until or _rows_since(str(folder.parents[1] / _STORE))
        begins = parse_iso_time(self.until)
        for event in lines.records(_event):
            at, data = parse_iso_time(event.timestamp), event.data or _Data()
            session.touch(at)
            if event.agent_id is None:
                event.add_parts(session.sizes)
                self._follow(event, data)
            if event.type == _RECORD and data.usage is not None:
                self.newest = data.usage
                yield from self._call(at, data.usage, _category_of_record(event, data.usage))
            elif self.newest is not None and data.compaction_tokens_used is not None:
                yield from self._call(at, data.compaction_tokens_used, "summary")
            elif (
                event.type == "assistant.message"
                and self.newest is None
                and at
                and data.output_tokens
                and (begins is None or at < begins)
            ):
                yield from self._output_of_message(event, at, data)

    def snapshots(self) -> Iterable[StoredSession]:
        session = replace(self.session, window=self._window)
        if self.newest is None:
            # The sizes of the prompts are in the database.
            return (replace(session, sizes=ContextSizes()).snapshot("lower bound"),)
        return (replace(session, rank=2).snapshot(),)

    def _follow(self, event: _Event, data: _Data) -> None:
        """Update the session with an event of the main conversation."""
        session, record = self.session, data.usage
        is_compacted = event.type == "session.compaction_complete" and data.success is not False
        session.note(
            version=data.copilot_version,
            effort=data.reasoning_effort,
            # It also names the tools.
            shape=json_digest(data.content) if event.type == "system.message" else None,
            is_compacted=is_compacted or None,
        )
        session.active = _TURN.get(event.type or "", session.active)
        session.model = data.new_model or session.model or data.selected_model or data.model
        session.window = data.token_limit or session.window
        self.tier = data.context_tier or self.tier
        if is_compacted:
            session.track = session.track.compaction()
        elif event.type == "assistant.message" and self.newest is None:
            session.track = ContextTrack(why=NO_USAGE)
        elif event.type == _RECORD and record is not None and record.is_conversation:
            session.window = record.max_prompt_tokens or session.window
            size = CallSize.of(record.usage, record.model, session.window)
            session.track = session.track.call(size)

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

    def _call(self, at: datetime | None, record: _Record, category: Category) -> list[CallFinished]:
        # The record of a compaction does not say whose key it used.
        key = self.newest if category == "summary" else record
        is_byok = key is not None and key.is_byok is True
        usage, bill = record.usage, record.copilot_usage or _Bill()
        return self.session.call(
            at,
            usage,
            _request_id(at, usage),
            record.model or self.session.model,
            (key.provider if key and is_byok else PROVIDER),
            category=category,
            reported_cost=nano_credits_to_usd(bill.total_nano_aiu),
        )

    def _output_of_message(self, event: _Event, at: datetime, data: _Data) -> list[CallFinished]:
        name = self.session.id
        return self.session.call(
            at,
            reported_usage(0, data.output_tokens),
            data.message_id or event.id or f"{name}/{event.timestamp}",
            data.model,
            PROVIDER,
            category="subagent" if data.parent_tool_call_id else "main",
        )


def _category_of_record(event: _Event, record: _Record) -> Category:
    if record.interaction_type == "conversation-compaction":
        return "summary"
    child = event.agent_id or record.parent_tool_call_id
    return "subagent" if child or "sub" in (record.initiator or "") else "main"


def _read_folder(folder: str) -> str | None:
    try:
        with open_quietly(os.path.join(folder, "workspace.yaml")) as file:
            found = _CWD.search(file.read(_HEAD).decode("utf-8", "replace"))
    except OSError:
        return None
    return found.group(1).strip("'\"") if found else None
