"""Prices recorded calls again after the price list or the user's `[[price]]` has changed.

The ledger contains the fingerprint of its prices, and the range of calls (`first` to `last`) that
were priced with them. After a change, the range is empty. It then grows in batches, towards newer
calls and then towards older ones, until `first` is 0. Each batch is one transaction, so a killed
process loses nothing, and several processes can share the work.

Newer calls than `last` are usually priced already. They are checked because the process that
recorded them may have used other prices, or none if it had not loaded the price list yet.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sidecar.cost.ledger import PRICED, Ledger, price_columns, read_calls
from sidecar.cost.ledger_events import LedgerEvent

BATCH = 500
"""Number of calls per transaction. Other processes can record calls between transactions."""
_MAX_REST_SECONDS = 1.0
_UPDATE = f"UPDATE event SET {', '.join(f'{name} = ?' for name in PRICED)} WHERE id = ?"  # noqa: S608
_UNPRICED = "basis IS NULL AND event.id >= ? ORDER BY event.id LIMIT ?"
_NEWER = "event.id > ? ORDER BY event.id LIMIT ?"
_OLDER = "event.id < ? ORDER BY event.id DESC LIMIT ?"
NOTE = "Prices have changed, so the costs of older calls are still being computed."


_applied: dict[Path, str] = {}
"""The fingerprint with which this process last priced each ledger's calls, keyed by its path."""


class _Range(NamedTuple):
    """The calls that have the ledger's prices. `first` is 0 if all older calls have them."""

    fingerprint: str
    first: int
    last: int


def pending_note(connection: sqlite3.Connection) -> str:
    """Return a note for reports, or an empty string if all calls have the current prices."""
    return NOTE if _read_range(connection).first > 0 else ""


def price_new_calls(ledger: Ledger, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Price the calls that were recorded or amended before the price list was loaded.

    Args:
        ledger: The calls.
        cancelled: Called between batches. If it returns true, the other calls stay unpriced.

    Raises:
        LedgerError: The ledger cannot be read or written.
    """
    with ledger.reader() as connection:
        # Older calls than `first` are left to `price_calls`, because there can be many.
        start = _read_range(connection).first
        new = [*read_calls(connection, _UNPRICED, (start, BATCH))]
    while new and not cancelled():
        with ledger.transaction() as connection:
            # Another process may have amended the calls, so they are read again.
            new = [*read_calls(connection, _UNPRICED, (start, BATCH))]
            _update_costs(ledger, connection, new)
        start = new[-1][0] + 1 if new else start


def price_calls(
    ledger: Ledger,
    stop: threading.Event | None = None,
    *,
    rest: float = 0.0,
    progress: Callable[[float], None] = lambda _: None,
) -> bool:
    """Price all calls that may not have the current prices. Returns whether any cost has changed.

    If another process has priced the calls with other prices since this process did, does nothing
    until this process's prices change. Otherwise, both would price all calls in turn, endlessly.

    Args:
        ledger: The calls. Its prices are loaded again if the price list has changed.
        stop: Set this event to stop. The next process continues.
        rest: Seconds to pause per second of work.
        progress: Called with the completed fraction, from 0 to 1.

    Raises:
        LedgerError: The ledger cannot be read or written.
    """
    stop = stop or threading.Event()
    fingerprint, is_changed = ledger.prices.fingerprint(), False
    if not _begin_pricing(ledger, fingerprint):
        return False
    while not stop.is_set():
        began = time.monotonic()
        with ledger.transaction() as connection:
            priced = _read_range(connection)
            if priced.fingerprint != fingerprint:  # another process has other prices
                break
            after, changed = _price_batch(ledger, connection, priced)
        is_changed |= changed > 0
        if after == priced:
            break
        priced = after
        progress(1.0 - priced.first / max(1, priced.last))
        stop.wait(min(_MAX_REST_SECONDS, (time.monotonic() - began) * rest))
    return is_changed


def _begin_pricing(ledger: Ledger, fingerprint: str) -> bool:
    """Return whether this process should price calls. New prices empty the range first."""
    is_new = _applied.get(ledger.path) != fingerprint
    with ledger.reader() as connection:
        priced = _read_range(connection)
        (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM event").fetchone()
    if newest == 0 or (priced.fingerprint != fingerprint and not is_new):
        return False
    _applied[ledger.path] = fingerprint
    if priced == ("", 0, 0):
        # In a new ledger, all calls have been priced. They are only checked.
        with ledger.transaction() as connection:
            connection.execute(
                "UPDATE pricing SET fingerprint = ? WHERE fingerprint = ''", (fingerprint,)
            )
    elif priced.fingerprint != fingerprint:
        with ledger.transaction() as connection:
            connection.execute(
                "UPDATE pricing SET fingerprint = ?, first = ?, last = ?",
                (fingerprint, newest + 1, newest),
            )
    return priced != (fingerprint, 0, newest)


def _price_batch(
    ledger: Ledger, connection: sqlite3.Connection, priced: _Range
) -> tuple[_Range, int]:
    """Price the next calls. Return the range afterwards, and how many calls have another cost."""
    calls = [*read_calls(connection, _NEWER, (priced.last, BATCH))]
    if calls:
        priced = priced._replace(last=calls[-1][0])
    else:
        calls = [*read_calls(connection, _OLDER, (priced.first, BATCH))]
        priced = priced._replace(first=calls[-1][0] if calls else 0)
    changed = _update_costs(ledger, connection, calls)
    connection.execute("UPDATE pricing SET first = ?, last = ?", (priced.first, priced.last))
    return priced, changed


def _update_costs(
    ledger: Ledger, connection: sqlite3.Connection, calls: list[tuple[int, LedgerEvent]]
) -> int:
    """Price calls, and return how many have another cost now."""
    updates = []
    for number, event in calls:
        cost = ledger.prices.cost(event)
        if cost != event.cost:
            updates.append((*price_columns(cost), number))
    connection.executemany(_UPDATE, updates)
    return len(updates)


def _read_range(connection: sqlite3.Connection) -> _Range:
    return _Range(*connection.execute("SELECT fingerprint, first, last FROM pricing").fetchone())
