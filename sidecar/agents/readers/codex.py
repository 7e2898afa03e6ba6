"""Reads Codex's `sessions/YYYY/MM/DD/rollout-<time>-<thread>.jsonl`.

Codex may compress these files or move them to `archived_sessions`. New versions write a
`token_usage_record` for each call. All versions write `token_count` events, some of which repeat
the previous totals.

Forked and spawned threads start with a copy of their parent's lines, with original or new
timestamps. The end of the copy is determined by the first available of the following: the ordinal
of the thread's first new line, the turns and totals in the parent's file, or a turn's start time.
If none is available, the copy ends at the first pause, because Codex writes it without pauses.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from heapq import nlargest
from pathlib import Path
from typing import NamedTuple

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes
from sidecar.agents.file_reading import (
    Record,
    TokenCount,
    last_lines,
    parse_iso_time,
    parse_time,
)
from sidecar.agents.folders import Places, Roots
from sidecar.agents.session_events import (
    CallFinished,
    CallSize,
    ReportedLimit,
    Store,
    StoredSession,
)
from sidecar.agents.stores import (
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    list_folder,
    read_records,
    record_at,
)
from sidecar.cost.cache_losses import CacheFacts
from sidecar.messages.vendor_usage import Usage, normal_tier, usage_from_prompt
from sidecar.models.catalogue import provider_of

UsageParts = tuple[int, int, int, int, int]
"""Token counts: input, cached input, input written to the cache, output, and reasoning output."""


class Tokens(Record):
    """Token counts for a call or a thread. The input includes cache reads and writes."""

    input_tokens: TokenCount = None
    cached_input_tokens: TokenCount = None
    cache_write_input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    reasoning_output_tokens: TokenCount = None

    @property
    def parts(self) -> UsageParts:
        return (
            self.input_tokens or 0,
            self.cached_input_tokens or 0,
            self.cache_write_input_tokens or 0,
            self.output_tokens or 0,
            self.reasoning_output_tokens or 0,
        )


class Info(Record):
    """The data of a `token_count` event. `total_token_usage` is the thread's total."""

    total_token_usage: Tokens | None = None
    last_token_usage: Tokens | None = None
    model_context_window: TokenCount = None
    model: str | None = None


class _Chosen(Record):
    reasoning_effort: str | None = None


class _Mode(Record):
    settings: _Chosen | None = None


class ThreadSettings(Record):
    """The settings in a `thread_settings_applied` event."""

    model: str | None = None
    cwd: str | None = None
    service_tier: object = None
    """Absent for the standard tier. An event contains all settings."""
    collaboration_mode: _Mode | None = None


class _Git(Record):
    branch: str | None = None


class Payload(Record):
    """A line's payload. Which fields are set depends on the line's type."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"")
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    action: msgspec.Raw = msgspec.Raw(b"")
    call_id: str | None = None
    output: msgspec.Raw = msgspec.Raw(b"")
    timestamp: str | None = None
    cwd: str | None = None
    git: _Git | None = None
    model: str | None = None
    model_provider: str | None = None
    source: msgspec.Raw = msgspec.Raw(b"")
    forked_from_id: str | None = None
    parent_thread_id: str | None = None
    subagent_history_start_ordinal: int | str | None = None
    turn_id: str | None = None
    root_turn_id: str | None = None
    """The turn that the user started. For a sub-agent, this turn is in another thread."""
    started_at: float | str | None = None
    thread_name: str | None = None
    thread_settings: ThreadSettings | None = None
    model_context_window: TokenCount = None
    info: Info | None = None
    thread_id: str | None = None
    response_id: str | None = None
    compaction_response_id: str | None = None
    usage: Tokens | None = None
    service_tier: object = None
    cli_version: str | None = None
    collaboration_mode: _Mode | None = None

    @property
    def is_subagent(self) -> bool:
        """Whether this is the `session_meta` of a thread that another thread spawned."""
        return b'"subagent"' in bytes(self.source)

    @property
    def is_started_by_user(self) -> bool | None:
        """Whether the user started the turn, or None if unknown."""
        known = self.turn_id is not None and self.root_turn_id is not None
        return self.turn_id == self.root_turn_id if known else None

    @property
    def parent(self) -> str | None:
        """The id of the thread that this thread was forked or spawned from, or None."""
        spawned = re.search(rb'"parent_thread_id"\s*:\s*"([^"]+)"', bytes(self.source))
        return (
            self.forked_from_id
            or self.parent_thread_id
            or (spawned.group(1).decode("utf-8", "replace") if spawned else None)
        )

    def add_parts(self, sizes: ContextSizes) -> None:
        """Add the parts of the conversation in a `response_item` line."""
        kind = self.type or ""
        if kind == "message" and self.role == "assistant":
            sizes.add("assistant", self.content)
        elif kind == "message":
            is_own = self.role != "user" or _INSTRUCTIONS.match(memoryview(self.content))
            sizes.add("instructions" if is_own else "user", self.content)
        elif kind.endswith("_output"):
            sizes.add("result", self.output, sizes.end_call(self.call_id))
        elif kind.endswith("_call"):
            tool = sizes.begin_call(self.call_id, self.name or kind.removesuffix("_call"))
            for text in (self.arguments, self.input, self.action):
                sizes.add("call", text, tool)


_INSTRUCTIONS = re.compile(rb'\[\s*\{[^{}]{0,80}"text"\s*:\s*"(?:<[a-z]|# AGENTS\.md)')
"""Matches instructions that Codex sends as user messages."""


class _Metadata(Record):
    compaction_output: bool | None = None


class RolloutLine(Record):
    type: str | None = None
    timestamp: str | None = None
    ordinal: int | None = None
    payload: Payload | None = None
    metadata: _Metadata | None = None

    @property
    def is_summary(self) -> bool:
        """Whether the line contains a compaction's summary. Its usage is in a later line."""
        return self.metadata is not None and bool(self.metadata.compaction_output)

    @property
    def kind(self) -> str | None:
        """The line's type. For an event, this is the type of its payload."""
        return self.payload.type if self.type == "event_msg" and self.payload else self.type


decode = typed.decoder(RolloutLine)


def usage_of(parts: UsageParts) -> Usage:
    prompt, cached, written, output, reasoning = parts
    return usage_from_prompt(prompt, cached, written, 0, output, reasoning)


class RolloutState(SessionLines):
    """What the reader remembers about a rollout file between reads.

    The session includes lines that were copied from a parent thread.
    """

    thread: str
    owner: str | None = None
    """The id of the thread to record calls for. For a sub-agent, this is the parent thread."""
    named: bool = False
    """Whether the `session_meta` of this thread has been read."""
    parent: str | None = None
    """The id of the thread whose lines may have been copied to the start of this file."""
    began: str | None = None
    """When the thread was created, in ISO 8601 format."""
    first_ordinal: int | None = None
    """The ordinal of the first line that is not a copy of the parent's."""
    copied: bool = False
    """Whether the file contains a copy of another thread's `session_meta`."""
    copied_at: str | None = None
    """The time of the last line that may be a copy."""
    own: bool = False
    """Whether the end of the copied lines has been reached."""
    subagent: bool = False
    resumed: bool = False
    """Whether the user started the current turn of this sub-agent's thread."""
    records: bool = False
    """Whether the file contains usage records. If so, `token_count` events are ignored."""
    count: int = 0
    total: UsageParts | None = None
    last: UsageParts | None = None
    """The token counts of the last event that was recorded as a call."""
    model: str | None = None
    cwd: str | None = None
    provider: str | None = None
    tier: str = ""
    """The service tier of the next calls."""

    def begin(self, meta: Payload, at: str | None) -> None:
        """Apply a `session_meta` line. All such lines except the first are copies."""
        if self.named:
            self.copied = self.copied or meta.id != self.thread
            return
        self.named = True
        self.thread = meta.id or self.thread
        self.parent, self.subagent = meta.parent, meta.is_subagent
        self.owner = self.parent if self.subagent and self.parent else self.thread
        self.began, self.copied_at = meta.timestamp or at, at
        self.own = self.parent is None
        self.cwd, self.provider = meta.cwd, meta.model_provider
        ordinal = meta.subagent_history_start_ordinal
        self.first_ordinal = int(ordinal) if str(ordinal or "").isdecimal() else None  # type: ignore[arg-type]

    def change(self, payload: Payload) -> Payload | ThreadSettings:
        """Apply a line with the settings of the next calls, and return these settings."""
        settings = payload.thread_settings or payload
        self.model, self.cwd = settings.model or self.model, settings.cwd or self.cwd
        if payload.thread_settings is not None or payload.service_tier is not None:
            self.tier = _tier_of(settings.service_tier)
        return settings

    def fresh_parts(self, info: Info) -> UsageParts | None:
        """Return the token counts of an event's call, or None if the event is a duplicate.

        Old versions report only the thread's totals. In this case, the counts are the differences
        from the previous totals.
        """
        total, before = info.total_token_usage, self.total
        if total is not None:
            if total.parts == before:
                return None
            self.total = total.parts
        if info.last_token_usage is not None:
            return info.last_token_usage.parts
        if total is None:
            return None
        if before is None or any(now < then for now, then in zip(total.parts, before, strict=True)):
            return total.parts
        now, then = total.parts, before
        prompt, cached, written, output, reasoning = map(operator.sub, now, then)
        return prompt, cached, written, output, reasoning


_PAUSE = timedelta(seconds=2)
_STARTS = ("turn_context", "task_started", "turn_started")


class Parent(NamedTuple):
    """A parent thread's turn ids, and its token totals after each call."""

    turns: frozenset[str] = frozenset()
    totals: frozenset[UsageParts] = frozenset()


def is_own(state: RolloutState, one: RolloutLine, payload: Payload, parent: Parent) -> bool:
    """Return whether this is the first line that was not copied from the parent."""
    kind = one.kind
    if state.first_ordinal is not None and one.ordinal is not None:
        return one.ordinal >= state.first_ordinal
    if kind in _STARTS and payload.turn_id and parent.turns:
        return payload.turn_id not in parent.turns
    total = payload.info.total_token_usage if payload.info else None
    if kind == "token_count" and total is not None and parent.totals:
        return total.parts not in parent.totals
    if kind not in (*_STARTS, "token_count") or parent.turns or parent.totals:
        return False
    own = _is_later(state, one, payload)
    state.copied_at = state.copied_at if own else one.timestamp or state.copied_at
    return own


def _is_later(state: RolloutState, one: RolloutLine, payload: Payload) -> bool:
    """Return whether a line's timestamp is later than the start of the thread."""
    began, at = parse_iso_time(state.began), parse_iso_time(one.timestamp)
    if began is None or at is None or at < began:
        return False
    started = parse_time(payload.started_at)
    if started is not None:
        # A turn's start time is in whole seconds.
        return started >= began.replace(microsecond=0)
    copied_at = parse_iso_time(state.copied_at)
    return not state.copied or copied_at is None or at - copied_at > _PAUSE


def parent_of(path: str, thread: str | None) -> Parent:
    """Return a parent thread's turns and totals. Both are empty if its file is missing."""
    if thread is None:
        return Parent()
    for found in _files_of(path, thread):
        try:
            status = os.stat(found)
            return _read_parent(found, status.st_size, status.st_mtime_ns)
        except OSError:
            continue
    return Parent()


@lru_cache(maxsize=8)
def _read_parent(path: str, _size: int, _mtime_ns: int) -> Parent:
    """Read a thread's turns and totals. The result is cached until the file changes.

    Raises:
        OSError: The file cannot be read.
    """
    turns: set[str] = set()
    totals: set[UsageParts] = set()
    for payload in (line.payload for line in read_records(path, decode)):
        if payload and payload.turn_id:
            turns.add(payload.turn_id)
        if payload and payload.info and payload.info.total_token_usage:
            totals.add(payload.info.total_token_usage.parts)
    return Parent(frozenset(turns), frozenset(totals))


def _files_of(path: str, thread: str) -> Iterator[str]:
    """Yield a thread's files.

    Searches the thread's possible day folders, the archive, and the folder that contains `path`.
    """
    home = next(
        (one.parent for one in Path(path).parents if one.name in ("sessions", "archived_sessions")),
        None,
    )
    if home is None:
        return
    folders = [
        *_possible_day_folders(home / "sessions", thread),
        home / "archived_sessions",
        Path(path).parent,
    ]
    for folder in dict.fromkeys(folders):
        for item in list_folder(folder):
            if item.name.endswith((f"{thread}.jsonl", f"{thread}.jsonl.zst")):
                yield item.path


def _possible_day_folders(sessions: Path, thread: str) -> list[Path]:
    """Return the folders that a thread may be in, based on the creation time in its UUIDv7.

    The adjacent days are included because of time zones.
    """
    try:
        at = datetime.fromtimestamp(int(thread.replace("-", "")[:12], 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return []
    days = (at + timedelta(days=offset) for offset in (-1, 0, 1))
    return [sessions / day.strftime("%Y/%m/%d") for day in days]


_FOLDERS = ("sessions", "archived_sessions")
_THREAD = re.compile(r"([0-9a-fA-F]{8}-[0-9a-fA-F-]{27})\.jsonl")


class _RateLimit(Record):
    used_percent: float | None = None
    window_minutes: TokenCount = None
    resets_at: float | None = None
    """Seconds since 1970."""


class _RateLimits(Record):
    primary: _RateLimit | None = None
    secondary: _RateLimit | None = None


class _LimitsPayload(Record):
    rate_limits: _RateLimits | None = None


class _LimitsLine(Record):
    payload: _LimitsPayload | None = None


_limits_line = typed.decoder(_LimitsLine)
_LIMITS_WITHIN = 256 << 10
"""The number of bytes at the end of a file that are searched for limits."""
_FILES_WITH_LIMITS = 5
"""The number of newest files that are searched for limits."""


class Codex(LineReader):
    inner = _FOLDERS
    pattern = r".*\.jsonl(\.zst)?"

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        stores = {found.path: found for found in super().find(places, roots)}
        for path, found in stores.items():
            if path.removesuffix(".zst") not in stores or not path.endswith(".zst"):
                yield found

    def begin(self, store: Store) -> _Rollout:
        facts = CacheFacts(agent=self.agent)
        session = SessionState("", ended=_FOLDERS[1] in Path(store.path).parts, facts=facts)
        return _Rollout(session, _thread_of(store.path))

    def title(self, store: Store, title_at: str) -> str | None:
        line = record_at(store.path, title_at, decode)
        return line.payload.thread_name if line and line.payload else None

    def limits(self, places: Places) -> list[ReportedLimit]:
        """Return the latest limits in the newest files. Compressed files are too old."""
        stores = (store for store in self.find(places) if not store.path.endswith(".zst"))
        newest = nlargest(_FILES_WITH_LIMITS, stores, key=lambda store: store.mtime_ns)
        return next(filter(None, (_limits_in(store.path) for store in newest)), [])


def _limits_in(path: str) -> list[ReportedLimit]:
    """Return the latest limits in a file."""
    found = _RateLimits()
    lines = (one for one in last_lines(path, _LIMITS_WITHIN) if b'"rate_limits"' in one)
    data = b"".join(line + b"\n" for line in lines)
    for one in Lines(path, data, 0).records(_limits_line):
        found = (one.payload and one.payload.rate_limits) or found
    return [
        ReportedLimit(limit.window_minutes, limit.used_percent, parse_time(limit.resets_at))
        for limit in (found.primary, found.secondary)
        if limit is not None and limit.window_minutes and limit.used_percent is not None
    ]


READER = Codex()


class _Rollout(RolloutState):
    summary: str | None = None
    """The id of the response that contains the latest compaction's summary."""
    awaits_summary: bool = False
    """Whether the latest summary has been read, but not yet the line with its usage."""

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        parent: Parent | None = None
        for line in lines.records(decode):
            if line.payload is None:
                continue
            if not self.own and self.named:
                parent = parent or parent_of(lines.path, self.parent)
                self.own = is_own(self, line, line.payload, parent)
            self.session.touch(parse_iso_time(line.timestamp))
            if line.type == "response_item":
                self.awaits_summary = self.awaits_summary or line.is_summary
                line.payload.add_parts(self.session.sizes)
            else:
                yield from self._apply(line, line.payload, lines)

    def snapshots(self) -> Iterator[StoredSession]:
        if not self.named:
            return
        is_subagent = self.subagent and not self.resumed
        if is_subagent and self.owner == self.thread:
            return
        self.session.id = self.thread
        self.session.subagent_of = self.owner if is_subagent else None
        yield self.session.snapshot()

    def _apply(self, line: RolloutLine, payload: Payload, lines: Lines) -> Sequence[CallFinished]:
        """Apply a line that is not part of a reply or prompt, and return any new call in it."""
        kind, session = line.kind, self.session
        self._note_facts(kind, payload)
        session.window = payload.model_context_window or session.window
        session.active = _TURN.get(kind or "", session.active)
        if self.subagent and self.own and payload.is_started_by_user is not None:
            self.resumed = payload.is_started_by_user
        if kind == "token_usage_record":
            return self._record(line, payload)
        if kind == "token_count" and payload.info is not None:
            return self._count(line, payload.info)
        if kind == "session_meta":
            if not self.named:
                session.work_in(payload.cwd)
                session.branch = payload.git.branch if payload.git else None
                session.parent = payload.forked_from_id
            self.begin(payload, line.timestamp)
        elif kind in ("turn_context", "thread_settings_applied"):
            settings = self.change(payload)
            session.model = settings.model or session.model
            session.work_in(settings.cwd)
        elif kind == "compacted":
            session.track, self.summary = session.track.compaction(), payload.compaction_response_id
            session.sizes.compact()
        elif kind == "thread_rolled_back":
            session.track = session.track.rewind()
        elif kind == "thread_name_updated":
            session.title_at = lines.position
        return ()

    def _note_facts(self, kind: str | None, payload: Payload) -> None:
        settings = payload.thread_settings or payload
        chosen = settings.collaboration_mode and settings.collaboration_mode.settings
        self.session.note(
            version=payload.cli_version,
            effort=(chosen.reasoning_effort or "default") if chosen else None,
            is_compacted=kind == "compacted" or None,
            is_rewound=kind == "thread_rolled_back" or None,
        )

    def _count(self, line: RolloutLine, info: Info) -> Sequence[CallFinished]:
        session = self.session
        session.window = info.model_context_window or session.window
        session.model = session.model or info.model
        parts = self.fresh_parts(info)
        if parts is None:
            return ()
        self._measure(info.last_token_usage)
        if self.records or not self.own or parts[0] + parts[3] == 0:
            return ()
        self.count, self.last = self.count + 1, parts
        is_summary, self.awaits_summary = self.awaits_summary, False
        request = f"{self.thread}#{self.count}"
        return self._call(line, parts, request, info.model, is_summary=is_summary)

    def _record(self, line: RolloutLine, payload: Payload) -> Sequence[CallFinished]:
        """Apply a usage record. Records from other threads affect only the context size."""
        if payload.usage is None:
            return ()
        is_named = payload.response_id is not None and payload.response_id == self.summary
        is_summary, self.awaits_summary = is_named or self.awaits_summary, False
        if not is_summary:
            self._measure(payload.usage)
        if payload.thread_id not in (None, self.thread):
            return ()
        if payload.thread_id is None and not self.own:
            return ()
        parts = payload.usage.parts
        tier = None if payload.service_tier is None else _tier_of(payload.service_tier)
        # The call in the first record may already have been counted from an event.
        counted = not self.records and self.last == parts
        self.records, self.own = True, True
        if counted:
            return ()
        self.count += 1
        request = payload.response_id or f"{self.thread}#{self.count}"
        return self._call(line, parts, request, None, tier, is_summary=is_summary)

    def _measure(self, tokens: Tokens | None) -> None:
        if tokens is not None:
            # The model is taken from the session's settings.
            prompt, _, _, output, _ = tokens.parts
            self.session.sizes.add_prompt(prompt)
            reading = CallSize(prompt, output, None, self.session.window)
            self.session.track = self.session.track.call(reading)

    def _call(
        self,
        line: RolloutLine,
        parts: UsageParts,
        request: str,
        model: str | None,
        tier: str | None = None,
        *,
        is_summary: bool,
    ) -> Sequence[CallFinished]:
        named = model or self.model or "unknown"
        is_subagent = self.subagent and not self.resumed
        return self.session.call(
            parse_iso_time(line.timestamp),
            usage_of(parts),
            request,
            named,
            _billing_provider(self.provider, named),
            session=self.thread if self.resumed else self.owner or self.thread,
            telemetry_id=_telemetry_id(self.thread, parts),
            workspace=self.cwd or "",
            category="subagent" if is_subagent else "summary" if is_summary else "main",
            tier=self.tier if tier is None else tier,
        )


def _tier_of(name: object) -> str:
    """Return a service tier. `fast` is the name of `priority` in Codex's configuration."""
    tier = normal_tier(name)
    return "priority" if tier == "fast" else tier


def _telemetry_id(thread: str, parts: UsageParts) -> str:
    """Return an id that can also be derived from Codex's telemetry, which has no call ids."""
    prompt, cached, _, output, reasoning = parts
    return f"{thread}/{prompt}/{cached}/{output}/{reasoning}"


def _billing_provider(named: str | None, model: str) -> str:
    known = {"openai": "openai", "ollama": "ollama", "oss": "ollama", "lmstudio": "lmstudio"}
    return known.get(named or "openai") or provider_of(model) or str(named)


_TURN = {
    "task_started": True,
    "turn_started": True,
    "task_complete": False,
    "turn_complete": False,
    "turn_aborted": False,
}
"""Whether a turn is running, keyed by the type of the last line."""


def _thread_of(path: str) -> str:
    found = _THREAD.search(os.path.basename(path))
    return found.group(1) if found else os.path.basename(path)
