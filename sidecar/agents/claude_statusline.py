"""Stores data that Claude Code sends only to its status line. All functions block.

The data consists of the sessions' context windows and the user's subscription limits.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath

import msgspec

from sidecar import typed
from sidecar.agents.file_reading import TokenCount, parse_iso_time, time_from_ms
from sidecar.agents.session_events import ReportedLimit, StoredSession
from sidecar.config.safe_files import lock_state, write
from sidecar.messages.vendor_usage import LONGEST_ID, MOST_TOKENS
from sidecar.models.names import parse

FILE_NAME = "claude-code-statusline.json"
SESSIONS_KEPT = 64
_MAX_BYTES = 1 << 20
_MAX_PERCENT = 1_000
"""Upper limit for a plausible percentage. Claude Code can exceed 100 % with paid extra usage."""
_MAX_USD = 1e6  # upper limit for a plausible cost


class CurrentUsage(msgspec.Struct, frozen=True):
    """Token usage of the session's latest call."""

    input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    cache_creation_input_tokens: TokenCount = None
    cache_read_input_tokens: TokenCount = None

    @property
    def prompt_tokens(self) -> int:
        parts = (
            self.input_tokens,
            self.cache_creation_input_tokens,
            self.cache_read_input_tokens,
        )
        return sum(tokens or 0 for tokens in parts)


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
        """Return the limits that have a valid percentage, including those that have been reset."""
        # Imported late to keep server startup fast.
        from sidecar.agents.session_events import ReportedLimit

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


class StatuslineCosts(msgspec.Struct, frozen=True):
    """The session's cost, as computed by Claude Code from list prices."""

    total_cost_usd: float | None = None


class StatuslineInput(msgspec.Struct, frozen=True):
    """The JSON that Claude Code sends to its status line. Unused fields are omitted."""

    session_id: str | None = None
    cwd: str | None = None
    transcript_path: str | None = None
    model: ModelName | None = None
    workspace: WorkFolder | None = None
    cost: StatuslineCosts | None = None
    context_window: ContextWindow | None = None
    rate_limits: RateLimits | None = None

    @property
    def session(self) -> str:
        """The session's ID. Claude Code names a transcript after its session."""
        name = self.session_id or PurePath(self.transcript_path or "").stem
        return name[:LONGEST_ID]

    @property
    def model_id(self) -> str | None:
        """The model's ID, possibly with `[1m]`."""
        return (self.model.id or None) if self.model else None

    @property
    def folder(self) -> str | None:
        """The project's folder, or the current folder if the project is unknown."""
        return (self.workspace.project_dir if self.workspace else None) or self.cwd

    @property
    def tokens(self) -> int | None:
        """The number of tokens in the context; None if unknown, for example after a compaction."""
        usage = self.context_window.current_usage if self.context_window else None
        if usage is None:
            return None
        total = usage.prompt_tokens + (usage.output_tokens or 0)
        return total if 0 < total <= MOST_TOKENS else None

    @property
    def needed_window(self) -> int | None:
        """The window that the latest prompt required, if it was too large for the usual one."""
        from sidecar.agents.readers.claude_code import window_of_prompt

        usage = self.context_window.current_usage if self.context_window else None
        return window_of_prompt(usage.prompt_tokens) if usage and self.tokens else None

    @property
    def used_percentage(self) -> float | None:
        """The percentage of the window that is used, or None if the value is invalid."""
        share = self.context_window.used_percentage if self.context_window else None
        return share if share is not None and 0 <= share <= 100 else None

    @property
    def cost_usd(self) -> float | None:
        """The session's cost in USD, or None if the value is invalid."""
        cost = self.cost.total_cost_usd if self.cost else None
        return cost if cost is not None and 0 <= cost <= _MAX_USD else None

    @property
    def limit(self) -> int | None:
        """The context window's size in tokens."""
        size = self.context_window.context_window_size if self.context_window else None
        return size if size is not None and 0 < size <= MOST_TOKENS else None

    @property
    def window(self) -> SavedWindow:
        """The context window, to be saved."""
        window = self.context_window or ContextWindow()
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return SavedWindow(self.limit, window.used_percentage, now, self.model_id)


class SavedWindow(msgspec.Struct, frozen=True):
    """A session's saved context window."""

    limit: int | None = None
    used_percentage: float | None = None
    at: str = ""
    model: str | None = None
    """The ID of the model that has this window, or None if Claude Code did not name it."""

    def applies_to(self, session: StoredSession) -> bool:
        """Return whether this is the window of the session's latest call.

        The session's model may have changed. Without a model's name, the window is only known to
        be that of earlier calls.
        """
        if self.limit is None or self.limit < max(session.tokens or 0, session.limit or 0):
            return False  # a call was larger, so Claude Code reported the wrong window
        if self.model is None:
            at = parse_iso_time(self.at)
            return at is not None and session.updated_at < at + _SECOND
        return session.model is None or is_same_model(self.model, session.model)


def is_same_model(first: str, second: str) -> bool:
    """Return whether two names, possibly with `[1m]`, refer to the same model."""
    return parse(first).bare == parse(second).bare


_SECOND = timedelta(seconds=1)
"""The resolution of saved times."""


class SavedFile(msgspec.Struct, frozen=True):
    """The subscription limits, and the saved context windows keyed by session ID, newest last."""

    sessions: dict[str, SavedWindow] = {}
    rate_limits: RateLimits | None = None


def read_input(data: bytes) -> StatuslineInput | None:
    """Parse Claude Code's JSON, or return None if it is invalid.

    Members of an unexpected type are ignored.
    """
    try:
        return typed.decode_leniently(data, StatuslineInput)
    except msgspec.DecodeError:
        return None


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
    before, saved = load(folder), sent.window
    sessions = {name: window for name, window in before.sessions.items() if name != sent.session}
    earlier = before.sessions.get(sent.session)
    limits = sent.rate_limits or before.rate_limits
    is_same = earlier is not None and msgspec.structs.replace(earlier, at=saved.at) == saved
    if limits == before.rate_limits and (is_same or not sent.session):
        return
    if sent.session:
        sessions[sent.session] = saved
    newest = dict([*sessions.items()][-SESSIONS_KEPT:])
    write(folder / FILE_NAME, msgspec.json.encode(SavedFile(newest, limits)))


def with_saved_window(session: StoredSession, saved: SavedFile) -> StoredSession:
    """Return the session with its saved context window, if there is one."""
    return with_window(session, saved.sessions.get(session.id))


def with_window(session: StoredSession, window: SavedWindow | None) -> StoredSession:
    """Return the session with a window that Claude Code reported, unless a call contradicts it."""
    if window is None or not window.applies_to(session):
        return session
    return msgspec.structs.replace(session, limit=window.limit)
