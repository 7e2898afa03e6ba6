"""Tests many users' ledgers with a real collector and a real ClickHouse, including crashes.

Shippers and the collector are killed at random times. The collector acknowledges records before it
has written them, so some records are lost. The store says which, and `cost ship --since` sends them
again.
"""

from __future__ import annotations

import hmac
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import repeat
from multiprocessing.context import ForkServerProcess as Process
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import pytest

from sidecar.cost.book import CostBook
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices
from sidecar.cost.records import ShippedRecord, export_request
from sidecar.cost.sums import Scope, read_events
from tests.clickhouse import ClickHouse
from tests.e2e.team.rotel import Rotel
from tests.e2e.team.shipper import PROCESSES, report, ship_all

SALT = "a grain"
PASSWORD = "store secret"  # noqa: S105
SECRETS = {"TEAM_SALT": SALT, "STORE_PASSWORD": PASSWORD}
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
START = TODAY - timedelta(days=33)
DAY = START.date().isoformat()
DAYS = 28
MONTH_END = TODAY.replace(day=1) - timedelta(minutes=1)
AGENTS = {
    "claude-code": ("anthropic", "claude-sonnet-4-5", "claude-haiku-4-5"),
    "codex": ("openai", "gpt-5", "gpt-5-mini"),
    "copilot-chat": ("github", "gpt-5"),
    "protocol": ("google", "gemini-2.5-pro"),
    "opencode": ("nobody", "unknown-model"),
}


class Totals(NamedTuple):
    calls: int
    prompt: int
    completion: int
    cost: Decimal


class Team:
    """A team's ledgers, and the telemetry that the agents report."""

    def __init__(self, folder: Path, users: int, calls: int, store: str, collector: str) -> None:
        self.random = random.Random(31)
        self.folders = [folder / f"user{number:02}" for number in range(users)]
        self.events: dict[Path, list[LedgerEvent]] = {}
        for number, user in enumerate(self.folders):
            user.mkdir()
            (user / "config.toml").write_text(
                f'[ledger]\notel-endpoint = "{collector}"\n[agents]\nenabled = false\n'
                f'[team]\nuser = "{user.name}@example.com"\nteam = "team{number % 3}"\n'
                f'salt-env = "TEAM_SALT"\nstore = "{store}"\nstore-password-env = "STORE_PASSWORD"\n'
            )
            # One machine's clock is several days off.
            skew = timedelta(days=3 if number == 0 else 0)
            self.events[user] = [self._event(user.name, n, skew) for n in range(calls)]
            self.record(user, self.events[user])

    def _event(self, user: str, number: int, skew: timedelta) -> LedgerEvent:
        pick = self.random
        agent = pick.choice(list(AGENTS))
        provider, *models = AGENTS[agent]
        session = f"{user}-{agent}-{number // 40}"
        # Some calls are at the end of a month, so that reports of one call may be in two
        # partitions.
        at = START + skew + timedelta(seconds=pick.randrange(DAYS * 86_400))
        if pick.random() < 0.05:
            at = MONTH_END + timedelta(seconds=pick.randrange(60))
        buckets = Buckets(
            input=pick.randrange(5_000),
            cache_read=pick.randrange(200_000),
            cache_write_5m=pick.randrange(20_000) if agent == "claude-code" else 0,
            output=pick.randrange(8_000),
            reasoning=pick.randrange(2_000) if agent == "codex" else 0,
        )
        request = f"{user}-{number}"
        thread = f"{session}/{buckets.prompt}/{buckets.cache_read}/{buckets.completion}/{buckets.reasoning}"
        ids = {"claude-code": f"req_{request}", "codex": thread, "copilot-chat": f"resp_{request}"}
        return LedgerEvent(
            at=at,
            model=pick.choice(models),
            provider=provider,
            agent=agent,
            session=session,
            workspace="file:///home/someone/project",
            request_id=request,
            telemetry_id=ids.get(agent),
            buckets=buckets,
            estimated_tokens=pick.choice([None, buckets.prompt + 7]),
            reported_cost=Decimal(pick.randrange(10**9)).scaleb(-10) if agent == "copilot-chat" else None,
        )  # fmt: skip

    def record(self, user: Path, events: list[LedgerEvent]) -> None:
        book = CostBook(user / "state")
        book.prices.load()
        book.ledger.record_many(events)
        book.close()

    def amend(self, user: Path, share: float) -> None:
        """Increase the output of some of a user's calls, as if the first counts were partial."""
        events = self.events[user]
        for index in self.random.sample(range(len(events)), int(len(events) * share)):
            buckets = events[index].buckets
            more = msgspec.structs.replace(buckets, output=buckets.output + 1_000)
            events[index] = msgspec.structs.replace(events[index], buckets=more)
        self.record(user, events)

    def telemetry(self, user: Path, share: float) -> list[tuple[str, ShippedRecord]]:
        """Return telemetry for some of a user's calls, as reported by agents with wrong clocks."""
        reported = (event for event in self.events[user] if event.telemetry_id)
        return [
            (event.agent, self._agents_report(event))
            for event in reported
            if self.random.random() < share
        ]

    def _agents_report(self, event: LedgerEvent) -> ShippedRecord:
        at = event.at + timedelta(seconds=self.random.randrange(-7_200, 7_200))
        buckets = event.buckets
        if event.agent == "claude-code":
            attributes: dict[str, str | int] = {
                "event.name": "api_request",
                "request_id": (event.telemetry_id or ""),
                "session.id": event.session,
                "model": event.model,
                "input_tokens": buckets.input,
                "output_tokens": buckets.output,
                "cache_read_tokens": buckets.cache_read,
                "cache_creation_tokens": buckets.cache_writes,
                "cost_usd": "0.1234",
            }
        elif event.agent == "codex":
            attributes = {
                "event.name": "codex.sse_event",
                "event.kind": "response.completed",
                "conversation.id": event.session,
                "model": event.model,
                "input_token_count": buckets.prompt,
                "cached_token_count": buckets.cache_read,
                "output_token_count": buckets.completion,
                "reasoning_token_count": buckets.reasoning,
            }
        else:
            attributes = {
                "event.name": "gen_ai.client.inference.operation.details",
                "gen_ai.response.id": (event.telemetry_id or ""),
                "gen_ai.conversation.id": event.session,
                "gen_ai.response.model": event.model,
                "gen_ai.usage.input_tokens": buckets.prompt,
                "gen_ai.usage.output_tokens": buckets.completion,
            }
        return ShippedRecord(int(at.timestamp() * 1000) * 1_000_000, attributes)

    @cached_property
    def prices(self) -> Prices:
        return Prices()

    def totals(self, user: Path) -> Totals:
        """Return a user's ledger totals."""
        book = CostBook(user / "state")
        calls = prompt = completion = 0
        usd = Decimal(0)
        for event in read_events(book.ledger, Scope()):
            calls, prompt = calls + 1, prompt + event.buckets.prompt
            completion += event.buckets.completion
            usd += self.prices.cost(event).usd or Decimal(0)
        book.close()
        return Totals(calls, prompt, completion, usd)


def hash_of(user: Path) -> str:
    name = f"{user.name}@example.com".encode()
    return hmac.new(SALT.encode(), name, "sha256").hexdigest()[:32]


class Chaos:
    """Two shippers and a collector that are repeatedly killed and restarted."""

    def __init__(self, team: Team, collector: Rotel) -> None:
        self.team, self.collector, self.random = team, collector, random.Random(7)
        self.shippers: list[Process] = []
        self.starts = self.kills = self.kills_while_shipping = 0

    def run(self, kills: int, longest_wait: float) -> None:
        """Kill processes at random times, and amend calls in between."""
        amended = list(self.team.folders)
        self.shippers = [self._start(number) for number in range(2)]
        while self.kills < kills:
            for number, shipper in enumerate(self.shippers):
                if not shipper.is_alive():  # calls may have been amended since the shipper ended
                    self.shippers[number] = self._start(number)
            time.sleep(self.random.random() * longest_wait)
            victim = self.random.randrange(3)
            if victim < 2:
                self._kill(victim)
            else:
                self.collector.kill()
                time.sleep(2 if self.kills == kills // 2 else 0)  # unavailable for a while
                self.collector.start()
            self.kills += 1
            for _ in range(1 + len(self.team.folders) // kills):
                if amended:
                    self.team.amend(amended.pop(), 0.05)
        for user in amended:
            self.team.amend(user, 0.05)
        for shipper in self.shippers:
            shipper.join()
        for number in range(2):  # send the amendments that the shippers missed
            last = self._start(number)
            last.join(600)
            assert last.exitcode == 0

    def _start(self, number: int) -> Process:
        # Begin with a different user each time. After some kills, most users' calls have been sent.
        self.starts += 1
        first = self.starts % len(self.team.folders)
        folders = [*self.team.folders[first:], *self.team.folders[:first]][:: -1 if number else 1]
        shipper = PROCESSES.Process(target=ship_all, args=(folders, SECRETS))
        shipper.start()
        return shipper

    def _kill(self, number: int) -> None:
        shipper = self.shippers[number]
        self.kills_while_shipping += shipper.is_alive()
        shipper.kill()
        shipper.join()


def post(collector: Rotel, agent: str, records: list[ShippedRecord]) -> None:
    service = {"codex": "codex_cli_rs"}.get(agent, agent)
    body = export_request(records, {"service.name": service, "user.hash": "agents own"})
    for _ in range(100):
        try:
            answer = httpx.post(
                f"{collector.url}/v1/logs",
                json=body,
                trust_env=False,
            )
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            assert answer.status_code == 200
            return


def send_missing(team: Team, store: ClickHouse) -> None:
    """Send what the store lacks, by the reports of the machines, until nothing is missing."""
    missing: dict[str, str] = {}
    users = team.folders
    for _ in range(5):
        with ProcessPoolExecutor(4, mp_context=PROCESSES) as pool:
            since = [missing.get(hash_of(user)) for user in users]
            list(pool.map(report, users, repeat(SECRETS), since))
        await_written(store)
        store.compute_daily()
        store.age_reports()
        rows = store.rows("SELECT user, min(day), sum(missing) FROM llm.missing GROUP BY user")
        missing = {user: day for user, day, _calls in rows}
        users = [user for user in team.folders if hash_of(user) in missing]
        if not users:
            return
    raise AssertionError(rows)


def await_written(store: ClickHouse) -> None:
    """Wait until the collector has written all records."""
    before, count = None, "SELECT count() FROM otel.otel_logs"
    while (after := store.rows(count)) != before:
        before = after
        time.sleep(2)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClickHouse]:
    store = ClickHouse(tmp_path / "store", PASSWORD)
    yield store
    store.close()


@pytest.fixture
def collector(store: ClickHouse) -> Iterator[Rotel]:
    collector = Rotel(store.url, PASSWORD)
    collector.start()
    collector.await_ready()
    yield collector
    collector.kill()


def check(team: Team, store: ClickHouse) -> None:
    """Check that the store contains each call once, and has the same totals as the ledgers."""
    expected = {hash_of(user): team.totals(user) for user in team.folders}
    sums = "sum(input + cache_read + cache_write), sum(output + reasoning), sum(cost)"
    for query in (
        f"SELECT user, count(), {sums} FROM llm.calls FINAL GROUP BY user",  # noqa: S608
        f"SELECT user, sum(calls), {sums} FROM llm.daily GROUP BY user",  # noqa: S608
    ):
        found = {
            user: Totals(int(calls), int(prompt), int(completion), Decimal(usd))
            for user, calls, prompt, completion, usd in store.rows(query)
        }
        assert found == expected
    (counts,) = store.rows("SELECT count(), uniqExact(call_id) FROM llm.calls FINAL")
    assert counts == [str(sum(total.calls for total in expected.values()))] * 2
    ((reports,),) = store.rows("SELECT count() FROM otel.otel_logs WHERE ServiceName != 'token-sidecar'")  # fmt: skip
    assert int(reports) > 0


def run(
    folder: Path, store: ClickHouse, collector: Rotel, users: int, calls: int, kills: int
) -> Team:
    team = Team(folder, users, calls, store.url, collector.url)
    reports = [report for user in team.folders for report in team.telemetry(user, 0.3)]
    for agent in AGENTS:
        records = [record for named, record in reports if named == agent]
        for start in range(0, len(records) // 2, 1_000):  # agents report half of the calls first
            post(collector, agent, records[: len(records) // 2][start : start + 1_000])
    chaos = Chaos(team, collector)
    chaos.run(kills, longest_wait=0.3)
    assert chaos.kills_while_shipping
    collector.await_ready()
    for agent in AGENTS:
        records = [record for named, record in reports if named == agent]
        for start in range(0, len(records) - len(records) // 2, 1_000):
            post(collector, agent, records[len(records) // 2 :][start : start + 1_000])
    send_missing(team, store)
    check(team, store)
    return team


def test_every_call_arrives_once_whatever_is_killed(
    tmp_path: Path, store: ClickHouse, collector: Rotel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_SALT", SALT)
    monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
    run(tmp_path, store, collector, users=5, calls=300, kills=10)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_hundred_thousand_calls_of_fifty_users_arrive_once(
    tmp_path: Path, store: ClickHouse, collector: Rotel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_SALT", SALT)
    monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
    run(tmp_path, store, collector, users=50, calls=2_000, kills=200)


def wait_for(store: ClickHouse, query: str, expected: list[list[str]]) -> None:
    deadline = time.monotonic() + 30
    while store.rows(query) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    assert store.rows(query) == expected
