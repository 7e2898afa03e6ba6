"""Stores data that Claude Code sends only to its status line. All functions block.

The data consists of the sessions' context windows and the user's subscription limits.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.fields import time_from_ms
from sidecar.config.private_files import write
from sidecar.messages.usage import MOST_TOKENS
from sidecar.workspace.state import lock_state

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.agents.events import ReportedLimit, StoredSession

FILE_NAME = "claude-code-statusline.json"
SESSIONS_KEPT = 64
_MAX_BYTES = 1 << 20
_MAX_PERCENT = 10_000
_MAX_USD = 1e6  # upper limit for a plausible cost


class CurrentUsage(msgspec.Struct, frozen=True):
    """Token usage of the session's latest call."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class ContextWindow(msgspec.Struct, frozen=True):
    """The context window as reported by Claude Code."""

    context_window_size: int | None = None
    used_percentage: float | None = None
    current_usage: CurrentUsage | None = None


class Quota(msgspec.Struct, frozen=True):
    """How much of a subscription's limit has been used."""

    used_percentage: float | None = None
    resets_at: float | None = None
    """When the limit resets, in seconds since 1970."""

    @property
    def reset(self) -> datetime | None:
        """When the limit resets, or None if this time is missing or invalid."""
        return time_from_ms(1000 * (self.resets_at or 0))


class RateLimits(msgspec.Struct, frozen=True):
    """The user's subscription limits. Sessions that use an API key have none."""

    five_hour: Quota | None = None
    seven_day: Quota | None = None

    def reported(self) -> list[ReportedLimit]:
        """Return the limits that have a valid percentage."""
        # Imported late to keep server startup fast.
        from sidecar.agents.events import ReportedLimit

        periods = ((300, self.five_hour), (7 * 24 * 60, self.seven_day))
        return [
            ReportedLimit(minutes, quota.used_percentage, quota.reset)
            for minutes, quota in periods
            if quota is not None
            and quota.used_percentage is not None
            and 0 <= quota.used_percentage <= _MAX_PERCENT
        ]


class ModelName(msgspec.Struct, frozen=True):
    id: str | None = None
    display_name: str | None = None


class WorkFolder(msgspec.Struct, frozen=True):
    project_dir: str | None = None


class SessionCosts(msgspec.Struct, frozen=True):
    """The session's cost, as computed by Claude Code from list prices."""

    total_cost_usd: float | None = None


class StatuslineInput(msgspec.Struct, frozen=True):
    """The JSON that Claude Code sends to its status line. Unused fields are omitted."""

    session_id: str = ""
    cwd: str | None = None
    transcript_path: str | None = None
    model: ModelName = ModelName()
    workspace: WorkFolder = WorkFolder()
    cost: SessionCosts = SessionCosts()
    context_window: ContextWindow | None = None
    rate_limits: RateLimits | None = None

    @property
    def tokens(self) -> int | None:
        """The number of tokens in the context; None if unknown, for example after a compaction."""
        usage = self.context_window.current_usage if self.context_window else None
        if usage is None:
            return None
        total = sum(msgspec.structs.astuple(usage))
        return total if 0 < total <= MOST_TOKENS else None

    @property
    def used_percentage(self) -> float | None:
        """The percentage of the window that is used, or None if the value is invalid."""
        share = self.context_window.used_percentage if self.context_window else None
        return share if share is not None and 0 <= share <= 100 else None

    @property
    def cost_usd(self) -> float | None:
        """The session's cost in USD, or None if the value is invalid."""
        cost = self.cost.total_cost_usd
        return cost if cost is not None and 0 <= cost <= _MAX_USD else None

    @property
    def limit(self) -> int | None:
        """The context window's size in tokens."""
        size = self.context_window.context_window_size if self.context_window else None
        return size if size is not None and 0 < size <= MOST_TOKENS else None


class SavedWindow(msgspec.Struct, frozen=True):
    """A session's saved context window."""

    limit: int | None = None
    used_percentage: float | None = None
    at: str = ""


class SavedFile(msgspec.Struct, frozen=True):
    """The subscription limits, and the saved context windows keyed by session ID, newest last."""

    sessions: dict[str, SavedWindow] = {}
    rate_limits: RateLimits | None = None


def read_input(data: bytes) -> StatuslineInput | None:
    """Parse Claude Code's JSON, or return None if it is invalid."""
    try:
        sent = typed.decode(data, StatuslineInput)
    except msgspec.DecodeError:
        return None
    return sent if sent.session_id else None


def load(folder: Path) -> SavedFile:
    """Load the saved data. The result is empty if the file is missing or invalid."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return typed.decode(file.read(_MAX_BYTES), SavedFile)
    except (OSError, msgspec.DecodeError):
        return SavedFile()


def save(folder: Path, sent: StatuslineInput) -> None:
    """Save a session's context window and the subscription's limits. Raises OSError."""
    with lock_state(folder):  # other sessions' status lines run at the same time
        _save(folder, sent)


def _save(folder: Path, sent: StatuslineInput) -> None:
    before = load(folder)
    window = sent.context_window or ContextWindow()
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    saved = SavedWindow(limit=sent.limit, used_percentage=window.used_percentage, at=now)
    earlier = before.sessions.get(sent.session_id)
    limits = sent.rate_limits or before.rate_limits
    is_same = earlier is not None and msgspec.structs.replace(earlier, at=now) == saved
    if is_same and limits == before.rate_limits:
        return
    others = {name: window for name, window in before.sessions.items() if name != sent.session_id}
    newest = dict([*others.items(), (sent.session_id[:512], saved)][-SESSIONS_KEPT:])
    write(folder / FILE_NAME, msgspec.json.encode(SavedFile(newest, limits)))


def with_saved_window(session: StoredSession, saved: SavedFile) -> StoredSession:
    """Return the session with its saved context window, if there is one."""
    window = saved.sessions.get(session.id)
    if window is None or not window.limit:
        return session
    return msgspec.structs.replace(session, limit=window.limit)
