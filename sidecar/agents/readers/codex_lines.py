"""The lines of Codex' rollouts of which something is read, and what is kept between readings."""

from __future__ import annotations

import re

import msgspec

from sidecar import typed
from sidecar.agents.fields import Record, TokenCount
from sidecar.agents.values import CallSize
from sidecar.messages.usage import Usage, usage_from_prompt

_KIND = re.compile(rb'"type"\s*:\s*"(?:token_|session_meta"|turn_|task_|compacted"|thread_)')
KIND_WITHIN = 320
"""Bytes: the types of a line and of its payload stand before all else."""

SUMMARY_OUTPUT = b'"compaction_output"'
"""In the line of a compaction's summary."""

UsageParts = tuple[int, int, int, int, int]
"""Input, of it cached and written, output, of it reasoning."""


class Tokens(Record):
    """Tokens of a call, or of a thread so far; cached and written tokens are part of the input."""

    input_tokens: TokenCount = None
    cached_input_tokens: TokenCount = None
    cache_write_input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    reasoning_output_tokens: TokenCount = None

    @property
    def parts(self) -> UsageParts:
        """What a call, or all of them, took."""
        return (
            self.input_tokens or 0,
            self.cached_input_tokens or 0,
            self.cache_write_input_tokens or 0,
            self.output_tokens or 0,
            self.reasoning_output_tokens or 0,
        )


class Info(Record):
    """What a `token_count` says; `total_token_usage` is of the thread, never an occupancy."""

    total_token_usage: Tokens | None = None
    last_token_usage: Tokens | None = None
    model_context_window: TokenCount = None
    model: str | None = None


class ThreadSettings(Record):
    """What `thread_settings_applied` changes."""

    model: str | None = None
    cwd: str | None = None


class Payload(Record):
    """The named fields of all lines."""

    type: str | None = None
    id: str | None = None
    timestamp: str | None = None
    cwd: str | None = None
    model: str | None = None
    model_provider: str | None = None
    source: msgspec.Raw = msgspec.Raw(b"")
    forked_from_id: str | None = None
    parent_thread_id: str | None = None
    subagent_history_start_ordinal: int | str | None = None
    turn_id: str | None = None
    root_turn_id: str | None = None
    """The turn that a person began: of a sub-agent's turn that of its root thread."""
    started_at: float | str | None = None
    thread_name: str | None = None
    thread_settings: ThreadSettings | None = None
    model_context_window: TokenCount = None
    info: Info | None = None
    thread_id: str | None = None
    response_id: str | None = None
    compaction_response_id: str | None = None
    usage: Tokens | None = None

    @property
    def is_subagent(self) -> bool:
        """Whether the thread of this `session_meta` was started by another thread."""
        return b'"subagent"' in bytes(self.source)

    @property
    def is_persons(self) -> bool | None:
        """Whether a person began the turn; None where the line does not say."""
        known = self.turn_id is not None and self.root_turn_id is not None
        return self.turn_id == self.root_turn_id if known else None

    @property
    def parent(self) -> str | None:
        """The thread whose history this one may begin with a copy of."""
        spawned = re.search(rb'"parent_thread_id"\s*:\s*"([^"]+)"', bytes(self.source))
        return (
            self.forked_from_id
            or self.parent_thread_id
            or (spawned.group(1).decode("utf-8", "replace") if spawned else None)
        )


class _Metadata(Record):
    compaction_output: bool | None = None


class RolloutLine(Record):
    """A line."""

    type: str | None = None
    timestamp: str | None = None
    ordinal: int | None = None
    payload: Payload | None = None
    metadata: _Metadata | None = None

    @property
    def is_summary(self) -> bool:
        """Whether it is the summary of a compaction, whose usage comes next."""
        return self.metadata is not None and bool(self.metadata.compaction_output)

    @property
    def kind(self) -> str | None:
        """The line's type, of an event that of its payload."""
        return self.payload.type if self.type == "event_msg" and self.payload else self.type


entry = typed.decoder(RolloutLine)


def is_read(data: bytes, start: int, end: int) -> bool:
    """Whether the line that begins with `data[start:end]` may be of a kind that is read."""
    return bool(_KIND.search(data, start, end)) or data.find(b'"payload"', start, end) < 0


def usage_of(parts: UsageParts) -> Usage:
    """The parts of a call that do not overlap."""
    prompt, cached, written, output, reasoning = parts
    return usage_from_prompt(prompt, cached, written, 0, output, reasoning)


def reading_of(tokens: Tokens, model: str | None, window: int | None) -> CallSize:
    """What a call sent and got; an estimate of Codex' own, which has a total alone, is none."""
    prompt, _, _, output, _ = tokens.parts
    return CallSize(prompt, output, model, window)


class RolloutState(msgspec.Struct):
    """Of one rollout, after some of its lines."""

    thread: str
    owner: str | None = None
    """The thread that a person sees: of a sub-agent the one that started it."""
    named: bool = False
    """Whether the `session_meta` that names the file was read."""
    parent: str | None = None
    """The thread whose lines this one may begin with a copy of."""
    began: str | None = None
    """When the thread was made, in ISO 8601."""
    first_ordinal: int | None = None
    """Ordinals below are the parent's."""
    copied: bool = False
    """Whether a parent's `session_meta` was seen."""
    copied_at: str | None = None
    """When the newest line was written that is a copy or may be one."""
    own: bool = False
    """Whether all lines from here on are the thread's own."""
    subagent: bool = False
    resumed: bool = False
    """Whether the present turn of a sub-agent's thread is a person's, who resumed it."""
    records: bool = False
    """Whether there are usage records: then they alone count."""
    count: int = 0
    """Calls so far."""
    total: UsageParts | None = None
    last: UsageParts | None = None
    """Of the newest event that counted."""
    model: str | None = None
    cwd: str | None = None
    provider: str | None = None

    def begin(self, meta: Payload, at: str | None) -> None:
        """Take a `session_meta`: the first names the file, later ones are copied."""
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

    def change(self, settings: Payload | ThreadSettings) -> None:
        """Take a turn's settings."""
        self.model, self.cwd = settings.model or self.model, settings.cwd or self.cwd

    def fresh_parts(self, info: Info) -> UsageParts | None:
        """The tokens of the call that an event reports; None where it repeats the last one.

        Old versions say only what the thread took so far: the call is the difference.
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
        return (
            now[0] - then[0], now[1] - then[1], now[2] - then[2], now[3] - then[3], now[4] - then[4]
        )  # fmt: skip
