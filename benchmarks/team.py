"""Measures the shipping of calls to a team's collector, and the team's store.

Usage: `python -m benchmarks.team [CALLS]`. First, 100,000 calls are shipped to a collector, and then
one call per second. The store contains 10 million calls of 1,000 developers in chdb. The benchmark
prints its size, and how long merging, daily sums, the dashboard's queries and `cost --team` take.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import sys
import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.config.settings import LedgerSettings, Settings, Team
from sidecar.cost.book import CostBook
from sidecar.cost.cost_page import whole_page
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.shipping import open_collector, open_queue, ship
from sidecar.cost.team import TeamSource, TeamStore
from tests.clickhouse import SCHEMA, ClickHouse
from tests.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Callable

SHIPPED = 100_000
STORED = 10_000_000
DEVELOPERS, DAYS, TEAMS = 1_000, 100, 20
RUNS = 5
SLOWEST_SECONDS = 1.0
_START = date(2026, 8, 1)
_INSERT_SIZE = 1_000_000
_random = random.Random(31)


def run(stored: int = STORED) -> None:
    """Print all figures."""
    with tempfile.TemporaryDirectory() as folder:
        _measure_shipping(Path(folder))
        _measure_store(Path(folder) / "store", stored)


def _event(number: int) -> LedgerEvent:
    return LedgerEvent(
        at=datetime(2026, 8, 1, tzinfo=UTC) + timedelta(seconds=60 * number),
        model=("claude-sonnet-4-5", "claude-haiku-4-5", "gpt-5")[number % 3],
        provider=("anthropic", "anthropic", "openai")[number % 3],
        agent=("claude-code", "claude-code", "codex")[number % 3],
        session=f"session-{number // 40}",
        request_id=f"msg_{number}",
        telemetry_id=f"req_{number}",
        buckets=Buckets(
            input=_random.randrange(4_000),
            cache_read=_random.randrange(150_000),
            cache_write_5m=_random.randrange(9_000),
            output=_random.randrange(3_000),
        ),
    )


def _measure_shipping(folder: Path) -> None:
    collector, book = Collector(), CostBook(folder)
    collector.keeps_bodies = False
    book.prices.load()
    book.ledger.record_many(map(_event, range(SHIPPED)))
    settings = Settings(ledger=LedgerSettings(otel_endpoint=collector.url))
    queue = open_queue(book, settings)
    assert queue is not None

    async def work() -> None:
        async with open_collector(queue.identity.resource(), settings) as target:
            book.prices.cost(_event(0))  # loads the price list
            started, cpu = time.perf_counter(), time.process_time()
            shipped = await ship(queue, target)
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            assert shipped.accepted == SHIPPED
            print(
                f"shipping {SHIPPED:,} calls: {SHIPPED / seconds:,.0f} calls/s, "
                f"{target.sent_bytes / SHIPPED:.0f} bytes per call on the wire, "
                f"{cpu / SHIPPED * 1e6:.0f} us of processor time per call"
            )
            cpu = time.process_time()
            queue.day_records()
            cpu = time.process_time() - cpu
            print(f"totals of each day: {cpu / SHIPPED * 1e6:.0f} us of processor time per call")
            # Every 15 seconds, a server sends what was recorded.
            costs = []
            for start in range(SHIPPED, SHIPPED + 300, 15):
                book.ledger.record_many(map(_event, range(start, start + 15)))
                cpu = time.process_time()
                await ship(queue, target, limit=100)
                costs.append(time.process_time() - cpu)
            share = statistics.median(costs) / 15
            print(f"shipping one call a second: {share:.2%} of a core (at most 2 %)")

    asyncio.run(work())
    book.close()
    collector.close()


def _measure_store(folder: Path, calls: int) -> None:
    store = ClickHouse(folder)
    store.run("DROP TABLE llm.refresh_daily")  # computed below, while nothing else runs
    started = time.perf_counter()
    for first in range(0, calls, _INSERT_SIZE):
        store.run(_insert(first, min(_INSERT_SIZE, calls - first), 1))
    seconds = time.perf_counter() - started
    print(f"store: {calls / seconds:,.0f} calls/s inserted")
    print(f"daily sums of all {DAYS} days: {_time(store.compute_daily):.1f} s before merging")
    print(f"merging: {_time(lambda: store.run('OPTIMIZE TABLE llm.calls FINAL')):.1f} s")
    ((rows, size),) = store.rows(
        "SELECT sum(rows), sum(bytes_on_disk) FROM system.parts WHERE active AND table = 'calls'"
    )
    per_call = int(size) / int(rows)
    ((sums, sums_size),) = store.rows(
        "SELECT sum(rows), sum(bytes_on_disk) FROM system.parts WHERE active AND table = 'daily_sums'"
    )
    print(
        f"at rest: {per_call:.1f} bytes per call, {int(sums):,} daily sums of "
        f"{int(sums_size) / int(sums):.1f} bytes"
    )
    # Each machine has reported what it has sent of each day.
    store.run(
        "INSERT INTO llm.day_totals SELECT toDate(at) AS day, user, installation, count(), "
        "sum(input + cache_read + cache_write + output + reasoning), sum(cost), now() - 3600 "
        "FROM llm.calls GROUP BY day, user, installation"
    )
    store.run(_insert(calls, 10_000))
    print(f"daily sums after 10,000 new calls: {_time(store.compute_daily):.1f} s")
    dashboard = json.loads((SCHEMA.parent / "dashboard.json").read_text("utf-8"))
    slowest = 0.0
    for panel in dashboard["panels"]:
        query = _expand(panel["targets"][0]["rawSql"])
        seconds = statistics.median(_time(lambda: store.run(query)) for _ in range(RUNS))  # noqa: B023
        slowest = max(slowest, seconds)
        print(f"dashboard, {panel['title']}: {seconds * 1000:.0f} ms")
    with TeamStore(Team(store=store.url)) as team:
        source = TeamSource(store=team, now=datetime.now(UTC), zone=UTC)
        print(f"cost --team --html: {_time(lambda: whole_page(source, {})):.0f} s")
    for factor in (100, 10_000):
        per_year = calls / DAYS * 365 * factor
        print(f"{factor:,} times as many: {per_year * per_call / 1e12:,.1f} TB of calls a year")
    store.close()
    assert slowest < SLOWEST_SECONDS, f"the slowest query takes {slowest:.2f} s"


def _insert(first: int, calls: int, age_days: int = 0) -> str:
    """Return an INSERT of calls: sessions of 40 calls, four models, most of the prompt cached."""
    return f"""
        INSERT INTO llm.calls (call_id, at, user, team, installation, source, agent, provider, model, category, session,
            input, cache_read, cache_write, output, reasoning, cost, cost_source, version, received)
        WITH number + {first} AS n, intDiv(n, 40) AS s, s % {DEVELOPERS} AS u, rand(1) AS a, rand(2) AS b, rand(3) AS c
        SELECT substring(SHA256(toString(n)), 1, 16),
            toDateTime64('{_START}', 3, 'UTC') + intDiv(s, {DEVELOPERS}) % {DAYS} * 86400 + s * 31 % 28800 + n % 40 * 60,
            lower(hex(SHA256(toString(u)))), concat('team', toString(u % {TEAMS})), lower(hex(SHA256(toString(u + 1)))),
            'token-sidecar', ['claude-code', 'codex', 'copilot-chat'][s % 3 + 1],
            ['anthropic', 'openai', 'github'][s % 3 + 1],
            ['claude-sonnet-4-5', 'gpt-5', 'gpt-5-mini', 'claude-haiku-4-5'][if(a % 8 = 0, 4, s % 3 + 1)],
            ['main', 'main', 'main', 'subagent'][n % 4 + 1], sipHash64(s),
            a % 4000, b % 150000, c % 9000, a % 3000, b % 500,
            toDecimal64((a % 4000) * 3 + (b % 150000) * 0.3 + (c % 9000) * 3.75 + (a % 3000) * 15, 6) / 1000000,
            'list', 1, now() - INTERVAL {age_days} DAY
        FROM numbers({calls})"""  # noqa: S608


def _expand(query: str) -> str:
    """Return what Grafana sends for a panel over all days and teams."""
    last = _START + timedelta(days=DAYS)
    query = re.sub(r"\$__dateFilter\(([\w.]+)\)", rf"\1 BETWEEN '{_START}' AND '{last}'", query)
    query = re.sub(r"\$__timeFilter\(([\w.]+)\)", rf"\1 BETWEEN '{_START}' AND '{last}'", query)
    teams = ", ".join(f"'team{number}'" for number in range(TEAMS))
    return query.replace("${team:singlequote}", teams)


def _time(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else STORED)
