"""Compares the ledger with plain SQLite: recording with four processes, and reports.

Usage: `python -m benchmarks.ledger [--events 1000000] [--writes 2000] [--json]`. Recording is
compared with inserting a row with the same columns into an equally large file with the same
durability (WAL, synchronous=NORMAL). Reports are compared with the same sums, which SQLite groups
in one scan of the calls (`+` prevents the use of the index). Without daily sums, nothing is faster.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.page import figure
from sidecar.cost.days import TimeRange, local_day
from sidecar.cost.ledger import BUCKETS, SUMS, Ledger
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices
from sidecar.cost.reports import report
from sidecar.cost.sums import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.synchronize import Barrier

PROCESSES = 4
ROUNDS = 5
MOST_TO_BARE = 3
LEAST_TO_SCAN = 20
DAYS = 365
SESSIONS_A_DAY = 6
START = datetime(2025, 11, 20, tzinfo=UTC)
MODELS = (
    ("openai", "gpt-5"),
    ("openai", "gpt-5-mini"),
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-haiku-4-5"),
    ("openrouter", "anthropic/claude-haiku-4.5"),
    ("llamacpp", "qwen-3-8b"),
)
COLUMNS = (
    "request",
    "provider",
    "at",
    "session",
    "kind",
    *BUCKETS,
    "estimated",
    "reported",
    "cost",
    "unpriced",
    "whole",
    "basis",
)


def events(count: int, seed: int = 6) -> Iterator[LedgerEvent]:
    """Return the calls of a year. Each session has one model, and a smaller one for summaries."""
    rng = random.Random(seed)
    for index in range(count):
        day = index * DAYS // count
        at = START + timedelta(days=day, seconds=8 * 3600 + rng.randrange(10 * 3600))
        yield _event(rng, at, day, rng.randrange(SESSIONS_A_DAY))


def events_now(count: int, seed: int) -> Iterator[LedgerEvent]:
    """Return the calls of a later session, one per second."""
    rng = random.Random(seed)
    for index in range(count):
        yield _event(rng, START + timedelta(days=DAYS, hours=9, seconds=index), DAYS, seed)


def _event(rng: random.Random, at: datetime, day: int, session: int) -> LedgerEvent:
    main = rng.random() < 0.8
    provider, model = MODELS[(day + session) % len(MODELS)] if main else MODELS[3]
    return LedgerEvent(
        at=at,
        provider=provider,
        model=model,
        category="main" if main else "summary",
        workspace=f"file:///projects/{session % 3}",
        session=f"{day}-{session}",
        request_id=f"req_{rng.getrandbits(96):024x}",
        buckets=Buckets(
            input=rng.randrange(2_000),
            cache_read=rng.randrange(150_000),
            cache_write_5m=rng.randrange(5_000),
            output=rng.randrange(2_000),
        ),
        estimated_tokens=rng.randrange(150_000),
    )


def bare_row(event: LedgerEvent) -> tuple[object, ...]:
    """Return a row with the same columns as the ledger's, without looking up ids."""
    head = event.request_id, 1, int(event.at.timestamp() * 1000), 1, 1
    costs = None, 123_456_789_012, 0, True, "list"
    return *head, *msgspec.structs.astuple(event.buckets), event.estimated_tokens, *costs


BARE_INSERT = f"INSERT INTO bare ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608


def bare_connection(path: Path) -> sqlite3.Connection:
    """Open a database with the same durability as the ledger."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def fill(folder: Path, count: int) -> None:
    """Write the same events to both files."""
    ours = Ledger(folder / "ledger.db", UTC)
    ours.prices.load()
    ours.record_many(events(count))
    ours.close()
    bare = bare_connection(folder / "bare.db")
    bare.execute(f"CREATE TABLE bare (id INTEGER PRIMARY KEY, {', '.join(COLUMNS)})")
    bare.execute("BEGIN")
    bare.executemany(BARE_INSERT, (bare_row(event) for event in events(count)))
    bare.execute("COMMIT")
    bare.close()


def write_events(path: Path, batch: list[LedgerEvent], start: Barrier) -> None:
    """Record events in the ledger. Several processes do this at the same time."""
    ledger = Ledger(path)
    ledger.record(batch[0])
    start.wait()
    for event in batch[1:]:
        ledger.record(event)
    ledger.close()


def write_bare(path: Path, batch: list[LedgerEvent], start: Barrier) -> None:
    """Create and insert plain rows. Several processes do this at the same time."""
    connection = bare_connection(path)
    connection.execute(BARE_INSERT, bare_row(batch[0]))
    start.wait()
    for event in batch[1:]:
        connection.execute(BARE_INSERT, bare_row(event))
    connection.close()


def timed_writers(writer: Callable[..., None], path: Path, writes: int, seed: int) -> float:
    """Return the wall time of each write in microseconds, while all processes write at once."""
    batches = [list(events_now(writes + 1, seed * PROCESSES + p)) for p in range(PROCESSES)]
    start = multiprocessing.Barrier(PROCESSES + 1)
    workers = [
        multiprocessing.Process(target=writer, args=(path, batch, start)) for batch in batches
    ]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("a writer failed")
    return (time.perf_counter() - began) / (PROCESSES * writes) * 1e6


def recording(folder: Path, writes: int) -> dict[str, float]:
    """Return the medians for both. Rounds alternate, so other load affects both equally."""
    ours, bare = [], []
    for number in range(1, ROUNDS + 1):
        bare.append(timed_writers(write_bare, folder / "bare.db", writes, 100 + number))
        ours.append(timed_writers(write_events, folder / "ledger.db", writes, 200 + number))
    return {"ledgerUs": statistics.median(ours), "bareUs": statistics.median(bare)}


def best_of(action: Callable[[], object], times: int = 5) -> float:
    """Return the milliseconds of the fastest run."""
    runs = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        runs.append((time.perf_counter() - began) * 1000)
    return min(runs)


SCAN = (
    f"SELECT kind, day, {', '.join(f'sum({name})' for name in SUMS)} "  # noqa: S608
    "FROM event_sums WHERE +at >= ? AND +at < ? GROUP BY kind, day"
)


def detail_of(ledger: Ledger, prices: Prices, scope: Scope) -> object:
    """Return `cost/detail` by model, read with a new connection."""
    with ledger.reader() as connection:
        return report(connection, prices, scope, ["model"])


def reading(folder: Path) -> dict[str, dict[str, float]]:
    """Return the times of `cost/detail` and of a scan, for a day, a month and all time."""
    ledger, prices = Ledger(folder / "ledger.db", UTC), Prices()
    last = START + timedelta(days=DAYS)
    results = {}
    for name, days in (("day", 1), ("month", 30), ("all", DAYS + 1)):
        first = last - timedelta(days=days)
        start, end = (int(moment.timestamp() * 1000) for moment in (first, last))
        scope = Scope(times=TimeRange(local_day(first, UTC), local_day(last, UTC) - 1))
        with ledger.reader() as connection:
            scan = best_of(lambda: connection.execute(SCAN, (start, end)).fetchall(), 3)  # noqa: B023
        detail = best_of(lambda: detail_of(ledger, prices, scope))  # noqa: B023
        results[name] = {"detailMs": detail, "scanMs": scan}
    ledger.close()
    return results


def measure(count: int, writes: int) -> dict[str, Any]:
    """Return all figures, measured on new files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, count)
        return {
            "events": count,
            "detail": reading(folder),
            "record": recording(folder, writes),
        }


def show(found: dict[str, Any]) -> bool:
    """Print the figures, and return whether every ratio is within its limit."""
    record = found["record"]
    ratio = record["ledgerUs"] / record["bareUs"]
    print(f"{found['events']} events")
    print(
        f"record, {PROCESSES} processes: {record['ledgerUs']:.1f} us; "
        f"bare insert {record['bareUs']:.1f} us: {ratio:.2f}x (at most {MOST_TO_BARE})"
    )
    shares = []
    for span, times in found["detail"].items():
        shares.append(times["scanMs"] / times["detailMs"])
        print(
            f"cost/detail by model, {span}: {times['detailMs']:.2f} ms; scan "
            f"{times['scanMs']:.1f} ms: 1/{shares[-1]:.0f} (at most 1/{LEAST_TO_SCAN})"
        )
    return bool(ratio <= MOST_TO_BARE and min(shares) >= LEAST_TO_SCAN)


def run(count: int = 1_000_000, writes: int = 2_000) -> bool:
    """Print the figures for the largest ledger, and draw them by size."""
    found = [
        measure(fewer, writes)
        for fewer in dict.fromkeys(max(1, count // share) for share in (1, 10, 100))
    ]
    draw(found)
    return show(found[0])


def draw(found: list[dict[str, Any]]) -> None:
    """Draw both figures by the number of calls in the ledger."""
    across = "calls in the ledger"
    recorded = figure(f"Recording a call, {PROCESSES} processes at once", across)
    detail = figure("`cost/detail` by model, and a scan of the calls", across)
    for one in found:
        recorded.add("token-sidecar", one["events"], one["record"]["ledgerUs"] / 1e6)
        recorded.add("bare SQLite insert", one["events"], one["record"]["bareUs"] / 1e6)
        for span, times in one["detail"].items():
            detail.add(f"cost/detail, {span}", one["events"], times["detailMs"] / 1e3)
            detail.add(f"scan, {span}", one["events"], times["scanMs"] / 1e3)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark from the command line. The exit code is 1 if a ratio is too high."""
    parser = argparse.ArgumentParser(description="The ledger beside plain SQLite.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--writes", type=int, default=2_000, help="for each of 4 processes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.json:
        print(json.dumps(measure(options.events, options.writes)))
        return 0
    return 0 if run(options.events, options.writes) else 1


if __name__ == "__main__":
    sys.exit(main())
