"""Reads Copilot's chat sessions in VS Code: `chatSessions/<session>.jsonl` (formerly `.json`).

The extension may also write debug logs and a database of traces, which are more accurate. Calls
are read from the traces if possible, then from the debug log, and otherwise from the chat session.

A chat is stored as its start and the changes of it: a line sets, appends to or deletes a value. The
lines are applied to a typed record, and changes to fields that the record does not declare are
ignored. `promptTokens` is the prompt size of the latest call. This is the context size, not the
billed input. `completionTokens` is the output of the whole turn. Only `modelTotals` contains the
total input of a turn.

Debug logs and traces contain the complete input of each call, and they use the same span ids. In
traces, an `invoke_agent` span contains the total of its calls.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes
from sidecar.agents.databases import DatabaseState, columns, read_database, read_only
from sidecar.agents.file_reading import (
    LONGEST_LINE,
    CamelRecord,
    Number,
    Record,
    cached_until_changed,
    credits_to_usd,
    decode_file,
    nano_credits_to_usd,
    reported_usage,
    time_from_ms,
    time_from_ns,
    token_count,
)
from sidecar.agents.folders import Places, Roots, editor_folders
from sidecar.agents.session_events import (
    CallFinished,
    CallSize,
    Store,
    StoredSession,
    StoreRead,
    StoreReader,
)
from sidecar.agents.stores import (
    NOT_VISIBLE,
    ContextTrack,
    Lines,
    SessionLines,
    SessionState,
    StartOverError,
    database_store,
    first_records,
    list_folder,
    read_lines,
    read_records,
    reader_state,
    record_at,
    store_from_path,
)
from sidecar.agents.vscode_storage import (
    Storage,
    Uri,
    is_server,
    local_path,
    own_window,
    storage,
    storages,
)
from sidecar.messages.vendor_usage import Usage
from sidecar.models.catalogue import known_window, provider_of

_AGENT = "copilot-chat"
_PROVIDER = "github-copilot"
_SUFFIXES = (".jsonl", ".json")
_CHATS, _EMPTY = "chatSessions", "emptyWindowChatSessions"
_EXTENSION = "GitHub.copilot-chat"
_LOGS, _TRANSCRIPTS, _TRACES = "debug-logs", "transcripts", "agent-traces.db"
_MAIN = "main.jsonl"
_TRANSCRIPT, _CHAT, _LOG, _TRACE = range(-1, 3)
"""The rank of each store type. A session is read from its store with the highest rank."""
_TITLE = ("customTitle",)
_INITIAL, _SET, _PUSH, _DELETE = range(4)
_MOST_ITEMS = 1 << 16


class _Mutation(Record):
    """A line of a chat. Its value is decoded when the line is applied."""

    kind: int
    path: tuple[str | int, ...] = msgspec.field(default=(), name="k")
    value: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="v")
    length: int | None = msgspec.field(default=None, name="i")


_decode_mutation = typed.decoder(_Mutation)
"""Decodes a line of a chat. Raises msgspec.DecodeError."""


def _apply_mutation(state: Record, line: _Mutation) -> None:
    """Apply a line to a record. Changes to undeclared fields are ignored.

    Raises:
        msgspec.DecodeError: The value does not match the type of the field.
    """
    holder: Any = state
    kind: Any = type(state)
    for step in line.path[:-1]:
        holder, kind = _get_child(holder, step), _type_of(kind, step)
        if holder is None or kind is None:
            return
    target = _type_of(kind, line.path[-1]) if line.path else None
    if target is None:
        return
    if line.kind == _SET:
        _set_child(holder, line.path[-1], _decoder_for(target)(line.value))
    elif line.kind == _DELETE:
        _set_child(holder, line.path[-1], None)
    elif line.kind == _PUSH:
        _append_items(holder, line.path[-1], _decoder_for(target)(line.value) or [], line.length)


def _append_items(holder: Any, step: str | int, more: Any, length: int | None) -> None:
    items = _get_child(holder, step)
    kept = [] if items is None else items if length is None else items[: max(0, length)]
    if isinstance(kept, list) and isinstance(more, list):
        _set_child(holder, step, [*kept, *more])


def _fields_of(holder: Any) -> dict[str | int, tuple[str, Any]]:
    kind: Any = type(holder)
    return _fields_by_name(kind)


def _get_child(holder: Any, step: str | int) -> Any:
    if isinstance(holder, list):
        return holder[step] if isinstance(step, int) and 0 <= step < len(holder) else None
    field = _fields_of(holder).get(step)
    return None if field is None else getattr(holder, field[0])


def _set_child(holder: Any, step: str | int, value: Any) -> None:
    if not isinstance(holder, list):
        if field := _fields_of(holder).get(step):
            setattr(holder, field[0], value)
    elif isinstance(step, int) and 0 <= step < _MOST_ITEMS:
        holder += [None] * (step + 1 - len(holder))
        holder[step] = value


def _type_of(kind: Any, step: str | int) -> Any:
    for one in (kind, *get_args(kind)):
        if get_origin(one) is list:
            return get_args(one)[0] if isinstance(step, int) else None
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return _fields_by_name(one).get(step, (None, None))[1]
    return None


@lru_cache(maxsize=64)
def _fields_by_name(kind: type) -> dict[str | int, tuple[str, Any]]:
    if not issubclass(kind, msgspec.Struct):
        return {}
    return {one.encode_name: (one.name, one.type) for one in msgspec.structs.fields(kind)}


@lru_cache(maxsize=256)
def _decoder_for(kind: Any) -> typed.Decoder[Any]:
    return typed.decoder(kind | None)


_COMPLETE, _SEALED = 1, (1, 2, 3)
_NO_SUMMARY = (b"null", b'""', b"")
_VENDORS = {"gemini": "google", "xai": "x-ai", "copilot": _PROVIDER, "copilotcli": _PROVIDER}


class _Named(Record):
    id: str | None = None
    name: str | None = None


class _ReplyState(CamelRecord):
    value: int | None = None
    completed_at: Number = None


class _Usage(CamelRecord):
    prompt_tokens: Number = None
    completion_tokens: Number = None


class _CallTotals(CamelRecord):
    """The model and usage of a call or turn."""

    model: str | None = None
    input_tokens: Number = None
    cached_tokens: Number = None
    output_tokens: Number = None

    @property
    def usage(self) -> Usage:
        return reported_usage(self.input_tokens, self.output_tokens, self.cached_tokens)


class _Summary(CamelRecord):
    tool_call_round_id: str | None = None
    outcome: str | None = None
    text: msgspec.Raw = msgspec.Raw(b"")

    @property
    def worked(self) -> bool:
        return self.outcome in (None, "", "success")


class _Round(Record):
    id: str | None = None
    summary: msgspec.Raw = msgspec.Raw(b"null")


class _Metadata(CamelRecord):
    prompt_tokens: Number = None
    output_tokens: Number = None
    resolved_model: str | None = None
    summary: _Summary | None = None
    summaries: list[_Summary] | None = None
    tool_call_rounds: Sequence[_Round] | None = None
    compacted: bool = msgspec.field(default=False, name="-compacted")

    def __post_init__(self) -> None:
        rounds, self.tool_call_rounds = self.tool_call_rounds or [], None
        summaries = (self.summary, *(self.summaries or []))
        made = [one.tool_call_round_id for one in summaries if one and one.worked]
        made += [one.id for one in rounds if bytes(one.summary) not in _NO_SUMMARY]
        newest = rounds[-1].id if rounds else None
        self.summary = self.summaries = None
        self.compacted = self.compacted or (bool(made) and (newest is None or newest in made))


class _Result(CamelRecord):
    prompt_tokens: Number = None
    output_tokens: Number = None
    usage: _Usage | None = None
    metadata: _Metadata | None = None


class _Turn(CamelRecord):
    request_id: str | None = None
    timestamp: Number = None
    model_id: str | None = None
    prompt_tokens: Number = None
    completion_tokens: Number = None
    copilot_credits: Number = None
    model_totals: list[_CallTotals | None] | None = None
    model_state: _ReplyState | None = None
    agent: _Named | None = None
    slash_command: _Named | None = None
    result: _Result | None = None

    @property
    def is_live(self) -> bool:
        return self.model_state is not None and self.model_state.value not in _SEALED

    @property
    def ended_at(self) -> datetime | None:
        """When the turn ended, or None if it is still running."""
        if self.is_live:
            return None
        completed = self.model_state.completed_at if self.model_state else None
        return time_from_ms(completed) or time_from_ms(self.timestamp)

    @property
    def compacted(self) -> bool:
        """Whether the turn ended with a compaction.

        If so, `prompt` is the size before the compaction.
        """
        names = [one.name for one in (self.agent, self.slash_command) if one]
        return "compact" in names or self._metadata.compacted

    @property
    def prompt(self) -> int:
        """The latest call's prompt size in tokens, or 0 if unknown."""
        result = self.result or _Result()
        older = result.usage or _Usage()
        numbers = (self.prompt_tokens, self._metadata.prompt_tokens, result.prompt_tokens)
        return next((n for n in map(token_count, (*numbers, older.prompt_tokens)) if n), 0)

    @property
    def last_output(self) -> int:
        """The output, in tokens, of the last call in a completed turn, or 0 if unknown."""
        finished = self.model_state is None or self.model_state.value == _COMPLETE
        return token_count(self._metadata.output_tokens) if finished else 0

    @property
    def output(self) -> int:
        """The total output of the turn in tokens. The actual output may be larger."""
        result = self.result or _Result()
        older = token_count(result.output_tokens) or token_count(
            (result.usage or _Usage()).completion_tokens
        )
        return (
            token_count(self.completion_tokens)
            or token_count(self._metadata.output_tokens)
            or older
        )

    @property
    def model(self) -> str | None:
        named = (self.model_id or "").rpartition("/")[2]
        return self._metadata.resolved_model or (named if named != "auto" else None) or None

    @property
    def provider(self) -> str:
        """The provider that bills the turn, based on the vendor in the model's id."""
        vendor = (self.model_id or "copilot/").partition("/")[0]
        return _VENDORS.get(vendor) or provider_of(vendor + "/" + (self.model or ""))

    @property
    def _metadata(self) -> _Metadata:
        found = self.result.metadata if self.result else None
        return found or _Metadata()


class _Limits(CamelRecord):
    max_input_tokens: Number = None
    max_output_tokens: Number = None


class _Configuration(CamelRecord):
    context_size: Number = None


class _Selected(CamelRecord):
    identifier: str | None = None
    metadata: _Limits | None = None
    model_configuration: _Configuration | None = None

    @property
    def window(self) -> int | None:
        """The context window in tokens, which is the sum of the input and output limits.

        Some providers report the whole window as the input limit, in which case the output limit
        is ignored.
        """
        limits = self.metadata or _Limits()
        chosen = token_count(
            self.model_configuration.context_size if self.model_configuration else None
        )
        prompt = chosen or token_count(limits.max_input_tokens)
        name = (self.identifier or "").rpartition("/")[2]
        if not prompt or known_window(name) == prompt:
            return prompt or None
        return prompt + token_count(limits.max_output_tokens)


class _Input(CamelRecord):
    selected_model: _Selected | None = None


class _StoredChat(CamelRecord):
    """A chat session. Its text is not decoded."""

    session_id: str | None = None
    custom_title: str | None = None
    working_directory: str | Uri | None = None
    requests: list[_Turn | None] | None = None
    input_state: _Input | None = None

    @property
    def turns(self) -> list[_Turn]:
        """All requests that have not been removed."""
        return [one for one in self.requests or () if one is not None]

    @property
    def window(self) -> int | None:
        """The selected model's context window in tokens, or None if unknown."""
        selected = self.input_state.selected_model if self.input_state else None
        return selected.window if selected else None

    @property
    def selected(self) -> str | None:
        """The selected model's id, including the vendor."""
        selected = self.input_state.selected_model if self.input_state else None
        return selected.identifier if selected else None

    @property
    def track(self) -> ContextTrack:
        track = ContextTrack()
        for one in self.turns:
            if one.compacted:
                track = track.compaction()
            elif one.prompt or one.output or not one.is_live:
                track = track.call(CallSize(one.prompt, one.last_output, one.model))
        return track


class _ToolCall(Record):
    id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _ContentRound(_Round, rename="camel"):
    """A model's reply, with its tool calls."""

    response: msgspec.Raw = msgspec.Raw(b"")
    thinking: msgspec.Raw = msgspec.Raw(b"")
    tool_calls: list[_ToolCall] | None = None


class _ContentMetadata(_Metadata):
    rendered_user_message: msgspec.Raw = msgspec.Raw(b"")
    tool_call_rounds: Sequence[_ContentRound] | None = None
    tool_call_results: dict[str, msgspec.Raw] | None = None

    def __post_init__(self) -> None:
        kept = self.tool_call_rounds, self.summary, self.summaries
        super().__post_init__()
        self.tool_call_rounds, self.summary, self.summaries = kept


class _ContentResult(_Result):
    metadata: _ContentMetadata | None = None


class _Prompt(Record):
    text: msgspec.Raw = msgspec.Raw(b"")


class _ResponsePart(Record):
    kind: str | None = None
    value: msgspec.Raw = msgspec.Raw(b"")


class _ContentTurn(_Turn):
    """A turn and its messages. The text of the messages is never decoded."""

    message: _Prompt | None = None
    response: list[_ResponsePart] | None = None
    result: _ContentResult | None = None

    @property
    def summaries(self) -> dict[str, msgspec.Raw]:
        """The turn's summaries. Each key is the id of the last round that the summary replaces."""
        made = (self._metadata.summary, *(self._metadata.summaries or ()))
        return {one.tool_call_round_id or "": one.text for one in made if one and one.worked}

    def add_to(self, sizes: ContextSizes, summaries: dict[str, msgspec.Raw]) -> None:
        """Add the turn's parts in order.

        Args:
            sizes: The sizes of the earlier turns.
            summaries: The summaries from all turns, keyed by round id.
        """
        prompt = (self.message or _Prompt()).text
        sizes.add("user", prompt)
        # The rendered message consists of the prompt, instructions and attached files.
        sizes.add("attachment", bytes(self._metadata.rendered_user_message)[len(bytes(prompt)) :])
        rounds = self._metadata.tool_call_rounds or (self._shown_reply(),)
        for one in rounds:
            if one is rounds[-1]:
                sizes.add_prompt(self.prompt, has_all_before=True)
            self._add_round(one, sizes)
            text = summaries.get(one.id or "", one.summary)
            if bytes(text) not in _NO_SUMMARY:
                sizes.compact()
                sizes.add("summary", text)
        if self.compacted:
            sizes.compact()

    @property
    def _metadata(self) -> _ContentMetadata:
        return (self.result.metadata if self.result else None) or _ContentMetadata()

    def _add_round(self, one: _ContentRound, sizes: ContextSizes) -> None:
        results = self._metadata.tool_call_results or {}
        sizes.add("assistant", one.response)
        sizes.add("assistant", one.thinking)
        for call in one.tool_calls or ():
            sizes.add("call", call.arguments, call.name or "")
            if (result := results.get(call.id or "")) is not None:
                sizes.add("result", result, call.name or "")

    def _shown_reply(self) -> _ContentRound:
        """Return the displayed text as a round. Used for turns that have no recorded rounds."""
        texts = (bytes(one.value) for one in self.response or () if one.kind is None)
        return _ContentRound(response=msgspec.Raw(b"".join(texts)))


class _ContentChat(_StoredChat):
    """A chat session with its messages."""

    requests: list[_ContentTurn | None] | None = None  # type: ignore[assignment]

    def add_to(self, sizes: ContextSizes) -> None:
        turns = [one for one in self.requests or () if one is not None]
        summaries = {name: text for one in turns for name, text in one.summaries.items()}
        for one in turns:
            one.add_to(sizes, summaries)


def _calls_of(request: _Turn, session: SessionState) -> Iterator[CallFinished]:
    """Yield a turn's calls: one per model if totals are available, otherwise just one."""
    if request.request_id is None:
        return
    usd = credits_to_usd(request.copilot_credits)
    for number, (model, usage) in enumerate(_usage_by_model(request)):
        yield from session.call(
            time_from_ms(request.timestamp),
            usage,
            f"{request.request_id}/{number}" if number else request.request_id,
            model,
            request.provider,
            reported_cost=usd if number == 0 else None,
        )


def _usage_by_model(request: _Turn) -> Sequence[tuple[str | None, Usage]]:
    totals = [one for one in request.model_totals or () if one is not None]
    if totals:
        return [(one.model or request.model, one.usage) for one in totals]
    return [(request.model, reported_usage(request.prompt, request.output))]


_LONG_AGO = 0.0
_ASIDE = ("title", "categori", "inline", "nes", "commit", "intent", "subagent", "search")
"""A request is not part of the conversation if its name contains one of these strings."""
_WRITTEN = "gen_ai.usage.cache_creation.input_tokens"
_COLUMNS = {"span_id", "operation_name", "chat_session_id", "start_time_ms"}
_NANO_AIU = "copilot_chat.copilot_usage_nano_aiu"
_RESPONSE = "gen_ai.response.id"
_PARENT = "copilot_chat.parent_chat_session_id"


class _Attributes(_CallTotals):
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


class _LogState(SessionLines):
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
        self.session.window = _window_in(self.folder, newest.model if newest else None)
        yield self.session.snapshot()

    def _calls_of_line(self, line: _Line, attrs: _Attributes) -> Iterator[CallFinished]:
        if self.until is not None and (line.ts or 0) >= self.until:
            return
        yield from self.session.call(
            time_from_ms(line.ts),
            attrs.usage,
            line.span_id or f"{self.session.id}/{line.ts}",
            attrs.model,
            _PROVIDER,
            category="subagent" if self.child else "summary" if line.is_summary else "main",
            reported_cost=nano_credits_to_usd(attrs.copilot_usage_nano_aiu),
        )


_TURN = ("turn_start", "user_message", "turn_end")


def _log_begins(path: str) -> float | None:
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


def _window_in(folder: str, model: str | None) -> int | None:
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


class _CallSpan(msgspec.Struct, frozen=True):
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


def _read_spans(connection: sqlite3.Connection, after: str | float) -> Iterator[_CallSpan]:
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
        yield _CallSpan(
            row[0], str(row[1]), float(row[2] or 0), str(row[3] or ""), row[9] or row[8], usage,
            token_count(row[12]) or None, row[13], str(row[10] or ""), row[14],
        )  # fmt: skip


def _trace_events(
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
        session = state.sessions.get(name) or SessionState(name, rank=_TRACE)
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
            _PROVIDER,
            category="subagent" if span.parent else "main",
            reported_cost=nano_credits_to_usd(span.nano),
            telemetry_id=span.response,
        )
    state.at = newest
    sessions = [session.snapshot() for session in state.sessions.values()]
    return StoreRead(calls, sessions)


def _traced_since(path: str, session: str) -> float | None:
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


_Chat = TypeVar("_Chat", bound=_StoredChat)


class CopilotChat(StoreReader):
    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(
            path for user in editor_folders(places, _AGENT) for path in _folders_to_watch(user)
        )

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        for user in editor_folders(places, _AGENT):
            for one in storages(user):
                if roots is None or roots.contains("\n".join(one.named_folders)):
                    yield from _stores_of_project(one.path)
            yield from _chat_stores(str(user / "globalStorage" / _EMPTY))
            yield from _stores_at(str(user / "globalStorage" / _EXTENSION.lower() / _TRACES))

    def store_at(self, places: Places, path: str) -> Store | None:
        path = path.removesuffix("-wal").removesuffix("-shm")
        inside = any(path.startswith(f"{user}{os.sep}") for user in editor_folders(places, _AGENT))
        return next(_stores_at(path), None) if inside else None

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        kind, path = _kind_of_file(store.path), Path(store.path)
        if kind == _TRACE:
            events_of = partial(_trace_events, partial(_project_with_session, path.parents[2]))
            return read_database(store, state, DatabaseState, events_of)
        if kind == _TRANSCRIPT:
            session = _transcript_session(store)
            return StoreRead(sessions=[session])
        if kind == _LOG:
            return read_lines(store, state, partial(_log_state, path))
        before = _known_until(state)
        if path.suffix == ".json":
            return _read_flat(store, before)
        return read_lines(store, state, partial(_State.of, store.path, before))

    def title(self, store: Store, title_at: str) -> str | None:
        if store.path.endswith(".json"):
            return decode_file(store.path, _StoredChat).custom_title
        return _title_of_line(store.path, title_at)

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        """Add the parts of a session's chat file. `path` may be any of the session's stores."""
        chat_path = _chat_of(path, session)
        if chat_path is None:
            return
        if chat_path.endswith(".json"):
            chat = decode_file(chat_path, _ContentChat)
        else:
            chat = _ContentChat()
            for one in read_records(chat_path, _decode_mutation):
                with suppress(msgspec.DecodeError):
                    chat = _apply_line(chat, one)
        chat.add_to(sizes)


@lru_cache(maxsize=256)
def _title_of_line(path: str, title_at: str) -> str | None:
    change = record_at(path, title_at.partition("@")[0], _decode_mutation, LONGEST_LINE)
    if change is None:
        return None
    try:
        if change.kind == _INITIAL:
            return typed.decode_leniently(change.value, _StoredChat).custom_title
        return typed.decode(change.value, str) if change.path == _TITLE else None
    except msgspec.DecodeError:
        return None


READER = CopilotChat()


class _State(msgspec.Struct):
    path: str
    session: SessionState
    chat: _StoredChat = msgspec.field(default_factory=_StoredChat)
    until: float | None = None
    """The time of the first call in a more accurate store, in milliseconds since 1970."""
    is_shown: bool = False

    @classmethod
    def of(cls, path: str, until: float | None = None) -> _State:
        return cls(path, SessionState(_session_of(path), rank=_CHAT), until=until)

    def read(self, lines: Lines) -> Iterable[CallFinished]:
        """Replay the lines and return their calls.

        The result includes calls in turns that later lines remove.
        """
        self.find_better_stores()
        calls: dict[str | None, CallFinished] = {}
        changed: set[int] = set()
        for one in lines.records(_decode_mutation):
            try:
                if _moves_turns(one):
                    calls |= self.calls(changed)
                known = len(self.chat.requests or ())
                self.chat = _apply_line(self.chat, one)
            except msgspec.DecodeError:
                lines.skipped += 1
                continue
            if self.chat.custom_title or one.path == _TITLE:
                # The modification time is included because the position is invalid after a rewrite.
                self.session.title_at = f"{lines.position}@{os.stat(self.path).st_mtime_ns}"
                self.chat.custom_title = None
            changed = _changed_turns(self.chat, one, changed, known)
        calls |= self.calls(changed)
        return calls.values()

    def find_better_stores(self) -> None:
        """Set `until` to the time of this session's first call in the traces or the debug log."""
        traced = _traced_since(str(_traces_of(self.path)), _session_of(self.path))
        begins = (traced, _log_begins(str(_log_of(self.path))), self.until)
        self.until = min((at for at in begins if at is not None), default=None)

    def calls(self, numbers: Iterable[int]) -> dict[str | None, CallFinished]:
        """Return the calls in the given turns that started before `until`, keyed by id."""
        name, requests = self.chat.session_id or self.session.id, self.chat.requests or ()
        turns = (requests[number] for number in numbers if number < len(requests))
        session = SessionState(name, folder="\n".join(_project_of(self.path).named_folders))
        return {
            call.request_id: call
            for turn in turns
            if turn is not None and (self.until is None or (turn.timestamp or 0) < self.until)
            for call in _calls_of(turn, session)
        }

    def snapshots(self) -> Iterable[StoredSession]:
        chat, session = self.chat, self.session
        if not chat.turns:
            if self.is_shown:
                raise StartOverError  # the session has become empty and must be removed
            return ()
        self.is_shown = True
        newest = chat.turns[-1]
        own = local_path(chat.working_directory, on_server=is_server(self.path))
        folders = (*_project_of(self.path).named_folders, own or "")
        session.id = chat.session_id or session.id
        session.first_folder = session.folder = "\n".join(filter(None, folders)) or None
        session.began_at = time_from_ms(chat.turns[0].timestamp)
        session.updated_at = newest.ended_at or time_from_ns(os.stat(self.path).st_mtime_ns)
        session.model, session.active, session.track = newest.model, newest.is_live, chat.track
        session.window = _window_of_model(self.path, chat)
        return (session.snapshot(),)


def _read_flat(store: Store, until: float | None) -> StoreRead:
    state = _State.of(store.path, until)
    state.chat = decode_file(store.path, _StoredChat)
    state.find_better_stores()
    if state.chat.custom_title:
        state.session.title_at = state.session.id
        state.chat.custom_title = None
    calls = state.calls(range(len(state.chat.requests or ()))).values()
    return StoreRead(
        [call for call in calls if call.counts],
        [*state.snapshots()],
        state=msgspec.msgpack.encode(_Until(state.until)),
        bytes_read=store.size,
    )


class _Until(msgspec.Struct, frozen=True, array_like=True, tag="until"):
    until: float | None


def _moves_turns(one: _Mutation) -> bool:
    return one.kind == _INITIAL or (one.path[:1] == ("requests",) and len(one.path) < 3)


def _changed_turns(chat: _StoredChat, one: _Mutation, before: set[int], known: int) -> set[int]:
    if not _moves_turns(one):
        number = one.path[1] if one.path[:1] == ("requests",) else None
        return before | {number} if isinstance(number, int) else before
    start = 0
    if one.kind == _PUSH and one.path == ("requests",):
        start = known if one.length is None else max(0, one.length)
    return set(range(start, len(chat.requests or ())))


def _apply_line(chat: _Chat, one: _Mutation) -> _Chat:
    """Apply a line to a chat session, and return the resulting session.

    Raises:
        msgspec.DecodeError: A value has the wrong type.
    """
    if one.kind == _INITIAL:
        return typed.decode_leniently(one.value, type(chat))
    _apply_mutation(chat, one)
    return chat


def _window_of_model(path: str, chat: _StoredChat) -> int | None:
    window = chat.window
    name, user = (chat.selected or "").rpartition("/")[2], _user_of(path)
    if window is None and name:
        window = _window_in(str(_log_of(path).parent), name)
    return own_window(user, name) if window is None and name and user else window


def _log_state(path: Path) -> _LogState:
    name = _session_of(str(path))
    session = SessionState(name, rank=_LOG)
    session.work_in("\n".join(_project_of(str(path)).named_folders))
    return _LogState(
        session,
        str(path.parent),
        child=path.name != _MAIN,
        until=_traced_since(str(_traces_of(str(path))), name),
    )


def _transcript_session(store: Store) -> StoredSession:
    session = SessionState(_session_of(store.path), rank=_TRANSCRIPT)
    session.work_in("\n".join(_project_of(store.path).named_folders))
    return session.snapshot("lower bound", note=NOT_VISIBLE)


def _folders_to_watch(user: Path) -> Iterator[str]:
    for entry in list_folder(user / "workspaceStorage"):
        yield os.path.join(entry.path, _CHATS)
        yield os.path.join(entry.path, _EXTENSION)
    for name in (_EMPTY, _EXTENSION.lower()):
        yield str(user / "globalStorage" / name)


def _stores_of_project(path: str) -> Iterator[Store]:
    chats, extension = os.path.join(path, _CHATS), os.path.join(path, _EXTENSION)
    yield from _chat_stores(chats)
    for session in list_folder(os.path.join(extension, _LOGS)):
        for entry in list_folder(session.path):
            yield from _stores_at(entry.path)
    if not os.path.isdir(chats):
        for entry in list_folder(os.path.join(extension, _TRANSCRIPTS)):
            yield from _stores_at(entry.path)


def _chat_stores(folder: str) -> Iterator[Store]:
    names = {entry.name for entry in list_folder(folder)}
    for name in sorted(names):
        if name.endswith(".jsonl") or f"{name}l" not in names:
            yield from _stores_at(os.path.join(folder, name))


def _stores_at(path: str) -> Iterator[Store]:
    kind, store = _kind_of_file(path), None
    if kind == _TRACE:
        store = database_store(_AGENT, path)
    elif kind is not None:
        store = store_from_path(_AGENT, path, live=kind != _LOG or os.path.basename(path) == _MAIN)
    if store is not None:
        yield store


def _kind_of_file(path: str) -> int | None:
    parts = tuple(path.split(os.sep)[-4:])
    if parts[-2:] == (_EXTENSION.lower(), _TRACES):
        return _TRACE
    if not path.endswith(_SUFFIXES) or len(parts) < 4:
        return None
    if parts[-2] in (_CHATS, _EMPTY):
        return _CHAT
    if parts[-3:-1] == (_EXTENSION, _TRANSCRIPTS):
        return _TRANSCRIPT
    return _LOG if parts[:2] == (_EXTENSION, _LOGS) and path.endswith(".jsonl") else None


def _storage_of(path: str) -> Path:
    above = Path(path).parents
    return above[{_CHAT: 1, _TRANSCRIPT: 2, _LOG: 3}[_kind_of_file(path) or _CHAT]]


def _project_of(path: str) -> Storage:
    return storage(str(_storage_of(path)))


def _session_of(path: str) -> str:
    return Path(path).parent.name if _kind_of_file(path) == _LOG else Path(path).stem


def _log_of(chat: str) -> Path:
    return _storage_of(chat) / _EXTENSION / _LOGS / Path(chat).stem / _MAIN


def _chat_of(path: str, session: str) -> str | None:
    """Return the path of the chat session for any type of store."""
    kind = _kind_of_file(path)
    if kind == _CHAT:
        return path
    traced = _project_with_session(Path(path).parents[2], session).path if kind == _TRACE else None
    folder = Path(traced) if traced is not None else _storage_of(path)
    names = (str(folder / _CHATS / f"{session}{suffix}") for suffix in _SUFFIXES)
    return next(filter(os.path.isabs, filter(os.path.exists, names)), None)


def _user_of(path: str) -> Path | None:
    above = Path(path).parents
    return next((one.parent for one in above if one.name.endswith("Storage")), None)


def _traces_of(path: str) -> Path:
    user = _user_of(path) or Path(path).parent
    return user / "globalStorage" / _EXTENSION.lower() / _TRACES


def _project_with_session(user: Path, session: str) -> Storage:
    for one in storages(user):
        folder = Path(one.path)
        names = (folder / _CHATS / f"{session}{suffix}" for suffix in _SUFFIXES)
        if any(map(os.path.exists, (*names, folder / _EXTENSION / _LOGS / session))):
            return one
    return Storage("", ())


def _known_until(state: bytes) -> float | None:
    known = reader_state(state, _State)
    if known is not None:
        return known.until
    try:
        return msgspec.msgpack.decode(state, type=_Until).until
    except msgspec.DecodeError:
        return None
