"""Reads Grok Build's `sessions/<folder>/<session>/updates.jsonl`, with the files beside it.

The updates contain the usage of each turn, which may be several calls. The calls themselves are in
`logs/unified.jsonl`, one log of all sessions, which Grok keeps short. What a turn used beyond the
calls in the log is recorded as one call. The folder is in `summary.json`, and Grok's own estimate
of the context's size in `signals.json`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from sidecar import typed
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    Record,
    TokenCount,
    cached_until_changed,
    last_lines,
    parse_iso_time,
    parse_time,
    reported_usage,
    time_from_ms,
    time_from_ns,
    try_decode_file,
)
from sidecar.agents.folders import Places
from sidecar.agents.session_events import CallFinished, CallSize, Store, StoredSession
from sidecar.agents.stores import (
    ContextTrack,
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    store_from_path,
    with_size_of,
)
from sidecar.messages.vendor_usage import Usage

_UPDATES, _SUMMARY, _SIGNALS = "updates.jsonl", "summary.json", "signals.json"
_USAGE = "usage.json"
_CHILD_FINISHED = "subagent_finished"
_LOG = Path("logs", "unified.jsonl")
_MOST_LOG = 16 << 20
"""How much of the log is read, from its end, in bytes."""
_INFERENCE = "shell.turn.inference_done"
_ENDED = "turn_completed"
_IN_TURN = (
    "user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call",
    "tool_call_update",
)  # fmt: skip
_COMPACTED = "auto_compact_completed"
_SUBAGENT = "subagent"
_ESTIMATE = "this is the agent's estimate until the next call"


class _Info(Record):
    id: str | None = None
    cwd: str | None = None


class _Summary(Record):
    info: _Info | None = None
    current_model_id: str | None = None
    generated_title: str | None = None
    parent_session_id: str | None = None
    session_kind: str | None = None
    head_branch: str | None = None


class _TurnUsage(CamelRecord):
    input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    cached_read_tokens: TokenCount = None
    cache_creation_tokens: TokenCount = None
    reasoning_tokens: TokenCount = None

    @property
    def usage(self) -> Usage:
        return reported_usage(
            self.input_tokens,
            self.output_tokens,
            self.cached_read_tokens,
            self.cache_creation_tokens,
            self.reasoning_tokens,
        )


class _Totals(Record):
    session: _TurnUsage | None = None


class _Signals(CamelRecord):
    context_tokens_used: TokenCount = None
    context_window_tokens: TokenCount = None


class _Update(Record):
    kind: str | None = msgspec.field(name="sessionUpdate", default=None)
    prompt_id: str | None = None
    child_session_id: str | None = None
    usage: _TurnUsage | None = None


class _Meta(CamelRecord):
    agent_timestamp_ms: Number = None


class _Params(Record):
    update: _Update | None = None
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


class _Line(Record):
    timestamp: str | float | None = None
    params: _Params | None = None

    @property
    def at(self) -> datetime | None:
        meta = self.params.meta if self.params else None
        return time_from_ms(meta.agent_timestamp_ms if meta else None) or parse_time(self.timestamp)


_line = typed.decoder(_Line)


class _Tokens(Record):
    prompt_tokens: TokenCount = None
    completion_tokens: TokenCount = None
    cached_prompt_tokens: TokenCount = None
    reasoning_tokens: TokenCount = None


class _LogLine(Record):
    ts: str | None = None
    sid: str | None = None
    msg: str | None = None
    ctx: _Tokens | None = None


class _Logged(msgspec.Struct, frozen=True):
    """A call in the log."""

    at: datetime
    usage: Usage


@cached_until_changed
def _logged_calls(path: str) -> dict[str, list[_Logged]]:
    """Return the calls in the log by session."""
    calls: dict[str, list[_Logged]] = {}
    lines = [line for line in last_lines(path, _MOST_LOG) if _INFERENCE.encode() in line]
    for line in Lines(path, b"\n".join([*lines, b""]), 0).records(_log_line):
        at, used = parse_iso_time(line.ts), line.ctx
        if line.msg == _INFERENCE and line.sid and at is not None and used is not None:
            usage = reported_usage(
                used.prompt_tokens,
                used.completion_tokens,
                used.cached_prompt_tokens,
                reasoning=used.reasoning_tokens,
            )
            calls.setdefault(line.sid, []).append(_Logged(at, usage))
    return calls


_log_line = typed.decoder(_LogLine)


class GrokBuild(LineReader):
    inner = ("sessions",)
    pattern = rf"[^/]+/[^/]+/{re.escape(_UPDATES)}"

    def store_at(self, places: Places, path: str) -> Store | None:
        folder, name = os.path.split(path)
        is_beside = name in (_SUMMARY, _SIGNALS)
        return super().store_at(places, os.path.join(folder, _UPDATES) if is_beside else path)

    def make_store(self, path: str) -> Store | None:
        """Return a session's store. A change of the files beside the updates counts, too."""
        store, folder = store_from_path(self.agent, path), os.path.dirname(path)
        beside = (
            store_from_path(self.agent, os.path.join(folder, one)) for one in (_SUMMARY, _SIGNALS)
        )
        return store and with_size_of(store, *filter(None, beside))

    def begin(self, store: Store) -> _Updates:
        folder = os.path.dirname(store.path)
        return _Updates(SessionState(os.path.basename(folder)), folder)

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        summary = try_decode_file(Path(store.path).with_name(_SUMMARY), _Summary)
        return summary.generated_title if summary else None


READER = GrokBuild()


class _Updates(SessionLines):
    folder: str
    """The session's folder in Grok's files."""
    is_described: bool = False
    """Whether it is known if another session started this one."""
    window: int | None = None
    estimate: int = 0
    """Grok's own estimate of the context's size, in tokens."""
    newest_logged: datetime | None = None
    """The time of the newest call that was taken from the log."""
    in_turn: list[_Logged] = msgspec.field(default_factory=list)
    """The calls that were taken from the log since the last end of a turn."""
    turn: str | None = None
    """The last turn that has ended."""
    parts_of_turn: list[Usage] = msgspec.field(default_factory=list)
    """What calls in the log and sub-agents used in this turn."""
    finished: list[Usage] = msgspec.field(default_factory=list)
    """What sub-agents used that have finished since the last end of a turn."""

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        session, modified = self.session, time_from_ns(os.stat(lines.path).st_mtime_ns)
        self._describe()
        calls = _logged_calls(Path(self.folder).parents[2] / _LOG) or {}
        logged = calls.get(os.path.basename(self.folder), []) if self.is_described else []
        for line in lines.records(_line):
            session.touch(line.at)
            update = (line.params and line.params.update) or _Update()
            if update.kind == _COMPACTED:
                yield from self._take(logged, line.at)
                session.track = session.track.compaction()
            elif update.kind == _ENDED:
                yield from self._take(logged, line.at)
                yield from self._end_turn(update, session.updated_at or modified, lines.position)
            elif update.kind == _CHILD_FINISHED:
                self.finished = [*self.finished, *_usage_of_child(self.folder, update)]
            elif update.kind in _IN_TURN:
                session.active = True
        yield from self._take(logged, None)

    def snapshots(self) -> Iterable[StoredSession]:
        self._describe()
        track = self.session.track
        if track.newest is None and track.why is None and self.estimate:
            self.session.track = track.estimate(self.estimate, self.session.model)
        yield self.session.snapshot(note=_ESTIMATE if self.session.track.is_estimate else None)

    def _take(self, logged: list[_Logged], until: datetime | None) -> Iterator[CallFinished]:
        """Yield the calls in the log that were made until a time, and are not yet recorded."""
        for one in logged:
            is_known = self.newest_logged is not None and one.at <= self.newest_logged
            if is_known or (until is not None and one.at > until):
                continue
            self.newest_logged = one.at
            self.session.began_at = min(self.session.began_at or one.at, one.at)
            self.in_turn = [*self.in_turn, one]
            self.session.track = self.session.track.call(
                CallSize.of(one.usage, self.session.model, self.window)
            )
            yield from self._call(one.at, one.usage, one.at.isoformat())

    def _end_turn(self, update: _Update, at: datetime, position: str) -> Iterator[CallFinished]:
        """Yield what the turn used beyond the calls in the log, as one call."""
        ended = [one for one in self.in_turn if one.at <= at]
        self.in_turn = self.in_turn[len(ended) :]
        self.session.active = False
        used = update.usage
        if used is None:
            return
        if update.prompt_id is None or update.prompt_id != self.turn:
            self.turn, self.parts_of_turn = update.prompt_id, []
        self.parts_of_turn = [*self.parts_of_turn, *(one.usage for one in ended), *self.finished]
        self.finished = []
        rest = _without(used.usage, self.parts_of_turn)
        if rest.prompt_tokens + rest.output_tokens:
            self.session.track = ContextTrack()
            self.newest_logged = at  # later lines of the log may belong to this turn
            # The last line of a turn counts.
            yield from self._call(at, rest, update.prompt_id or position)

    def _call(self, at: datetime, usage: Usage, request: str) -> list[CallFinished]:
        session, parent = self.session, self.session.subagent_of
        return session.call(
            at,
            usage,
            f"{session.id}/{request}",
            session.model,
            session=parent,
            category="subagent" if parent else "main",
        )

    def _describe(self) -> None:
        session, folder = self.session, Path(self.folder)
        found = try_decode_file(folder / _SUMMARY, _Summary)
        summary = found or _Summary()
        session.work_in(summary.info.cwd if summary.info else None)
        session.model = summary.current_model_id or session.model
        session.branch = summary.head_branch or session.branch
        session.parent = summary.parent_session_id
        is_subagent = summary.session_kind == _SUBAGENT
        if is_subagent and session.subagent_of is None:
            session.subagent_of = _parent_of(folder)
        self.is_described = bool(found and (session.subagent_of or not is_subagent))
        session.title_at = _SUMMARY if summary.generated_title else None
        signals = try_decode_file(folder / _SIGNALS, _Signals) or _Signals()
        self.window = session.window = signals.context_window_tokens or self.window
        self.estimate = signals.context_tokens_used or 0


def _parent_of(folder: Path) -> str | None:
    """Return the session that started a sub-agent: it has a folder with the sub-agent's name."""
    found = folder.parent.glob(f"*/subagents/{glob.escape(folder.name)}")
    return next((one.parents[1].name for one in found), None)


def _usage_of_child(folder: str, update: _Update) -> Iterator[Usage]:
    """Yield what a sub-agent used. The turn in which it finishes includes it."""
    if update.child_session_id:
        path = Path(folder).with_name(update.child_session_id) / _USAGE
        totals = try_decode_file(path, _Totals)
        if totals and totals.session:
            yield totals.session.usage


def _without(total: Usage, parts: list[Usage]) -> Usage:
    """Return what remains of a total, or nothing if the parts exceed it."""
    numbers = [
        value - sum(getattr(part, name) for part in parts)
        for name, value in msgspec.structs.asdict(total).items()
    ]
    rest = numbers if min(numbers) >= 0 else [0] * len(numbers)
    return Usage(**dict(zip(total.__struct_fields__, rest, strict=True)))
