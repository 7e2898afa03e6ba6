"""What is kept of a Codex rollout between two readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from sidecar.agents.readers.codex_lines import Info, Payload, ThreadSettings

UsageParts = tuple[int, int, int, int, int]


class RolloutState(msgspec.Struct):
    """Of one rollout, after some of its lines."""

    thread: str
    session: str | None = None
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
        self.session = self.parent if self.subagent and self.parent else self.thread
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
