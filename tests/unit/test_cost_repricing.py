"""Tests that recorded calls get new prices, and that a ledger of version 0.1.0 keeps its calls."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from sidecar.config.settings import LedgerSettings, Price, Settings
from sidecar.cost import ledger as ledger_file
from sidecar.cost import repricing
from sidecar.cost.book import CostBook
from sidecar.cost.cost_page import LedgerSource, whole_page
from sidecar.cost.cost_protocol import CostDetailParams
from sidecar.cost.export import exported
from sidecar.cost.ledger import FILE_NAME, SUMS, Ledger, LedgerError
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices
from sidecar.cost.repricing import NOTE, price_calls, price_new_calls
from sidecar.cost.shipping import ShippingQueue, open_queue
from sidecar.cost.sums import Scope, read_events, read_total
from tests.unit.cost_calls import call_of
from tests.unit.test_cost_prices import PRIVATE_LIST

OLD = (Path(__file__).parents[1] / "fixtures/ledger/0.1.0.sql").read_text("utf-8")
"""A ledger of version 0.1.0 with nine calls, of which six have been shipped."""
START = datetime(2026, 11, 20, tzinfo=UTC)
OpenBook = Callable[..., CostBook]


def own(price: str, models: str = "house-*") -> tuple[Price, ...]:
    return (Price(models=(models,), input=Decimal(price), output=Decimal(0)),)


def call(number: int, model: str = "house-1") -> LedgerEvent:
    return call_of(
        at=START + timedelta(hours=number),
        model=model,
        tokens=1_000_000,
        session=f"s{number % 3}",
        request_id=f"{model}-{number}",
    )


def total(ledger: Ledger) -> Decimal:
    with ledger.reader() as connection:
        return read_total(connection, Scope()).cost


def queue_of(book: CostBook) -> ShippingQueue:
    queue = open_queue(book, Settings(ledger=LedgerSettings(otel_endpoint="http://127.0.0.1:9")))
    assert queue is not None
    return queue


def assert_exact(ledger: Ledger) -> None:
    """Check that all calls have their current prices, and that the daily sums contain them."""
    for event in read_events(ledger, Scope()):
        assert event.cost == ledger.prices.cost(event)
    keys, sums = "day, session, kind", ", ".join(f"sum({name})" for name in SUMS)
    with ledger.reader() as connection:
        by_call = connection.execute(
            f"SELECT {keys}, {sums} FROM event_sums WHERE id <= (SELECT upto FROM folded) "  # noqa: S608
            f"GROUP BY {keys} ORDER BY {keys}"
        ).fetchall()
        by_day = connection.execute(
            f"SELECT {keys}, {', '.join(SUMS)} FROM daily WHERE calls > 0 ORDER BY {keys}"  # noqa: S608
        ).fetchall()
    assert by_day == by_call


@pytest.fixture
def open_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenBook]:
    """Return a function that opens the same ledger with other `[[price]]` entries."""
    monkeypatch.setattr(ledger_file, "FOLD_EVERY", 4)
    monkeypatch.setattr(repricing, "BATCH", 3)
    books = []

    def opened(entries: tuple[Price, ...] = ()) -> CostBook:
        books.append(CostBook(tmp_path, entries, zone=UTC))
        books[-1].prices.load()
        return books[-1]

    yield opened
    for book in books:
        book.close()


@pytest.fixture
def old_ledger(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.executescript(OLD)
    connection.close()
    return tmp_path


def test_new_own_price_applies_to_recorded_calls(open_book: OpenBook) -> None:
    first = open_book()
    first.ledger.record_many([*map(call, range(10)), call(1, "gpt-5")])
    assert total(first.ledger) == Decimal("1.25")
    assert not price_calls(first.ledger), "the calls already have these prices"
    second = open_book(own("3"))
    assert price_calls(second.ledger)
    assert total(second.ledger) == Decimal("31.25")
    assert_exact(second.ledger)
    assert not price_calls(second.ledger)


def page(book: CostBook) -> str:
    with book.report_reader() as connection:
        source = LedgerSource(
            connection=connection, prices=book.prices, scope=Scope(), now=datetime.now(UTC)
        )
        return whole_page(source, {})


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_report_says_that_older_calls_do_not_have_their_prices_yet(
    open_book: OpenBook, batches: int
) -> None:
    first = open_book()
    first.ledger.record_many(map(call, range(10)))
    price_calls(first.ledger)
    book, stop, done = open_book(own("1")), threading.Event(), list[float]()

    def progress(share: float) -> None:
        done.append(share)
        if len(done) > batches:
            stop.set()

    price_calls(book.ledger, stop, progress=progress)
    found = book.detail(CostDetailParams(by=("day",)))
    assert (found.note, found.totals.calls) == (NOTE, 10)
    assert NOTE in page(book)
    assert found.totals.cost_usd == 3 * (batches + 1), "the latest calls are priced first"
    assert price_calls(open_book(own("1")).ledger), "another process continues"
    assert book.detail(CostDetailParams()).note == ""
    assert NOTE not in page(book)
    assert book.detail(CostDetailParams()).totals.cost_usd == 10
    assert done == sorted(done)
    assert_exact(book.ledger)


def test_repricing_stops_when_another_process_has_newer_prices(open_book: OpenBook) -> None:
    older, newer = open_book(own("1")), open_book(own("2"))
    older.ledger.record_many(map(call, range(10)))

    def progress(_share: float) -> None:
        price_calls(newer.ledger)

    price_calls(older.ledger, progress=progress)
    assert total(newer.ledger) == 20
    assert_exact(newer.ledger)


class Process:
    """A process with prices of its own. It prices calls when the ledger has changed."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self._applied = ledger, dict[Path, str]()

    def price(self, monkeypatch: pytest.MonkeyPatch) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(repricing, "_applied", self._applied)
            return price_calls(self.ledger)


@pytest.mark.parametrize("calls", [1, 10])
def test_processes_with_different_prices_do_not_price_calls_in_turn(
    open_book: OpenBook, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    prices = own("1"), own("2"), own("3")
    first, second, third = (Process(open_book(entries).ledger) for entries in prices)
    first.ledger.record_many(map(call, range(calls)))
    assert not first.price(monkeypatch)
    assert second.price(monkeypatch)
    assert third.price(monkeypatch)
    assert [one.price(monkeypatch) for one in (first, second, third, first)] == [False] * 4
    assert total(first.ledger) == 3 * calls
    first.ledger.record(call(calls))
    assert not second.price(monkeypatch)
    assert third.price(monkeypatch), "it continues with new calls"
    assert total(first.ledger) == 3 * (calls + 1)
    first.ledger = open_book(own("4")).ledger
    assert first.price(monkeypatch), "its prices have changed"
    assert not third.price(monkeypatch)
    first.ledger = open_book(own("1")).ledger
    assert first.price(monkeypatch), "its prices have changed back"
    assert total(first.ledger) == calls + 1
    assert_exact(first.ledger)


def test_list_that_is_downloaded_again_does_not_change_prices(
    open_book: OpenBook, tmp_path: Path
) -> None:
    stored, content = tmp_path / "prices.json", json.dumps(PRIVATE_LIST)
    stored.write_text(content)
    book = open_book()
    before = book.prices.fingerprint()
    stored.unlink()
    assert book.prices.fingerprint() != before
    stored.write_text(content)
    assert book.prices.fingerprint() == before == open_book().prices.fingerprint()
    stored.write_text(content.replace("7", "8"))
    assert book.prices.fingerprint() != before


def test_updated_list_applies_without_a_restart(open_book: OpenBook, tmp_path: Path) -> None:
    book = open_book()
    event = LedgerEvent(
        at=START, model="house-1", provider="house", buckets=Buckets(input=1_000_000)
    )
    book.ledger.record(event)
    assert total(book.ledger) == 0
    (tmp_path / "prices.json").write_text(json.dumps(PRIVATE_LIST))
    assert price_calls(book.ledger)
    assert total(book.ledger) == 7
    book.ledger.record(event)
    assert total(book.ledger) == 14


@pytest.mark.parametrize("how", ["report", "background"])
def test_calls_recorded_before_the_list_is_loaded_are_priced_later(
    open_book: OpenBook, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    book = open_book(own("2"))
    with monkeypatch.context() as patched:
        patched.setattr(Prices, "is_loaded", False)
        book.ledger.record_many(map(call, range(6)))
        queue = queue_of(book)
        assert queue.next_batch().calls == [], "calls without a price are not shipped"
    assert [event.cost for event in read_events(book.ledger, Scope())] == [None] * 6
    assert exported(next(read_events(book.ledger, Scope()))).cost_source == "unpriced"
    if how == "report":
        assert book.detail(CostDetailParams()).totals.cost_usd == 12
    else:
        assert price_calls(book.ledger)
    assert total(book.ledger) == 12
    assert [call.change for call in queue.next_batch().calls] == [0] * 6


def amend_unpriced(
    book: CostBook, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...]
) -> None:
    """Double the tokens of calls while the price list is not loaded."""
    with monkeypatch.context() as patched:
        patched.setattr(Prices, "is_loaded", False)
        for event in map(call, numbers):
            more = Buckets(input=1_000_000, output=1)
            book.ledger.record_many([msgspec.structs.replace(event, buckets=more)])


@pytest.mark.parametrize("numbers", [(0,), (4, 1), (0, 2, 3, 5), tuple(range(6))])
def test_calls_amended_before_the_list_is_loaded_are_priced_again(
    open_book: OpenBook, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...]
) -> None:
    book = open_book(own("2"))
    book.ledger.record_many(map(call, range(6)))
    price_calls(book.ledger)
    amend_unpriced(book, monkeypatch, numbers)
    assert total(book.ledger) == 2 * (6 - len(numbers))
    assert book.detail(CostDetailParams()).totals.cost_usd == 12
    assert_exact(book.ledger)


@pytest.mark.parametrize("numbers", [(0,), (3, 1), (2, 0, 1)])
def test_shipped_calls_amended_before_the_list_is_loaded_are_shipped_again(
    open_book: OpenBook, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...]
) -> None:
    book = open_book(own("2"))
    book.ledger.record_many(map(call, range(4)))
    price_calls(book.ledger)
    queue = queue_of(book)
    queue.accept(queue.next_batch())
    amend_unpriced(book, monkeypatch, numbers)
    assert [call.row for call in queue.accepted_calls()] == [
        number + 1 for number in range(4) if number not in numbers
    ], "calls after an unpriced one are read too"
    book.ledger.record_many([call(9)])
    while (batch := queue.next_batch()).calls:  # the new call does not wait
        queue.accept(batch)
    price_new_calls(book.ledger)
    assert [call.row for call in queue.next_batch().calls] == [number + 1 for number in numbers]
    queue.accept(queue.next_batch())
    assert queue.next_batch().calls == []
    assert [call.row for call in queue.accepted_calls()] == [1, 2, 3, 4, 5]


def test_amendment_during_pricing_is_kept(
    open_book: OpenBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, other = open_book(own("2")), open_book((*own("2"), *own("3", "gpt-5")))
    with monkeypatch.context() as patched:
        patched.setattr(Prices, "is_loaded", False)
        book.ledger.record_many(map(call, range(2)))
    transaction, amended = book.ledger.transaction, Buckets(input=3_000_000, output=1)

    @contextmanager
    def late() -> Iterator[sqlite3.Connection]:
        event = msgspec.structs.replace(call(1), buckets=amended)
        other.ledger.record_many([event])
        with transaction() as connection:
            yield connection

    with monkeypatch.context() as patched:
        patched.setattr(book.ledger, "transaction", late)
        price_new_calls(book.ledger)
    assert total(book.ledger) == 8
    assert_exact(book.ledger)


def test_report_is_made_while_the_ledger_cannot_be_written(
    open_book: OpenBook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    book = open_book(own("2"))
    book.ledger.record_many([call(0)])
    with monkeypatch.context() as patched:
        patched.setattr(Prices, "is_loaded", False)
        book.ledger.record_many([call(1)])
    book.ledger._open().execute("PRAGMA query_only = ON")
    totals = book.detail(CostDetailParams()).totals
    assert (totals.calls, totals.cost_usd) == (2, 2)
    assert "cannot price new calls" in caplog.text
    book.ledger._open().execute("PRAGMA query_only = OFF")
    price_new_calls(book.ledger, lambda: True)
    assert total(book.ledger) == 2, "a canceled report does not price calls"
    assert book.detail(CostDetailParams()).totals.cost_usd == 4


def shipped_rows(queue: ShippingQueue) -> list[tuple[int, str]]:
    return [
        (call.row, str(call.record.attributes["token_sidecar.cost_usd"]))
        for call in queue.next_batch().calls
    ]


def test_shipped_calls_with_another_cost_are_shipped_again(open_book: OpenBook) -> None:
    first = open_book(own("1"))
    first.ledger.record_many([call(0), call(1, "gpt-5"), call(2), call(3, "gpt-5")])
    price_calls(first.ledger)
    queue = queue_of(first)
    queue.accept(queue.next_batch())
    price_calls(open_book(own("2")).ledger)
    assert shipped_rows(queue) == [(3, "2"), (1, "2")]
    queue.accept(queue.next_batch())
    price_calls(open_book(own("2", "house*")).ledger)
    assert shipped_rows(queue) == [], "the prices are written in another way, but are the same"


def test_old_ledger_is_priced_once_and_keeps_all_calls(
    old_ledger: Path, open_book: OpenBook
) -> None:
    before = sqlite3.connect(":memory:")
    before.executescript(OLD)
    columns = "id, key, request, at, day, session, kind, input, cache_read, output, web_searches"
    calls = before.execute(f"SELECT {columns}, estimated FROM event").fetchall()  # noqa: S608
    before.close()
    book = open_book()
    with book.ledger.reader() as connection:
        kept = connection.execute(f"SELECT {columns}, estimated FROM event").fetchall()  # noqa: S608
    assert kept == calls
    assert book.detail(CostDetailParams()).totals.calls == 9
    price_calls(book.ledger)
    assert_exact(book.ledger)
    by_request = {event.request_id: exported(event) for event in read_events(book.ledger, Scope())}
    sources = [by_request.pop(f"request-{number}").cost_source for number in (0, 1, 2, 3, 4, 5, 7)]
    assert sources == ["list", "list", "reported", "agent", "list", "list", "partly"]
    assert book.ledger.record(
        LedgerEvent(
            at=START, model="gpt-5", provider="openai", buckets=Buckets(), request_id="request-0"
        )
    ).duplicate
    book.close()
    again = open_book()
    assert not price_calls(again.ledger)
    assert not list(old_ledger.glob("*.broken-*"))


def test_ledger_of_version_4_keeps_its_calls_prices_and_queue(open_book: OpenBook) -> None:
    """It had neither branches nor lost caches."""
    book = open_book()
    book.ledger.record_many(map(call, range(9)))
    price_calls(book.ledger)
    queue = queue_of(book)
    queue.accept(queue.next_batch(5))
    before = list(read_events(book.ledger, Scope()))
    book.close()
    with sqlite3.connect(book.ledger.path) as connection:
        connection.executescript(
            "CREATE TABLE kept AS SELECT id, workspace, name, agent FROM session; "
            "DROP TABLE session; "
            "CREATE TABLE session (id INTEGER PRIMARY KEY, workspace TEXT NOT NULL, "
            "name TEXT NOT NULL, agent TEXT NOT NULL, UNIQUE (name, workspace, agent)); "
            "INSERT INTO session SELECT * FROM kept; DROP TABLE kept; "
            "DROP VIEW loss_sums; DROP INDEX event_loss; ALTER TABLE event DROP COLUMN loss; "
            "ALTER TABLE event DROP COLUMN lost; ALTER TABLE event DROP COLUMN lost_cost; "
            "PRAGMA user_version = 4"
        )
    connection.close()
    again = open_book()
    assert list(read_events(again.ledger, Scope())) == before
    assert_exact(again.ledger)
    assert len(queue_of(again).next_batch().calls) == 4
    again.ledger.record(msgspec.structs.replace(call(9), branch="main"))
    assert [row.branch for row in again.detail(CostDetailParams(by=("branch",))).rows] == [
        None,
        "main",
    ]


@pytest.mark.usefixtures("old_ledger")
def test_first_prices_of_an_old_ledger_do_not_ship_its_calls_again(open_book: OpenBook) -> None:
    book = open_book()
    price_calls(book.ledger)
    with book.ledger.reader() as connection:
        identity = queue_of(book).identity
        assert connection.execute("SELECT count(*) FROM amended").fetchone() == (0,)
    queue = ShippingQueue(book.ledger, identity, "http://127.0.0.1:9 0")
    assert [call.row for call in queue.next_batch().calls] == [7, 8, 9]
    price_calls(open_book(own("9", "gpt-5")).ledger)
    assert sorted(call.row for call in queue.next_batch().calls if call.change) == [1, 5, 6, 8]


def test_first_report_of_an_old_ledger_does_not_price_its_calls(
    old_ledger: Path, open_book: OpenBook
) -> None:
    book = open_book()
    assert book.detail(CostDetailParams()).note == NOTE
    book.ledger.record(call(0, "gpt-5"))
    with sqlite3.connect(old_ledger / FILE_NAME) as connection:
        assert connection.execute("SELECT count(basis) FROM event").fetchone() == (1,)
    connection.close()
    assert price_calls(book.ledger)
    assert book.detail(CostDetailParams()).note == ""
    assert_exact(book.ledger)


@pytest.mark.parametrize("calls", [0, 1, 9])
def test_new_ledger_does_not_say_that_prices_have_changed(
    open_book: OpenBook, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    book, notes = open_book(own("2")), set[str]()
    with monkeypatch.context() as patched:
        patched.setattr(Prices, "is_loaded", False)
        book.ledger.record_many(map(call, range(calls)))
    notes.add(book.detail(CostDetailParams()).note)
    price_calls(book.ledger, progress=lambda _: notes.add(book.detail(CostDetailParams()).note))
    assert notes == {""}
    assert total(book.ledger) == 2 * calls


def test_migrated_ledger_without_calls_does_not_say_that_prices_have_changed(
    tmp_path: Path, open_book: OpenBook
) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.executescript(OLD)
    connection.execute("DELETE FROM event")
    connection.commit()
    connection.close()
    assert open_book().detail(CostDetailParams()).note == ""


@pytest.mark.usefixtures("old_ledger")
def test_migration_needs_no_recent_sqlite(tmp_path: Path) -> None:
    """`DROP COLUMN` and `RETURNING` need SQLite 3.35, which Python 3.11 does not require."""
    connection = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    statements = list[str]()
    connection.set_trace_callback(statements.append)
    ledger_file.prepare(connection)
    connection.close()
    assert f"PRAGMA user_version = {ledger_file.VERSION}" in statements
    assert not [one for one in statements if "DROP COLUMN" in one or "RETURNING" in one]


def test_migrated_calls_have_the_same_table_as_new_ones(
    tmp_path: Path, old_ledger: Path, open_book: OpenBook
) -> None:
    new = CostBook(tmp_path / "new", zone=UTC)
    schema = "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = 'event'"
    tables = []
    for book in (open_book(), new):
        book.ledger.record(call(0))
        queue_of(book)
        with book.ledger.reader() as connection:
            tables.append(sorted(connection.execute(schema).fetchall()))
    new.close()
    assert tables[0] == tables[1]


def test_call_of_an_old_ledger_gets_its_owner(old_ledger: Path, open_book: OpenBook) -> None:
    """Calls of version 0.1.0 have no rank. Calls that a client reported keep their owner."""
    connection = sqlite3.connect(old_ledger / FILE_NAME)
    connection.execute("UPDATE session SET agent = iif(id % 2, 'codex', 'protocol'), name = id")
    connection.commit()
    connection.close()
    book = open_book()
    before = {event.request_id: event for event in read_events(book.ledger, Scope())}
    for event in before.values():
        if event.request_id is not None:
            moved = msgspec.structs.replace(event, session="zz", agent="codex", rank=9)
            book.ledger.record_many([moved])
    after = {event.request_id: event for event in read_events(book.ledger, Scope())}
    owners = {(before[name].agent, one.session == "zz") for name, one in after.items() if name}
    assert owners == {("codex", True), ("protocol", False)}


def test_failed_migration_leaves_the_ledger_as_it_was(
    old_ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: sqlite3.Connection) -> Iterator[str]:
        yield from migrate(connection)
        yield "nonsense"

    old = sqlite3.connect(old_ledger / FILE_NAME)
    before, migrate = list(old.iterdump()), ledger_file._migration_statements
    monkeypatch.setattr(ledger_file, "_migration_statements", fail)
    with pytest.raises(LedgerError):
        Ledger(old_ledger / FILE_NAME).record(call(1))
    assert list(old.iterdump()) == before
    old.close()
