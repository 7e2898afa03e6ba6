"""Reads the subscription limits that agents report. All functions block.

Claude Code reports its limits to its status line, and Codex writes them to its session files.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sidecar.agents.places import Places
from sidecar.agents.registry import reader_of, readers_here
from sidecar.agents.roots import Roots
from sidecar.workspace.claude_statusline import load

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sidecar.agents.events import ReportedLimit
    from sidecar.config.settings import Agents

_BLOCK_MINUTES = 300


def current_limits(
    agent: str, settings: Agents, state: Path, now: datetime | None = None
) -> list[ReportedLimit]:
    """Return an agent's limits that have not been reset yet, shortest period first."""
    now = now or datetime.now(UTC)
    found = _reported_limits(agent, Places.of(settings), state)
    current = [one for one in found if one.resets_at is not None and one.resets_at > now]
    return sorted(current, key=lambda limit: limit.minutes)


def block_ends(settings: Agents, state: Path, now: datetime | None = None) -> dict[str, datetime]:
    """Return when the newest five-hour block of each agent ends, as far as the agents report it.

    The end may be in the past.
    """
    now, places = now or datetime.now(UTC), Places.of(settings)
    ends: dict[str, datetime] = {}
    for reader in readers_here(settings, places, Roots.of(())):
        end = end_of_block(_reported_limits(reader.agent, places, state), now)
        if end is not None:
            ends[reader.agent] = end
    return ends


def end_of_block(limits: Iterable[ReportedLimit], now: datetime) -> datetime | None:
    """Return when the newest five-hour block ends, or None if no limit says so."""
    latest = now + timedelta(minutes=_BLOCK_MINUTES)
    ends = (limit.resets_at for limit in limits if limit.minutes == _BLOCK_MINUTES)
    return next((end for end in ends if end is not None and end <= latest), None)


def _reported_limits(agent: str, places: Places, state: Path) -> list[ReportedLimit]:
    if agent == "claude-code":
        saved = load(state).rate_limits
        return saved.reported() if saved else []
    with suppress(OSError):
        return [*reader_of(agent).limits(places)]
    return []
