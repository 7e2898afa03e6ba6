"""Crush: `.crush/crush.db` in each project.

A session's tokens are those of its newest call, and so no sum; its cost is the sum.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.agents.databases import columns
from sidecar.agents.fields import Record, from_ms, provider_of, whole_file
from sidecar.agents.folding import Folded
from sidecar.agents.homes import homes
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.readers.one_database import OneDatabase, Since, whole
from sidecar.agents.values import Call, Found, Reading, StoredSession, stored
from sidecar.messages.usage import disjoint

if TYPE_CHECKING:
    import sqlite3

    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots

AGENT = "crush"
_NAMES = (
    "id", "parent_session_id", "title", "prompt_tokens", "completion_tokens", "cost",
    "summary_message_id", "created_at", "updated_at",
)  # fmt: skip


class _Project(Record):
    path: str | None = None
    data_dir: str | None = None


class _Projects(Record):
    projects: list[_Project] | None = None


def _paths(places: Places) -> tuple[Path, ...]:
    """The databases of the projects on Crush's own list."""
    found: list[Path] = []
    for home in homes(places, AGENT):
        with suppress(OSError):
            path = home / "projects.json"
            found += _listed(str(path), path.stat().st_mtime_ns)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=8)
def _listed(path: str, _mtime_ns: int) -> tuple[Path, ...]:
    """The databases on a list, as it is at a time. Raises OSError."""
    projects = whole_file(path, _Projects).projects or ()
    folders = (os.path.join(one.path, one.data_dir or ".crush") for one in projects if one.path)
    return tuple(Path(folder) / "crush.db" for folder in folders)


def _rows(
    connection: sqlite3.Connection, since: str | float | None = None
) -> Iterator[dict[str, Any]]:
    known = columns(connection, "sessions")
    if not {"id", "updated_at"} <= known:
        return
    names = ", ".join(name if name in known else f"NULL AS {name}" for name in _NAMES)
    query = f"SELECT {names} FROM sessions WHERE ? IS NULL OR updated_at >= ?"  # noqa: S608
    for row in connection.execute(query, (since, since)).fetchall():
        yield dict(zip(_NAMES, row, strict=True))


def _model(connection: sqlite3.Connection, session: str) -> tuple[str | None, str]:
    """The model of a session's newest reply, and its provider."""
    if not {"model", "provider", "session_id", "created_at"} <= columns(connection, "messages"):
        return None, ""
    row = connection.execute(
        "SELECT model, provider FROM messages WHERE session_id = ? AND model IS NOT NULL"
        " AND model != '' ORDER BY created_at DESC LIMIT 1",
        (session,),
    ).fetchone()
    return (row[0], row[1] or provider_of(row[0])) if row else (None, "")


def _folder(path: str) -> str:
    """The project that a database is about."""
    folder = os.path.dirname(path)
    return os.path.dirname(folder) if os.path.basename(folder) == ".crush" else folder


def _sessions(
    found: Found, connection: sqlite3.Connection, roots: Roots
) -> Iterator[StoredSession]:
    cwd = _folder(found.path)
    if not roots.hold(cwd):
        return
    for row in _rows(connection):
        if row["parent_session_id"]:
            continue
        model, _ = _model(connection, row["id"])
        prompt, output = whole(row["prompt_tokens"]), whole(row["completion_tokens"])
        track = Track().call(Reading(prompt, output, model))
        if not prompt and row["summary_message_id"]:
            track = track.compaction()
        at, title = _at(row["updated_at"]), row["title"] or None
        yield stored(found, row["id"], cwd, at, occupancy(track), model=model, title=title)


def _fold(path: str, connection: sqlite3.Connection, state: Since) -> Folded[Since]:
    calls = []
    for row in _rows(connection, state.at):
        state = Since(max(row["updated_at"], state.at or 0))
        at, cost = _at(row["created_at"] or row["updated_at"]), row["cost"]
        if at is None or not cost or cost < 0:
            continue
        model, provider = _model(connection, row["id"])
        calls.append(
            Call(
                at=at,
                agent=AGENT,
                session=row["parent_session_id"] or row["id"],
                model=model or "unknown",
                provider=provider,
                usage=disjoint(0, 0, 0, 0, 0, 0),
                request=row["id"],
                workspace=_folder(path),
                category="subagent" if row["parent_session_id"] else "main",
                cost_usd=Decimal(repr(cost)),
                quality="context only",
            )
        )
    return Folded(state, calls)


def _at(value: float | None) -> Any:
    """A time in seconds since 1970; older versions wrote milliseconds."""
    return from_ms(None if value is None else value if value > 1e11 else value * 1000)


READER = OneDatabase(AGENT, _paths, _sessions, _fold)
