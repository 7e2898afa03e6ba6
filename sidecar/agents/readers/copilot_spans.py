"""Single calls of VS Code's Copilot: its debug logs, and its database of traces.

Both say each call with all its input, cached or not, and bear the same span ids. In traces, a span
`invoke_agent` holds the sum of its calls.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.databases import LastRow, columns, read_only
from sidecar.agents.fields import Number, Record, count, credits_usd, from_ms, whole_file
from sidecar.agents.folding import Folded
from sidecar.agents.line_files import Decoded, fold_entries
from sidecar.agents.occupancy import Track
from sidecar.agents.readers.copilot_requests import AGENT, PROVIDER, CallTotals
from sidecar.agents.tail import first_lines, lines_backwards, open_quietly
from sidecar.agents.values import Call, Reading
from sidecar.messages.usage import Usage, included

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

_TAIL = 16 << 20
_HEAD = 64 << 10
_NANO = 10**9
_LONG_AGO = 0.0
_ASIDE = ("title", "categori", "inline", "nes", "commit", "intent", "subagent", "search")
"""Parts of the names of requests that are beside the conversation."""
_WRITTEN = "gen_ai.usage.cache_creation.input_tokens"
_COLUMNS = {"span_id", "operation_name", "chat_session_id", "start_time_ms"}
_NANO_AIU = "copilot_chat.copilot_usage_nano_aiu"
_PARENT = "copilot_chat.parent_chat_session_id"


class _Attributes(CallTotals):
    copilot_usage_nano_aiu: Number = None
    debug_name: str | None = None


class _Line(Record, rename="camel"):
    ts: Number = None
    type: str | None = None
    span_id: str | None = None
    status: str | None = None
    attrs: _Attributes | None = None

    @property
    def is_main(self) -> bool:
        """Whether it is a call of the conversation itself."""
        name = (self.attrs.debug_name if self.attrs else None) or ""
        return self.status in (None, "ok") and not _is_aside(name)


class LogState(msgspec.Struct, frozen=True):
    """Of a debug log."""

    session: str
    workspace: str
    child: bool
    until: float | None = None
    """Milliseconds since 1970: calls from here on stand in a better store."""


_line = typed.decoder(_Line)


class NewestLines(msgspec.Struct, frozen=True):
    """What the newest lines of a debug log say."""

    track: Track
    at: datetime | None
    active: bool | None
    skipped: int


def newest_in_log(path: str) -> NewestLines:
    """The newest call of the conversation. Raises OSError."""
    track, at, active = Track(), None, None
    with open_quietly(path) as file:
        texts = (text for text in lines_backwards(file, most=_TAIL) if text.strip())
        lines = Decoded(texts, _line)
        for one in lines:
            at = at or from_ms(one.ts)
            if active is None and one.type in ("turn_start", "user_message", "turn_end"):
                active = one.type != "turn_end"
            if one.type != "llm_request" or one.attrs is None or not one.is_main:
                continue
            if "summar" in (one.attrs.debug_name or "").lower():
                track = track.compaction()
                break
            track = track.call(Reading.of(one.attrs.usage, one.attrs.model))
            if track.newest:
                break
    return NewestLines(track, at, active, lines.skipped)


def _call(state: LogState, one: _Line) -> Call | None:
    """The call that a line says, also a failed one that was answered nonetheless."""
    at = from_ms(one.ts)
    if one.type != "llm_request" or one.attrs is None or at is None:
        return None
    if state.until is not None and (one.ts or 0) >= state.until:
        return None
    nano, summary = (
        one.attrs.copilot_usage_nano_aiu,
        "summar" in (one.attrs.debug_name or "").lower(),
    )
    return Call(
        at=at,
        agent=AGENT,
        session=state.session,
        model=one.attrs.model or "unknown",
        provider=PROVIDER,
        usage=one.attrs.usage,
        request=one.span_id or f"{state.session}/{one.ts}",
        workspace=state.workspace,
        category="subagent" if state.child else "summary" if summary else "main",
        cost_usd=credits_usd(nano / _NANO) if nano else None,
    )


fold_log = fold_entries(b'"llm_request"', _line, _call)
"""The calls in a debug log."""


def log_begins(path: str) -> float | None:
    """From when on a debug log has its session's calls, in milliseconds since 1970.

    One that was cut, which begins elsewhere than with `session_start`, had them all. None where
    there is none.
    """
    with suppress(OSError):
        for one in Decoded(first_lines(path, _HEAD), _line):
            return one.ts if one.type == "session_start" else _LONG_AGO
    return None


class _Limits(Record):
    max_context_window_tokens: Number = None
    max_prompt_tokens: Number = None
    max_output_tokens: Number = None


class _Capabilities(Record):
    limits: _Limits | None = None


class _Model(Record):
    id: str | None = None
    capabilities: _Capabilities | None = None


def window_in(folder: str, model: str | None) -> int | None:
    """A model's window by the list beside a debug log; its three limits do not add up."""
    path = os.path.join(folder, "models.json")
    try:
        return _windows(path, os.stat(path).st_mtime_ns).get(model or "")
    except OSError:
        return None


@lru_cache(maxsize=16)
def _windows(path: str, _mtime_ns: int) -> dict[str, int]:
    found = {}
    for one in whole_file(path, list[_Model]):
        limits = one.capabilities.limits if one.capabilities else None
        if one.id and limits:
            parts = count(limits.max_prompt_tokens) + count(limits.max_output_tokens)
            found[one.id] = count(limits.max_context_window_tokens) or parts
    return {name: window for name, window in found.items() if window}


class CallSpan(msgspec.Struct, frozen=True):
    """A call."""

    row: int
    id: str
    at_ms: float
    session: str
    model: str | None
    usage: Usage
    nano: float | None
    parent: str | None
    name: str


def spans(
    connection: sqlite3.Connection, after: int, sessions: tuple[str, ...] | None = None
) -> Iterator[CallSpan]:
    """The calls after a row, of some sessions or of all; none of a form that is not known."""
    known = columns(connection, "spans")
    if not known >= _COLUMNS:
        return
    wanted = (
        "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "request_model",
        "response_model", "agent_name",
    )  # fmt: skip
    fields = ", ".join(f"s.{name}" if name in known else "NULL" for name in wanted)
    attribute = "(SELECT value FROM span_attributes a WHERE a.span_id = s.span_id AND a.key = ?)"
    chosen = None if sessions is None else msgspec.json.encode(sessions).decode()
    rows = connection.execute(
        f"SELECT s.rowid, s.span_id, s.start_time_ms, s.chat_session_id, {fields},"  # noqa: S608
        f" {attribute}, {attribute}, {attribute} FROM spans s"
        f" WHERE s.operation_name = 'chat' AND s.rowid > ?"
        " AND (? IS NULL OR s.chat_session_id IN (SELECT value FROM json_each(?)))"
        " ORDER BY s.rowid",
        (_WRITTEN, _NANO_AIU, _PARENT, after, chosen, chosen),
    )
    for row in rows:
        prompt, cached, output, reasoning = (_whole(number) for number in row[4:8])
        usage = included(prompt, cached, _whole(row[11]), 0, output, reasoning)
        yield CallSpan(
            row[0], str(row[1]), float(row[2] or 0), str(row[3] or ""), row[9] or row[8], usage,
            _whole(row[12]) or None, row[13], str(row[10] or ""),
        )  # fmt: skip


def fold_traces(
    workspaces: Callable[[str], str], connection: sqlite3.Connection, state: LastRow
) -> Folded[LastRow]:
    """The calls after the last row; from the first where the rows were written anew."""
    newest = connection.execute("SELECT max(rowid) FROM spans").fetchone()[0] or 0
    made = spans(connection, 0 if newest < state.row else state.row)
    calls = []
    for one in made:
        session, at = one.parent or one.session, from_ms(one.at_ms)
        if at is None:
            continue
        calls.append(
            Call(
                at=at,
                agent=AGENT,
                session=session,
                model=one.model or "unknown",
                provider=PROVIDER,
                usage=one.usage,
                request=one.id,
                workspace=workspaces(session),
                category="subagent" if one.parent else "main",
                cost_usd=credits_usd(one.nano / _NANO) if one.nano else None,
            )
        )
    return Folded(LastRow(newest), calls)


def traced_since(path: str, session: str) -> float | None:
    """From when on traces have a session's calls, in milliseconds since 1970; None for never."""
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


def newest_traced(connection: sqlite3.Connection, sessions: tuple[str, ...]) -> list[CallSpan]:
    """The newest call of the conversation itself in each of some sessions."""
    found = {}
    for one in spans(connection, 0, sessions):
        if not one.parent and one.usage.prompt_tokens and not _is_aside(one.name):
            found[one.session] = one
    return list(found.values())


def _is_aside(name: str) -> bool:
    return any(part in name.lower() for part in _ASIDE)


def _whole(number: object) -> int:
    """A number, of an attribute in text too; 0 where it is none."""
    try:
        return count(float(number))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0
