"""Exports recorded calls as CSV or JSON Lines, and merges the calls of other machines.

An export has numbers, ids and times but no text. Merging adds the calls in other ledgers and in
exports to a snapshot of the user's ledger. A call is added once: it is identified by its request id
or, without one, by all its values. Nothing is written to the files.
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
from io import StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec

from sidecar import typed
from sidecar.cost.cache_losses import NO_LOSS, CacheLoss, LossCause
from sidecar.cost.days import milliseconds
from sidecar.cost.ledger import (
    BUCKETS,
    VERSION,
    LedgerError,
    MemoryLedger,
    read_calls,
    version_of,
)
from sidecar.cost.ledger_events import Buckets, Cost, LedgerEvent
from sidecar.errors import BadParamsError
from sidecar.text.printable import counted, json_text, printable

if TYPE_CHECKING:
    from sidecar.config.settings import LedgerSettings
    from sidecar.cost.book import CostBook

ExportFormat = Literal["csv", "jsonl"]
CostSource = Literal["reported", "list", "own", "derived", "partly", "unpriced", "agent"]


class ExportedCall(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An exported call. Only the columns for audio, images and video overlap with other columns.

    `cost_usd` is null if no price is known.
    """

    at: str
    workspace: str
    session: str
    agent: str
    provider: str
    model: str
    category: str
    service_tier: str
    request_id: str | None
    input_tokens: int
    cache_read_tokens: int
    cache_write_5m_tokens: int = msgspec.field(name="cacheWrite5mTokens")
    cache_write_1h_tokens: int = msgspec.field(name="cacheWrite1hTokens")
    cache_write_tokens: int
    """Tokens written to a cache with an unknown lifetime."""
    output_tokens: int
    """Output tokens, excluding reasoning."""
    reasoning_tokens: int
    web_searches: int
    file_searches: int
    audio_input_tokens: int
    """Audio tokens, which are also included in `input_tokens`."""
    audio_cache_read_tokens: int
    audio_output_tokens: int
    image_input_tokens: int
    image_cache_read_tokens: int
    image_output_tokens: int
    video_input_tokens: int
    other_tools: int
    estimated_tokens: int | None
    cost_usd: float | None
    cost_source: CostSource
    """How the cost was determined.

    With `derived`, the service tier had no listed price, so its price was derived from the standard
    price. With `partly`, a part of the call has no price and is excluded. With `agent`, the agent
    computed the cost. With `own`, a `[[price]]` entry has the price.
    """
    agent_cost_usd: float | None
    """The cost in USD that the agent computed from its price list."""
    branch: str = ""
    """The git branch that was checked out, or an empty string if unknown."""
    lost_tokens: int | None = None
    """The tokens of a lost cache that were sent again; 0 if it was not lost, null if unknown."""
    cache_loss: str | None = None
    """Why the cache was lost, as in reports by `cache-loss`."""
    lost_cost_usd: float | None = None
    """What the lost tokens cost more than a cache read; null if unknown."""


_USES = frozenset({"web_searches", "file_searches", "other_tools"})
_FIELDS = tuple(name if name in _USES else f"{name}_tokens" for name in BUCKETS)
"""The `ExportedCall` fields for a call's buckets, in the order of `BUCKETS`."""


def write_calls(events: Iterator[LedgerEvent], stream: IO[str], form: ExportFormat = "csv") -> None:
    """Write calls and their costs to a stream."""
    calls = map(exported, events)
    if form == "csv":
        rows = map(msgspec.structs.astuple, calls)
        _write_csv(ExportedCall.__struct_encode_fields__, rows, stream)
    else:
        stream.writelines(f"{json_text(call)}\n" for call in calls)


def source_of(cost: Cost) -> CostSource:
    """Return how a call's cost was determined."""
    if cost.basis is None:
        return "unpriced"
    return cost.basis if cost.whole else "partly"


def exported(event: LedgerEvent) -> ExportedCall:
    cost = event.cost or Cost(None, whole=False)
    return ExportedCall(
        at=event.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        workspace=event.workspace,
        session=event.session,
        agent=event.agent,
        provider=event.provider,
        model=event.model,
        category=event.category,
        service_tier=event.tier or "standard",
        request_id=event.request_id,
        **dict(zip(_FIELDS, msgspec.structs.astuple(event.buckets), strict=True)),
        estimated_tokens=event.estimated_tokens,
        cost_usd=None if cost.usd is None else float(cost.usd),
        cost_source=source_of(cost),
        agent_cost_usd=None if event.agent_cost is None else float(event.agent_cost),
        branch=event.branch,
        lost_tokens=None if event.loss is None else event.loss.tokens,
        cache_loss=event.loss.cause.text if event.loss and event.loss.cause else None,
        lost_cost_usd=None if cost.lost is None else float(cost.lost),
    )


def table_csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table as CSV with full precision. None becomes an empty cell."""
    stream = StringIO()
    _write_csv(heads, rows, stream)
    return stream.getvalue()


def _write_csv(heads: Sequence[str], rows: Iterable[Sequence[object]], stream: IO[str]) -> None:
    table = csv.writer(stream, lineterminator="\n")
    table.writerow(heads)
    for row in rows:
        table.writerow(["" if value is None else _format_cell(value) for value in row])


_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_SPACE = ("\t", "\r")


def _format_cell(value: object) -> object:
    """Format a CSV cell. Text that a spreadsheet would interpret as a formula is quoted."""
    if isinstance(value, float):
        return f"{value:.12f}".rstrip("0").rstrip(".")
    if not isinstance(value, str):
        return value
    return printable("'" + value if _is_formula(value) else value)


def _without_quote(cell: str) -> str:
    """Return the text of a cell that `_format_cell` may have quoted."""
    return cell[1:] if cell[:1] == "'" and _is_formula(cell[1:]) else cell


def _is_formula(text: str) -> bool:
    return text.lstrip().startswith(_FORMULA) or text.startswith(_SPACE)


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
    return (event for _, event in read_calls(connection, f"{where} ORDER BY event.id"))


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
        name: None if value == "" and name not in _TEXTS else _without_quote(value)
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
        buckets=Buckets.of(getattr(call, name) for name in _FIELDS),
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
