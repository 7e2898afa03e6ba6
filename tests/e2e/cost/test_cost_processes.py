"""Tests the ledger with several processes, and with processes that are killed."""

from __future__ import annotations

import random
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from sidecar.cost.book import CostBook
from sidecar.cost.ledger import Ledger
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices
from sidecar.cost.repricing import price_calls
from sidecar.cost.sums import Scope, read_events, read_total
from tests.e2e.cost.pricer import own
from tests.e2e.cost.writer import event

WRITES = 1000
KILLS = 12


def start(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.cost.writer", str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def kept(path: Path) -> tuple[list[str], int, int, int]:
    """Return a ledger's request ids, and three sums that must be consistent with them.

    The sums are the total calls in `event_sums`, the total input tokens in `event_sums`, and the
    total input tokens in `event`.
    """
    ledger = Ledger(path)
    with ledger.reader() as connection:
        ids = [row[0] for row in connection.execute("SELECT request FROM event")]
        calls, summed = connection.execute(
            "SELECT sum(calls), sum(input) FROM event_sums"
        ).fetchone()
        (single,) = connection.execute("SELECT sum(input) FROM event").fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    ledger.close()
    return ids, calls, summed, single


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path, seed: int) -> None:
    """Processes that record 1,000 calls are killed at random times and started again."""
    path = tmp_path / "state" / "ledger.db"
    rng = random.Random(seed)
    acknowledged: set[str] = set()
    points = sorted(rng.sample(range(1, WRITES), KILLS))
    exit_codes = set[int]()
    for point in points:
        writer = start(path, "w", WRITES)
        assert writer.stdout is not None
        for _ in range(point):
            acknowledged.add(writer.stdout.readline().strip())
        writer.kill()
        acknowledged.update(line.strip() for line in writer.stdout if line.endswith("\n"))
        exit_codes.add(writer.wait())  # a process may finish before it is killed
        writer.stdout.close()
    assert -9 in exit_codes
    last = start(path, "w", WRITES)
    output, _ = last.communicate()
    acknowledged.update(output.split())
    ids, calls, summed, single = kept(path)
    assert len(ids) == len(set(ids)) == calls == WRITES
    assert acknowledged == set(ids)
    assert summed == single == WRITES * (WRITES + 1) // 2


def test_two_writers_killed_together_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.db"
    rng = random.Random(7)
    acknowledged: set[str] = set()
    for turn in range(KILLS):
        writers = [start(path, f"{name}{turn}", 100 * WRITES) for name in ("a", "b")]
        for writer in writers:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(rng.randrange(1, WRITES // KILLS))]
            acknowledged.update(line.strip() for line in lines)
        for writer in writers:
            writer.kill()
        for writer in writers:
            assert writer.stdout is not None
            acknowledged.update(line.strip() for line in writer.stdout if line.endswith("\n"))
            assert writer.wait() == -9
            writer.stdout.close()
    ids, calls, summed, single = kept(path)
    assert len(ids) == len(set(ids)) == calls
    assert acknowledged <= set(ids)
    assert summed == single


def test_four_processes_write_at_once(tmp_path: Path) -> None:
    """Four processes create the ledger at the same time. Two of them record the same calls."""
    path = tmp_path / "state" / "ledger.db"
    writers = [start(path, name, 300) for name in ("a", "b", "c", "c")]
    outputs = [writer.communicate()[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0]
    assert all(len(output) == 300 for output in outputs)
    ids, calls, summed, single = kept(path)
    assert len(ids) == len(set(ids)) == calls == 900
    assert set(ids) == {one for output in outputs for one in output}
    assert summed == single == 3 * (300 * 301 // 2)


def test_a_long_read_does_not_block_writers(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.db"
    ledger = Ledger(path)
    ledger.record(event("here", 0))
    with ledger.reader() as connection:
        before = connection.execute("SELECT count(*) FROM event").fetchone()
        assert start(path, "there", 50).communicate()[0].count("\n") == 50
        assert connection.execute("SELECT count(*) FROM event").fetchone() == before
    ledger.close()
    assert len(kept(path)[0]) == 51


def house_call(number: int) -> LedgerEvent:
    model, buckets = ("house-1", "gpt-5")[number % 2], Buckets(input=1_000_000)
    return msgspec.structs.replace(event("s", number), model=model, buckets=buckets)


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_pricing_is_continued_by_the_next_process(tmp_path: Path, seed: int) -> None:
    """Processes that price 1,000 calls are killed at random times, while calls are recorded."""
    rng, book = random.Random(seed), CostBook(tmp_path)
    book.prices.load()
    book.ledger.record_many(map(house_call, range(WRITES)))
    recorded, is_done = WRITES, False
    while not is_done:
        arguments = [sys.executable, "-m", "tests.e2e.cost.pricer", str(tmp_path), "3"]
        pricer = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert pricer.stdout is not None
        for _ in range(rng.randrange(1, 25)):
            is_done = not pricer.stdout.readline()
        if not is_done:
            pricer.kill()
            book.ledger.record_many(map(house_call, range(recorded, recorded + 10)))
            recorded += 10
        pricer.communicate()
    assert price_calls(CostBook(tmp_path, own("3")).ledger) is False
    events, prices = list(read_events(book.ledger, Scope())), Prices(own("3"))
    assert len(events) == recorded
    assert all(event.cost == prices.cost(event) for event in events)
    with book.ledger.reader() as connection:
        assert read_total(connection, Scope()).cost == sum(
            event.cost.usd or 0 for event in events if event.cost
        )
    book.close()


def test_two_processes_price_the_same_ledger(tmp_path: Path) -> None:
    book = CostBook(tmp_path)
    book.prices.load()
    book.ledger.record_many(map(house_call, range(WRITES)))
    arguments = [sys.executable, "-m", "tests.e2e.cost.pricer", str(tmp_path), "3"]
    pricers = [subprocess.Popen(arguments, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [pricer.wait() for pricer in pricers] == [0, 0]
    with book.ledger.reader() as connection:
        assert read_total(connection, Scope()).cost == WRITES // 2 * (3 + Decimal("1.25"))
    book.close()
