"""Merges other ledgers and exports into a snapshot of the user's ledger.

This adds up the calls of several machines without a server. A call is added once: it is identified
by its request id or, without one, by all its values. Nothing is written to the files.
"""

from __future__ import annotations

import copy
import csv
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from sidecar import typed
from sidecar.cost.cache_losses import NO_LOSS, CacheLoss, LossCause
from sidecar.cost.export import ExportedCall, buckets_of_export, without_quote
from sidecar.cost.ledger import (
    EVENT_COLUMNS,
    EVENT_TABLES,
    VERSION,
    LedgerError,
    MemoryLedger,
    event_of_row,
    version_of,
)
from sidecar.cost.ledger_events import LedgerEvent, milliseconds
from sidecar.errors import BadParamsError
from sidecar.text.printable import counted

if TYPE_CHECKING:
    from sidecar.config.settings import LedgerSettings
    from sidecar.cost.book import CostBook

_MAGIC = b"SQLite format 3\x00"
_UNREADABLE = "cannot be read as a ledger or an export"
_FIXED_STEPS, _STEPS_PER_BYTE = 2_000_000, 4
"""How many steps SQLite's virtual machine may take to read a ledger. Real ones take 0.4 a byte."""
_STEPS_BETWEEN_CHECKS = 10_000
_DAMAGES = (
    *(OSError, sqlite3.Error, csv.Error, msgspec.DecodeError, ValueError, ArithmeticError),
    *(TypeError, BadParamsError),
)
"""What reading a damaged file raises."""


def merge_ledgers(book: CostBook, files: Sequence[Path]) -> CostBook:
    """Return a cost book in memory with the calls of a book and of other files. Blocks.

    Args:
        book: The user's own book. It is not changed.
        files: Ledgers (`ledger.db`) and exports (`cost export`) of other machines.

    Raises:
        LedgerError: A file cannot be read.
    """
    merged = copy.copy(book)
    merged.ledger = ledger = MemoryLedger(book.prices)
    book.prices.load()
    with book.report_reader() as own:
        ledger.copy_from(own)
    for path in files:
        with ledger.reader() as connection:
            unnamed = Counter(map(_values, _events_in(connection, "request IS NULL")))
        with _named_problems(path):
            calls = [*_new_calls(_read_calls(path), unnamed)]
            batch = ledger.record_many(calls)
            if batch.refused:
                raise ValueError(f"{counted(batch.refused, 'call')} with impossible values")
    return merged


@contextmanager
def _named_problems(path: Path) -> Iterator[None]:
    """Raise what reading a damaged file raises as a LedgerError that names the file."""
    try:
        yield
    except InvalidOperation as error:
        raise LedgerError(f"{path} {_UNREADABLE}: an amount is not a number") from error
    except _DAMAGES as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LedgerError(f"{path} {_UNREADABLE}: {reason}") from error


def named_files(also: Iterable[Path], settings: LedgerSettings) -> list[Path]:
    """Return the files of other machines that the user names on the command line or in settings."""
    named = (Path(os.path.expanduser(name)) for name in settings.also)
    return list(dict.fromkeys((*also, *named)))


def _new_calls(
    calls: Iterable[LedgerEvent], unnamed: Counter[tuple[object, ...]]
) -> Iterator[LedgerEvent]:
    """Yield calls without those that have no request id and are among the `unnamed`."""
    for call in calls:
        if call.request_id is None and unnamed[_values(call)]:
            unnamed[_values(call)] -= 1
        else:
            yield msgspec.structs.replace(call, cost=None)


def _values(call: LedgerEvent) -> tuple[object, ...]:
    return (
        milliseconds(call.at), call.session, call.agent, call.provider, call.model, call.category,
        call.tier, call.buckets,
    )  # fmt: skip


def _read_calls(path: Path) -> Iterator[LedgerEvent]:
    with path.open("rb") as stream:
        is_ledger = stream.read(len(_MAGIC)) == _MAGIC
    yield from _read_ledger(path) if is_ledger else _read_export(path)


def _read_ledger(path: Path) -> Iterator[LedgerEvent]:
    with closing(_connect(path)) as connection:
        if version_of(connection) != VERSION:
            raise ValueError(
                "it is of another version; run `token-sidecar cost` with this version on its "
                "machine, and copy it again"
            )
        checks = (_FIXED_STEPS + _STEPS_PER_BYTE * path.stat().st_size) // _STEPS_BETWEEN_CHECKS
        left = iter(range(checks))
        connection.set_progress_handler(lambda: next(left, None) is None, _STEPS_BETWEEN_CHECKS)
        try:
            yield from _events_in(connection, "1")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            raise ValueError(
                "it has a view that does not end; copy it from its machine again"
            ) from error


def _connect(path: Path) -> sqlite3.Connection:
    """Open a ledger. Nothing is written beside it, unless a `-wal` file with calls is there."""
    found = path.resolve()
    wal = found.with_name(f"{found.name}-wal")
    has_wal = wal.exists()
    mode = "mode=ro" if has_wal else "immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(found))}?{mode}", uri=True)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if not has_wal:
            raise
        raise ValueError(
            f"{wal.name} beside it cannot be read ({error}); copy it and {wal.name} to a folder "
            "that you can write to, or name an export"
        ) from error
    return connection


def _events_in(connection: sqlite3.Connection, where: str) -> Iterator[LedgerEvent]:
    rows = connection.execute(
        f"SELECT {EVENT_COLUMNS} FROM {EVENT_TABLES} WHERE {where} ORDER BY event.id"  # noqa: S608
    )
    return map(event_of_row, rows)


def _read_export(path: Path) -> Iterator[LedgerEvent]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        first = stream.read(1)
        stream.seek(0)
        if first == "{":
            for line in stream:
                yield _event_of(typed.decode(line, ExportedCall))
            return
        if not first:
            raise ValueError("it is empty")
        rows = csv.DictReader(stream)
        if not _COLUMNS.issubset(rows.fieldnames or ()):
            raise ValueError("its first line does not name the columns of an export")
        for row in rows:
            yield _event_of(typed.convert(_cells(row), ExportedCall, strict=False))


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return a CSV row's values. An empty cell is null, and a quoted formula is text."""
    return {
        name: None if value == "" and name not in _TEXTS else without_quote(value)
        for name, value in row.items()
        if isinstance(value, str)
    }


_COLUMNS = {field.encode_name for field in msgspec.structs.fields(ExportedCall) if field.required}
_TEXTS = frozenset({"workspace", "session", "agent", "provider", "model", "category", "branch"})


_CAUSES = {cause.text: cause for cause in LossCause}


def _loss_of(call: ExportedCall) -> CacheLoss | None:
    if call.lost_tokens is None:
        return None
    if call.lost_tokens <= 0 or call.cache_loss is None:
        return NO_LOSS
    return CacheLoss(call.lost_tokens, _CAUSES.get(call.cache_loss, LossCause.UNEXPLAINED))


def _event_of(call: ExportedCall) -> LedgerEvent:
    def amount(usd: float | None) -> Decimal | None:
        return None if usd is None else Decimal(str(usd))

    return LedgerEvent(
        at=datetime.fromisoformat(call.at),
        model=call.model,
        provider=call.provider,
        buckets=buckets_of_export(call),
        category=call.category,
        tier="" if call.service_tier == "standard" else call.service_tier,
        workspace=call.workspace,
        session=call.session,
        agent=call.agent,
        request_id=call.request_id,
        estimated_tokens=call.estimated_tokens,
        reported_cost=amount(call.cost_usd) if call.cost_source == "reported" else None,
        agent_cost=amount(call.agent_cost_usd),
        branch=call.branch,
        loss=_loss_of(call),
    )
