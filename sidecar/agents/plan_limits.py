"""Reads the subscription limits that agents report. All functions block.

Claude Code reports its limits to its status line, and Codex writes them to its session files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sidecar.agents.claude_statusline import load
from sidecar.agents.folders import Places, Roots
from sidecar.agents.reader_registry import agents_of, reader_of, readers_here
from sidecar.agents.session_events import ReportedLimit
from sidecar.config.settings import Agents

BLOCK_MINUTES = 300


def current_limits(
    agent: str, settings: Agents, state: Path, now: datetime | None = None
) -> list[ReportedLimit]:
    """Return an agent's limits that have not been reset yet, shortest period first."""
    now = now or datetime.now(UTC)
    found = _reported_limits(agent, Places.of(settings), state)
    current = [one for one in found if one.resets_at is not None and one.resets_at > now]
    return sorted(current, key=lambda limit: limit.minutes)


def block_ends(keys: Collection[str], settings: Agents, state: Path) -> dict[str, datetime]:
    """Return when the newest five-hour block of each agent ends, as far as the agents report it.

    An end may be in the past. The result is empty if a report with these keys has no blocks.
    """
    if "block" not in keys:
        return {}
    readers = readers_here(settings, Places.of(settings), Roots.of(()))
    ends = {reader.agent: block_end(reader.agent, settings, state) for reader in readers}
    return {agent: end for agent, end in ends.items() if end is not None}


def block_end(agent: str, settings: Agents, state: Path) -> datetime | None:
    """Return when an agent's newest five-hour block ends, or None if it is unknown.

    The end may be in the past.
    """
    if agent not in agents_of(settings):
        return None
    return end_of_block(_reported_limits(agent, Places.of(settings), state), datetime.now(UTC))


def end_of_block(limits: Iterable[ReportedLimit], now: datetime) -> datetime | None:
    """Return when the newest five-hour block ends, or None if no limit says so."""
    latest = now + timedelta(minutes=BLOCK_MINUTES)
    ends = (limit.resets_at for limit in limits if limit.minutes == BLOCK_MINUTES)
    return next((end for end in ends if end is not None and end <= latest), None)


def _reported_limits(agent: str, places: Places, state: Path) -> list[ReportedLimit]:
    if agent == "claude-code":
        saved = load(state).rate_limits
        return saved.reported() if saved else []
    with suppress(OSError):
        return [*reader_of(agent).limits(places)]
    return []
