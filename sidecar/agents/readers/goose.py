"""Goose: `sessions/sessions.db`. Plain columns are the newest call, `accumulated_*` all of them.

Newer databases have a `usage_ledger` with a row a request, which then is the bill.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import typed
from sidecar.agents.databases import columns
from sidecar.agents.fields import Record, from_ms, provider_of, when
from sidecar.agents.folding import Folded
from sidecar.agents.homes import homes
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.readers.one_database import OneDatabase, Since, whole
from sidecar.agents.values import Call, Found, Reading, StoredSession, stored
from sidecar.messages.usage import disjoint, included

if TYPE_CHECKING:
    import sqlite3
    from datetime import datetime
    from pathlib import Path

    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots

AGENT = "goose"
_LEDGER = "usage_ledger"


class _Config(Record):
    model_name: str | None = None
    context_limit: int | None = None


def _paths(places: Places) -> tuple[Path, ...]:
    return tuple(home / "sessions" / "sessions.db" for home in homes(places, AGENT))


def _rows(
    connection: sqlite3.Connection, table: str, where: str = "1", *values: object
) -> Iterator[dict[str, Any]]:
    """Rows by the names of whatever columns there are; none where there is no such table."""
    if not columns(connection, table):
        return
    cursor = connection.execute(f"SELECT * FROM {table} WHERE {where}", values)  # noqa: S608
    names = [one[0] for one in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


def _config(row: dict[str, Any]) -> _Config:
    try:
        return typed.decode(row.get("model_config_json") or "{}", _Config)
    except msgspec.DecodeError:
        return _Config()


def _at(value: object) -> datetime | None:
    """A time: text, or seconds or milliseconds since 1970."""
    if isinstance(value, int | float):
        return from_ms(value if value > 1e11 else value * 1000)
    return when(value if isinstance(value, str) else None)


def _sessions(
    found: Found, connection: sqlite3.Connection, roots: Roots
) -> Iterator[StoredSession]:
    for row in _rows(connection, "sessions"):
        if not roots.hold(row.get("working_dir")):
            continue
        config = _config(row)
        prompt, output = whole(row.get("input_tokens")), whole(row.get("output_tokens"))
        total = whole(row.get("total_tokens"))
        reading = Reading(prompt or total, output if prompt else 0, config.model_name)
        named = row.get("user_set_name")
        title = (row.get("name") or row.get("description") or None) if named != 0 else None
        at, model = _at(row.get("updated_at")), config.model_name
        size = occupancy(Track().call(reading), window=config.context_limit)
        yield stored(found, str(row["id"]), row["working_dir"], at, size, model=model, title=title)


def _fold(_path: str, connection: sqlite3.Connection, state: Since) -> Folded[Since]:
    calls: list[Call] = []
    newest = state.at
    for row in _rows(connection, "sessions", "? IS NULL OR updated_at >= ?", newest, newest):
        state = Since(max(filter(None, (state.at, row.get("updated_at"))), key=str, default=None))
        requests = list(_rows(connection, _LEDGER, "session_id = ?", row["id"]))
        made = [_of_request(row, one) for one in requests] if requests else [_of_session(row)]
        calls += [one for one in made if one is not None]
    return Folded(state, calls)


def _of_request(session: dict[str, Any], row: dict[str, Any]) -> Call | None:
    """A row of the ledger of requests."""
    at = _at(row.get("created_at") or row.get("timestamp") or session.get("updated_at"))
    prompt, output = whole(row.get("input_tokens")), whole(row.get("output_tokens"))
    read = whole(row.get("cache_read_tokens") or row.get("cache_read_input_tokens"))
    write = whole(row.get("cache_write_tokens") or row.get("cache_write_input_tokens"))
    if at is None or not prompt + read + write + output:
        return None
    model, cost = str(row.get("model") or "unknown"), row.get("cost")
    form = included if prompt >= read + write else disjoint
    return Call(
        at=at,
        agent=AGENT,
        session=str(session["id"]),
        model=model,
        provider=str(row.get("provider") or session.get("provider_name") or provider_of(model)),
        usage=form(prompt, read, write, 0, output, 0),
        request=f"{session['id']}/{row.get('id') or row.get('rowid') or at.isoformat()}",
        workspace=str(session.get("working_dir") or ""),
        category="summary" if row.get("compaction") or row.get("is_compaction") else "main",
        cost_usd=Decimal(repr(cost)) if isinstance(cost, int | float) and cost >= 0 else None,
    )


def _of_session(row: dict[str, Any]) -> Call | None:
    """All calls of a session together: older databases hold no more."""
    at = _at(row.get("updated_at"))
    prompt = whole(row.get("accumulated_input_tokens"))
    output = whole(row.get("accumulated_output_tokens"))
    if at is None or not prompt + output:
        return None
    model = _config(row).model_name or "unknown"
    return Call(
        at=at,
        agent=AGENT,
        session=str(row["id"]),
        model=model,
        provider=str(row.get("provider_name") or provider_of(model)),
        usage=disjoint(prompt, 0, 0, 0, output, 0),
        request=str(row["id"]),
        workspace=str(row.get("working_dir") or ""),
        quality="estimate",
    )


READER = OneDatabase(AGENT, _paths, _sessions, _fold)
