"""Reads Copilot's calls in VS Code from its debug logs and its trace database.

Both contain the complete input of each call, and they use the same span ids. In traces, an
`invoke_agent` span contains the total of its calls.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache

import msgspec

from sidecar import typed
from sidecar.agents.databases import DatabaseState, columns, read_only
from sidecar.agents.fields import (
    CamelRecord,
    Number,
    Record,
    decode_file,
    nano_credits_to_usd,
    reported_usage,
    time_from_ms,
    token_count,
)
from sidecar.agents.file_reading import cached_until_changed
from sidecar.agents.readers.copilot_requests import PROVIDER, CallTotals
from sidecar.agents.session_events import CallFinished, CallSize, StoredSession, StoreRead
from sidecar.agents.stores import (
    Lines,
    SessionLines,
    SessionState,
    first_records,
)
from sidecar.agents.vscode_storage import Storage
from sidecar.messages.vendor_usage import Usage

_LONG_AGO = 0.0
TRACE_RANK = 2
"""The rank of traces, the most accurate store for a session."""
_ASIDE = ("title", "categori", "inline", "nes", "commit", "intent", "subagent", "search")
"""A request is not part of the conversation if its name contains one of these strings."""
_WRITTEN = "gen_ai.usage.cache_creation.input_tokens"
_COLUMNS = {"span_id", "operation_name", "chat_session_id", "start_time_ms"}
_NANO_AIU = "copilot_chat.copilot_usage_nano_aiu"
_RESPONSE = "gen_ai.response.id"
_PARENT = "copilot_chat.parent_chat_session_id"


class _Attributes(CallTotals):
    copilot_usage_nano_aiu: Number = None
    debug_name: str | None = None


class _Line(CamelRecord):
    ts: Number = None
    type: str | None = None
    span_id: str | None = None
    status: str | None = None
    attrs: _Attributes | None = None

    @property
    def is_main(self) -> bool:
        """Whether the call is part of the main conversation."""
        name = (self.attrs.debug_name if self.attrs else None) or ""
        return self.status in (None, "ok") and not _is_aside(name)

    @property
    def is_summary(self) -> bool:
        """Whether the call summarized the conversation."""
        return "summar" in ((self.attrs.debug_name if self.attrs else None) or "").lower()


_line = typed.decoder(_Line)


class LogState(SessionLines):
    """What the reader remembers about a debug log between reads."""

    folder: str
    """The log's folder, which also contains `models.json`."""
    child: bool
    until: float | None = None
    """The time of the session's first call in the traces, in milliseconds since 1970."""

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        session = self.session
        for line in lines.records(_line):
            session.touch(time_from_ms(line.ts))
            if line.type in _TURN:
                session.active = line.type != "turn_end"
            if line.type != "llm_request" or line.attrs is None:
                continue
            if line.is_main and line.is_summary:
                session.track = session.track.compaction()
            elif line.is_main:
                session.track = session.track.call(CallSize.of(line.attrs.usage, line.attrs.model))
            yield from self._calls_of_line(line, line.attrs)

    def snapshots(self) -> Iterator[StoredSession]:
        if self.child:
            return
        newest = self.session.track.newest
        self.session.window = window_in(self.folder, newest.model if newest else None)
        yield self.session.snapshot()

    def _calls_of_line(self, line: _Line, attrs: _Attributes) -> Iterator[CallFinished]:
        if self.until is not None and (line.ts or 0) >= self.until:
            return
        yield from self.session.call(
            time_from_ms(line.ts),
            attrs.usage,
            line.span_id or f"{self.session.id}/{line.ts}",
            attrs.model,
            PROVIDER,
            category="subagent" if self.child else "summary" if line.is_summary else "main",
            reported_cost=nano_credits_to_usd(attrs.copilot_usage_nano_aiu),
        )


_TURN = ("turn_start", "user_message", "turn_end")


def log_begins(path: str) -> float | None:
    """Return the time of the first call in a debug log, in milliseconds since 1970.

    Returns None if there is no log. If the log does not start with `session_start`, its oldest
    lines were deleted. These lines have already been read, so the log counts as complete.
    """
    with suppress(OSError):
        for first in first_records(path, _line):
            return first.ts if first.type == "session_start" else _LONG_AGO
    return None


class _ModelLimits(Record):
    max_context_window_tokens: Number = None
    max_prompt_tokens: Number = None
    max_output_tokens: Number = None


class _Capabilities(Record):
    limits: _ModelLimits | None = None


class _Model(Record):
    id: str | None = None
    capabilities: _Capabilities | None = None


def window_in(folder: str, model: str | None) -> int | None:
    """Return a model's context window in tokens, according to a debug log's `models.json`."""
    return (_read_windows(os.path.join(folder, "models.json")) or {}).get(model or "")


@cached_until_changed
def _read_windows(path: str) -> dict[str, int]:
    found = {}
    for one in decode_file(path, list[_Model]):
        limits = one.capabilities.limits if one.capabilities else None
        if one.id and limits:
            parts = token_count(limits.max_prompt_tokens) + token_count(limits.max_output_tokens)
            found[one.id] = token_count(limits.max_context_window_tokens) or parts
    return {name: window for name, window in found.items() if window}


class CallSpan(msgspec.Struct, frozen=True):
    row: int
    id: str
    at_ms: float
    session: str
    model: str | None
    usage: Usage
    nano: float | None
    parent: str | None
    name: str
    response: str | None


def _read_spans(connection: sqlite3.Connection, after: str | float) -> Iterator[CallSpan]:
    """Yield the calls after row id `after`. Yields nothing if the table format is unknown."""
    known = columns(connection, "spans")
    if not known >= _COLUMNS:
        return
    wanted = (
        "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "request_model",
        "response_model", "agent_name",
    )  # fmt: skip
    fields = ", ".join(f"s.{name}" if name in known else "NULL" for name in wanted)
    attribute = "(SELECT value FROM span_attributes a WHERE a.span_id = s.span_id AND a.key = ?)"
    rows = connection.execute(
        f"SELECT s.rowid, s.span_id, s.start_time_ms, s.chat_session_id, {fields},"  # noqa: S608
        f" {attribute}, {attribute}, {attribute}, {attribute} FROM spans s"
        f" WHERE s.operation_name = 'chat' AND s.rowid > ?"
        " ORDER BY s.rowid",
        (_WRITTEN, _NANO_AIU, _PARENT, _RESPONSE, after),
    )
    for row in rows:
        prompt, cached, output, reasoning = (token_count(number) for number in row[4:8])
        usage = reported_usage(prompt, output, cached, token_count(row[11]), reasoning)
        yield CallSpan(
            row[0], str(row[1]), float(row[2] or 0), str(row[3] or ""), row[9] or row[8], usage,
            token_count(row[12]) or None, row[13], str(row[10] or ""), row[14],
        )  # fmt: skip


def trace_events(
    project_of: Callable[[str], Storage], connection: sqlite3.Connection, state: DatabaseState
) -> StoreRead:
    """Read the calls after the last known row, or all calls if the database was replaced.

    Args:
        project_of: Returns the project of a session, given the session's id.
        connection: The database.
        state: The reader's state, which is updated.
    """
    newest = connection.execute("SELECT max(rowid) FROM spans").fetchone()[0] or 0
    if newest < float(state.at or 0):
        state.at, state.sessions = None, {}
    project = lru_cache(project_of)
    calls: list[CallFinished] = []
    for span in _read_spans(connection, state.at or 0):
        name, at = span.parent or span.session, time_from_ms(span.at_ms)
        session = state.sessions.get(name) or SessionState(name, rank=TRACE_RANK)
        session.work_in("\n".join(project(name).named_folders))
        if not span.parent and span.usage.prompt_tokens and not _is_aside(span.name):
            session.model = span.model
            session.track = session.track.call(CallSize.of(span.usage, span.model))
            session.touch(at)
            state.sessions[name] = session
        calls += session.call(
            at,
            span.usage,
            span.id,
            span.model,
            PROVIDER,
            category="subagent" if span.parent else "main",
            reported_cost=nano_credits_to_usd(span.nano),
            telemetry_id=span.response,
        )
    state.at = newest
    sessions = [session.snapshot() for session in state.sessions.values()]
    return StoreRead(calls, sessions)


def traced_since(path: str, session: str) -> float | None:
    """Return the time of a session's first call in the traces, in milliseconds since 1970.

    Returns None if the traces do not contain the session.
    """
    if not os.path.exists(path):
        return None
    try:
        with read_only(path) as connection:
            if not columns(connection, "spans") >= _COLUMNS:
                return None
            row = connection.execute(
                "SELECT min(start_time_ms) FROM spans"
                " WHERE operation_name = 'chat' AND chat_session_id = ?",
                (session,),
            ).fetchone()
    except OSError:
        return None
    return None if row[0] is None else float(row[0])


def _is_aside(name: str) -> bool:
    return any(part in name.lower() for part in _ASIDE)
