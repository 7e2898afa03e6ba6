"""What Claude Code sends to its status line, and to no file: the true window, the plan's limits.

The newest sessions' numbers are kept in the state folder: counts, a model and times. Blocking.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import typed
from sidecar.config.private import make_folder, write
from sidecar.messages.bounds import MOST_TOKENS

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.agents.values import Occupancy

FILE_NAME = "claude-code-statusline.json"
SESSIONS_KEPT = 64
_MOST_BYTES = 1 << 20
_MOST_USD = 1e6  # of a session


class CurrentUsage(msgspec.Struct, frozen=True):
    """The newest call."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class ContextWindow(msgspec.Struct, frozen=True):
    """The window as Claude Code sees it; its totals add up calls and say nothing of it."""

    context_window_size: int | None = None
    used_percentage: float | None = None
    current_usage: CurrentUsage | None = None


class Quota(msgspec.Struct, frozen=True):
    """How much of a plan's limit is used."""

    used_percentage: float | None = None


class RateLimits(msgspec.Struct, frozen=True):
    """The limits of a plan; keys without them have none."""

    five_hour: Quota | None = None
    seven_day: Quota | None = None


class Named(msgspec.Struct, frozen=True):
    """A model."""

    id: str | None = None
    display_name: str | None = None


class Folders(msgspec.Struct, frozen=True):
    """Where Claude Code works."""

    project_dir: str | None = None


class SessionCosts(msgspec.Struct, frozen=True):
    """What Claude Code reckons that the session has cost, by list prices."""

    total_cost_usd: float | None = None


class StatuslineInput(msgspec.Struct, frozen=True):
    """Of what Claude Code writes to its status line's standard input, what is used here."""

    session_id: str = ""
    cwd: str | None = None
    model: Named = Named()
    workspace: Folders = Folders()
    cost: SessionCosts = SessionCosts()
    context_window: ContextWindow | None = None
    rate_limits: RateLimits | None = None

    @property
    def tokens(self) -> int | None:
        """How full the context is; None where it is not known, as after a compaction."""
        usage = self.context_window.current_usage if self.context_window else None
        if usage is None:
            return None
        total = sum(msgspec.structs.astuple(usage))
        return total if 0 < total <= MOST_TOKENS else None

    @property
    def used_percentage(self) -> float | None:
        """How full the window is by Claude Code's own word, rounded; None for what none can be."""
        share = self.context_window.used_percentage if self.context_window else None
        return share if share is not None and 0 <= share <= 100 else None

    @property
    def cost_usd(self) -> float | None:
        """What the session has cost, by Claude Code's reckoning; None for what none can."""
        cost = self.cost.total_cost_usd
        return cost if cost is not None and 0 <= cost <= _MOST_USD else None

    @property
    def limit(self) -> int | None:
        """The window in tokens."""
        size = self.context_window.context_window_size if self.context_window else None
        return size if size is not None and 0 < size <= MOST_TOKENS else None


class Kept(msgspec.Struct, frozen=True):
    """What is kept of one session."""

    limit: int | None = None
    used_percentage: float | None = None
    at: str = ""


class KeptFile(msgspec.Struct, frozen=True):
    """The file: sessions, newest last, and the limits, which are the account's."""

    sessions: dict[str, Kept] = {}
    rate_limits: RateLimits | None = None


def read_input(data: bytes) -> StatuslineInput | None:
    """What Claude Code wrote; None where it is none of it."""
    try:
        found: Any = typed.decode(data, StatuslineInput)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, StatuslineInput) and found.session_id else None


def kept(folder: Path) -> KeptFile:
    """What was kept; nothing where there is no such file, or a broken one."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return typed.decode(file.read(_MOST_BYTES), KeptFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return KeptFile()


def keep(folder: Path, sent: StatuslineInput) -> None:
    """Keep the window, the percentage and the limits. Raises OSError."""
    before = kept(folder)
    window = sent.context_window or ContextWindow()
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    made = Kept(limit=sent.limit, used_percentage=window.used_percentage, at=now)
    known = before.sessions.get(sent.session_id)
    limits = sent.rate_limits or before.rate_limits
    same = known is not None and msgspec.structs.replace(known, at=now) == made
    if same and limits == before.rate_limits:
        return
    others = {name: one for name, one in before.sessions.items() if name != sent.session_id}
    newest = dict([*others.items(), (sent.session_id[:512], made)][-SESSIONS_KEPT:])
    make_folder(folder)
    write(folder / FILE_NAME, msgspec.json.encode(KeptFile(newest, limits)))


def with_window(size: Occupancy, known: Kept) -> Occupancy:
    """A session's size in the window that Claude Code itself named, where it did."""
    return size if known.limit is None else msgspec.structs.replace(size, limit=known.limit)
