"""Finds where the lines copied from the parent end in forked and spawned Codex threads.

Copies may have new or old times. These are checked in order: the ordinal of the first own line,
if the file names it; turns and totals that the parent's file also contains; the time at which a
turn began. Without the parent's file, the first pause ends the copy, which is written without
pauses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sidecar.agents.fields import parse_iso_time
from sidecar.agents.file_reading import chunks, open_quietly
from sidecar.agents.listing import list_folder
from sidecar.agents.readers.codex_lines import (
    KIND_WITHIN,
    Payload,
    RolloutLine,
    entry,
    is_read,
)
from sidecar.agents.stores import Lines

if TYPE_CHECKING:
    from sidecar.agents.readers.codex_lines import RolloutState, UsageParts

_PAUSE = timedelta(seconds=2)
_STARTS = ("turn_context", "task_started", "turn_started")


class Parent(NamedTuple):
    """Identifies a parent's lines: the ids of its turns, and its totals after each call."""

    turns: frozenset[str] = frozenset()
    totals: frozenset[UsageParts] = frozenset()


def is_own(state: RolloutState, one: RolloutLine, payload: Payload, parent: Parent) -> bool:
    """Return whether a line, and therefore every later one, belongs to the thread itself."""
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
    """Return whether a line was first written after the thread began, judged by its times."""
    began, at = parse_iso_time(state.began), parse_iso_time(one.timestamp)
    if began is None or at is None or at < began:
        return False
    started = _parse_time(payload.started_at)
    if started is not None:
        # Whole seconds, while the thread's own time has milliseconds.
        return started >= began.replace(microsecond=0)
    copied_at = parse_iso_time(state.copied_at)
    return not state.copied or copied_at is None or at - copied_at > _PAUSE


def _parse_time(value: float | str | None) -> datetime | None:
    if isinstance(value, str):
        return parse_iso_time(value)
    return None if not value or value > 1e11 else datetime.fromtimestamp(value, UTC)


def parent_of(path: str, thread: str | None) -> Parent:
    """Return what identifies a parent's lines, or an empty value if its file is gone."""
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
    """Return the turns and totals of a rollout. Size and time are keys of the cache. Raises
    OSError."""
    turns: set[str] = set()
    totals: set[UsageParts] = set()
    with open_quietly(path) as file:
        for data, _ in chunks(file):
            lines = Lines(path, data, 0).records_of(entry, is_read, within=KIND_WITHIN)
            for payload in (line.payload for line in lines):
                if payload and payload.turn_id:
                    turns.add(payload.turn_id)
                if payload and payload.info and payload.info.total_token_usage:
                    totals.add(payload.info.total_token_usage.parts)
    return Parent(frozenset(turns), frozenset(totals))


def _files_of(path: str, thread: str) -> Iterator[str]:
    """Return a thread's rollouts, from the folders of the days around its creation."""
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
    """Return the folders in which a thread may have begun. Its id (UUIDv7) starts with the time."""
    try:
        at = datetime.fromtimestamp(int(thread.replace("-", "")[:12], 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return []
    days = (at + timedelta(days=offset) for offset in (-1, 0, 1))
    return [sessions / day.strftime("%Y/%m/%d") for day in days]
