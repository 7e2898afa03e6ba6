"""The lines of Codex' rollouts, and the state between readings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.fields import Record, TokenCount
from sidecar.agents.values import CallSize
from sidecar.messages.usage import Usage, usage_from_prompt

if TYPE_CHECKING:
    from sidecar.agents.contents import ContextContents

_KIND = re.compile(rb'"type"\s*:\s*"(?:token_|session_meta"|turn_|task_|compacted"|thread_)')
KIND_WITHIN = 320
"""A line's type and its payload's type are within this many bytes from its start."""

SUMMARY_OUTPUT = b'"compaction_output"'
"""Marks the line that contains a compaction's summary."""

UsageParts = tuple[int, int, int, int, int]
"""Input, cached and cache-written tokens in it, output, and reasoning tokens in it."""


class Tokens(Record):
    """Tokens of a call or of a whole thread. The input includes cache reads and writes."""

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
    """Contents of a `token_count`. `total_token_usage` is a sum over the thread, not its size."""

    total_token_usage: Tokens | None = None
    last_token_usage: Tokens | None = None
    model_context_window: TokenCount = None
    model: str | None = None


class ThreadSettings(Record):
    """Settings that `thread_settings_applied` changes."""

    model: str | None = None
    cwd: str | None = None


class Payload(Record):
    """Fields of all lines' payloads."""

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
    """The turn that the user started; for a sub-agent's turn, that of the root thread."""
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
        """Whether another thread started the thread of this `session_meta`."""
        return b'"subagent"' in bytes(self.source)

    @property
    def is_persons(self) -> bool | None:
        """Whether a person started the turn, or None if unknown."""
        known = self.turn_id is not None and self.root_turn_id is not None
        return self.turn_id == self.root_turn_id if known else None

    @property
    def parent(self) -> str | None:
        """The thread whose history this one may start with."""
        spawned = re.search(rb'"parent_thread_id"\s*:\s*"([^"]+)"', bytes(self.source))
        return (
            self.forked_from_id
            or self.parent_thread_id
            or (spawned.group(1).decode("utf-8", "replace") if spawned else None)
        )


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
        """Whether this is a compaction's summary. Its usage follows."""
        return self.metadata is not None and bool(self.metadata.compaction_output)

    @property
    def kind(self) -> str | None:
        """The line's type, or for events the payload's type."""
        return self.payload.type if self.type == "event_msg" and self.payload else self.type


entry = typed.decoder(RolloutLine)


def is_read(data: bytes, start: int, end: int) -> bool:
    """Return whether the line `data[start:end]` may be of a kind that is read."""
    return bool(_KIND.search(data, start, end)) or data.find(b'"payload"', start, end) < 0


def usage_of(parts: UsageParts) -> Usage:
    """Return the usage as parts that do not overlap."""
    prompt, cached, written, output, reasoning = parts
    return usage_from_prompt(prompt, cached, written, 0, output, reasoning)


def reading_of(tokens: Tokens, model: str | None, window: int | None) -> CallSize:
    """Return the size of a call, or None for Codex' own estimates."""
    prompt, _, _, output, _ = tokens.parts
    return CallSize(prompt, output, model, window)


class RolloutState(msgspec.Struct):
    """The state of one rollout."""

    thread: str
    owner: str | None = None
    """The thread that the user sees. For a sub-agent it is the thread that started it."""
    named: bool = False
    """Whether the `session_meta` of the file's own thread was read."""
    parent: str | None = None
    """The thread whose lines this one may start with."""
    began: str | None = None
    """Time at which the thread was created, in ISO 8601."""
    first_ordinal: int | None = None
    """Lines with lower ordinals belong to the parent."""
    copied: bool = False
    """Whether a parent's `session_meta` was read."""
    copied_at: str | None = None
    """Time of the newest line that may be a copy."""
    own: bool = False
    """Whether all further lines belong to the thread itself."""
    subagent: bool = False
    resumed: bool = False
    """Whether a person started the current turn of this sub-agent's thread."""
    records: bool = False
    """Whether the file has usage records. Events then do not count."""
    count: int = 0
    """Number of calls."""
    total: UsageParts | None = None
    last: UsageParts | None = None
    """The last event that counted."""
    model: str | None = None
    cwd: str | None = None
    provider: str | None = None

    def begin(self, meta: Payload, at: str | None) -> None:
        """Apply a `session_meta`. The first one belongs to the file, later ones are copies."""
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
        self.model, self.cwd = settings.model or self.model, settings.cwd or self.cwd

    def fresh_parts(self, info: Info) -> UsageParts | None:
        """Return the tokens of the call that an event reports, or None if it repeats the last one.

        Old versions only report the thread's total; the call is then the difference.
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


class _Item(Record):
    type: str | None = None
    role: str | None = None
    name: str | None = None
    call_id: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"")
    arguments: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    action: msgspec.Raw = msgspec.Raw(b"")
    output: msgspec.Raw = msgspec.Raw(b"")
    info: Info | None = None
    usage: Tokens | None = None


class _ContentLine(Record):
    type: str | None = None
    payload: _Item | None = None


decode_content_line = typed.decoder(_ContentLine)
_INSTRUCTIONS = re.compile(rb'\[\s*\{[^{}]{0,80}"text"\s*:\s*"(?:<[a-z]|# AGENTS\.md)')
"""Codex sends its own context as messages of the user."""


def add_content_line(line: _ContentLine, contents: ContextContents, tools: dict[str, str]) -> None:
    """Add the parts of a line. `tools` collects the names of called tools by the call's id."""
    item = line.payload
    if line.type == "compacted":
        contents.compact()
    elif item is not None and line.type == "response_item":
        _add_item(item, contents, tools)
    elif item is not None:
        newest = item.info.last_token_usage if item.info else item.usage
        if newest is not None:
            contents.add_call(reading_of(newest, None, None).prompt)


def _add_item(item: _Item, contents: ContextContents, tools: dict[str, str]) -> None:
    kind = item.type or ""
    if kind == "message" and item.role == "assistant":
        contents.add("assistant", len(item.content))
    elif kind == "message":
        is_own = item.role != "user" or _INSTRUCTIONS.match(bytes(item.content))
        contents.add("instructions" if is_own else "user", len(item.content))
    elif kind.endswith("_output"):
        contents.add("result", len(item.output), tools.get(item.call_id or "", ""))
    elif kind.endswith("_call"):
        name = item.name or kind.removesuffix("_call")
        tools[item.call_id or ""] = name
        contents.add("call", len(item.arguments) + len(item.input) + len(item.action), name)
