"""Tests that the team store's reports (total, by user, by team) agree with the users' ledgers."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pytest
from click.testing import CliRunner, Result

from sidecar.cli.cost import cost
from sidecar.config.load import load
from sidecar.config.paths import config_file, state_dir
from sidecar.config.settings import LedgerSettings, Settings
from sidecar.cost import team
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams, CostKey
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.records import Identity, ShippedRecord
from sidecar.cost.shipping import QueuedCall, ShippingQueue, open_queue
from sidecar.cost.team import TeamStore, TeamStoreError
from sidecar.server.features import costs
from sidecar.server.server import create_server
from tests.clickhouse import ClickHouse
from tests.collector import Collector
from tests.protocol.client import Client, RpcError

PASSWORD = "store secret"  # noqa: S105
NOW = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)

MODELS = (
    "claude-sonnet-4-5", "gpt-5", "unknown-model",
    "claude-sonnet-4-5-20250929", "gpt-5-2025-08-07", "unknown-model-2025-08-07",
)  # fmt: skip


def events(user: int) -> list[LedgerEvent]:
    """Return calls from five days with list prices, reported costs and unknown prices."""
    return [
        LedgerEvent(
            at=NOW - timedelta(days=number % 5),
            model=MODELS[number % 6],
            provider=("anthropic", "openai", "nobody")[number % 3],
            agent=("claude-code", "codex")[number % 2],
            session=f"session-{number % 4}",
            branch=("", "main", "topic")[number % 3],
            request_id=f"{user}-{number}",
            buckets=Buckets(
                input=100 * number,
                cache_read=1_000 * user,
                cache_write_5m=7,
                output=10,
                reasoning=3,
            ),
            estimated_tokens=number if number % 2 else None,
            reported_cost=Decimal("0.25") if number % 7 == 0 else None,
        )
        for number in range(40)
    ]


def insert(store: ClickHouse, calls: list[QueuedCall], resource: dict[str, str]) -> None:
    """Write calls to the store as the collector does."""
    insert_records(store, [call.record for call in calls], resource)


def insert_records(
    store: ClickHouse, records: list[ShippedRecord], resource: dict[str, str]
) -> None:
    """Write records to the store as the collector does."""
    rows = [
        {
            "Timestamp": f"{record.nanoseconds / 1e9:.3f}",
            "ServiceName": "token-sidecar",
            "ResourceAttributes": resource,
            "LogAttributes": {name: str(value) for name, value in record.attributes.items()},
        }
        for record in records
    ]
    columns = ", ".join(rows[0])
    lines = "\n".join(json.dumps(row) for row in rows)
    store.insert(f"INSERT INTO otel_logs ({columns}) FORMAT JSONEachRow", lines.encode())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    """A store that contains the calls of three users, who belong to two teams."""
    folder = tmp_path_factory.mktemp("store")
    store = ClickHouse(folder / "store", PASSWORD)
    for user in range(3):
        book = CostBook(folder / str(user))
        book.prices.load()
        book.ledger.record_many(events(user))
        queue = queue_of(book, user)
        insert(store, queue.next_batch().calls, queue.identity.resource())
        book.close()
    store.compute_daily()
    yield store
    store.close()


def queue_of(book: CostBook, user: int) -> ShippingQueue:
    queue = open_queue(book, Settings(ledger=LedgerSettings(otel_endpoint="http://127.0.0.1:9")))
    assert queue is not None
    identity = Identity(
        installation=queue.identity.installation,
        secret=queue.identity.secret,
        salt="salt",
        user=f"user{user}",
        team=f"team{user % 2}",
    )
    return ShippingQueue(book.ledger, identity, f"user{user}")


def configure(store: ClickHouse, monkeypatch: pytest.MonkeyPatch, more: str = "") -> None:
    monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
    config_file().write_text(
        f'[team]\nstore = "{store.url}"\nstore-password-env = "STORE_PASSWORD"\n{more}'
    )


@pytest.fixture
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClickHouse]:
    """An empty store for one test."""
    store = ClickHouse(tmp_path / "own", PASSWORD)
    configure(store, monkeypatch)
    yield store
    store.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cost, ["--team", *arguments])


@pytest.mark.parametrize(
    "by", [("model", "category"), ("agent",), ("day",), ("week",), ("month",), ("model", "agent")]
)
def test_the_team_report_has_the_numbers_of_one_ledger_with_all_calls(
    store: ClickHouse, monkeypatch: pytest.MonkeyPatch, by: tuple[CostKey, ...]
) -> None:
    configure(store, monkeypatch)
    book = CostBook(state_dir(), zone=UTC)
    book.prices.load()
    book.ledger.record_many(event for user in range(3) for event in events(user))
    expected = book.detail(CostDetailParams(by=by))
    book.close()
    data = json.loads(run("--json", "--by", ",".join(by)).stdout)
    unknown = ("listedCostUsd", "reportedCostUsd", "costUsd")
    for row, same in zip(
        data["rows"],
        json.loads(msgspec.json.encode(expected.rows)),
        strict=True,
    ):
        assert row["costUsd"] == pytest.approx(same["costUsd"], abs=1e-12)
        assert row["reportedCostUsd"] == pytest.approx(same["reportedCostUsd"])
        plain = {key: value for key, value in row.items() if key not in unknown}
        assert plain == {key: value for key, value in same.items() if key not in unknown}
    totals = json.loads(msgspec.json.encode(expected.totals))
    assert data["totals"].pop("costUsd") == pytest.approx(totals.pop("costUsd"), abs=1e-12)
    assert data["totals"] == totals


def test_the_page_of_a_team_has_the_numbers_of_its_report(
    store: ClickHouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configure(store, monkeypatch)
    since = (NOW - timedelta(days=4)).date().isoformat()
    target = tmp_path / "team.html"
    result = run("--html", str(target), "--since", since)
    assert result.exit_code == 0, result.output
    html = target.read_text("utf-8")
    assert "<h1>Cost of the team</h1>" in html
    assert "<dt>Calls</dt><dd>120</dd>" in html
    for key in ("model", "agent", "user", "team", "session", "day"):
        part = html.split(f'<div class="choice by-{key}">')[1].split("</section>")[0]
        rows = json.loads(run("--json", "--by", key, "--since", since).stdout)["rows"]
        (data,) = re.findall(r'href="data:text/csv;charset=utf-8,([^"]*)"', part)
        shown = {line[key]: line for line in csv.DictReader(StringIO(unquote(data)))}
        assert {name: int(line["calls"]) for name, line in shown.items()} == {
            row[key]: row["calls"] for row in rows
        }
        for row in rows:
            assert float(shown[row[key]]["cost_usd"] or 0) == pytest.approx(row["costUsd"] or 0)
    growth = html.split("<h2>Context growth</h2>")[1].split("</section>")[0]
    session = Identity(installation="", secret="", salt="salt").hash("session-0")[:16]
    reverse = bytes.fromhex(session)[::-1].hex()
    assert f"<title>{reverse} · claude-code: 4,007 tokens in the last call</title>" in growth


def test_users_have_names_for_those_who_may_read_them(
    own_store: ClickHouse, tmp_path: Path
) -> None:
    own_store.run(
        "INSERT INTO llm.calls (call_id, at, user, cost, cost_source) "
        "SELECT llm_id(toString(number)), now('UTC'), toString(number), 1, 'list' FROM numbers(3)"
    )
    own_store.compute_daily()
    name = r"Aoife O'Brien \n"
    own_store.run("INSERT INTO llm.names SELECT '1', {name:String}", name=name.replace("\\", r"\\"))

    def users() -> list[str]:
        return sorted(
            row["user"] for row in json.loads(run("--by", "user", "--json").stdout)["rows"]
        )

    assert users() == ["0", "2", name]
    assert run("--html", str(tmp_path / "team.html")).exit_code == 0
    assert "Aoife O&#x27;Brien" in (tmp_path / "team.html").read_text("utf-8")
    own_store.run("DROP TABLE llm.names")  # nothing else in the store needs it
    assert users() == ["0", "1", "2"]


def test_the_page_of_a_team_reads_only_the_costliest_sessions(
    own_store: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_store.run(
        "INSERT INTO llm.calls (call_id, at, user, agent, model, session, input, output, cost, cost_source) "
        "SELECT llm_id(toString(number)), now('UTC'), 'jane', 'codex', 'gpt-5', 1 + number % 900, 10, 1, "
        "toDecimal64(number % 900, 2), if(number % 900 = 0, 'unpriced', 'list') FROM numbers(1800)"
    )
    own_store.compute_daily()
    rows_read = 0
    query = TeamStore._query

    def counted_query(*arguments: Any) -> Sequence[Sequence[Any]]:
        nonlocal rows_read
        rows = query(*arguments)
        rows_read += len(rows)
        return rows

    monkeypatch.setattr(TeamStore, "_query", counted_query)
    target = tmp_path / "team.html"
    done = run("--html", str(target), "--since", datetime.now(UTC).date().isoformat())
    assert done.exit_code == 0, done.output
    assert rows_read < 150
    part = target.read_text("utf-8").split('<div class="choice by-session">')[1]
    (data,) = re.findall(r'href="data:text/csv;charset=utf-8,([^"]*)"', part.split("</section>")[0])
    lines = list(csv.DictReader(StringIO(unquote(data))))
    assert len(lines) == 101
    assert [float(line["cost_usd"]) for line in lines[:100]] == [
        2.0 * n for n in range(899, 799, -1)
    ]
    assert {line["unpriced"] for line in lines[:100]} == {"False"}
    others = lines[100]
    assert (others["session"], others["calls"], others["input_tokens"]) == (
        "800 others",
        "1600",
        "16000",
    )
    assert (float(others["cost_usd"]), others["unpriced"]) == (2.0 * sum(range(800)), "True")


def test_the_page_of_a_team_chooses_periods_and_agents(
    store: ClickHouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configure(store, monkeypatch)
    target = tmp_path / "team.html"
    assert run("--html", str(target), "--agent", "codex").exit_code == 0
    html = target.read_text("utf-8")
    today = html.split('<div class="choice period-today">')[1].split('<div class="choice period-')[
        0
    ]
    assert "<dt>Calls</dt><dd>12</dd>" in today
    assert "claude-code" not in html
    assert run("--html", str(target), "--since", "2026-11-01T10:00").exit_code == 2


def test_users_and_teams_are_keys(store: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(store, monkeypatch)
    rows = json.loads(run("--json", "--by", "team,user").stdout)["rows"]
    hashes = {
        Identity(installation="", secret="", salt="salt").hash(f"user{user}") for user in range(3)
    }
    assert {row["user"] for row in rows} == hashes
    assert sorted(row["team"] for row in rows) == ["team0", "team0", "team1"]
    assert {row["calls"] for row in rows} == {40}


def test_branches_are_hashes(store: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(store, monkeypatch)
    rows = json.loads(run("--json", "--by", "branch").stdout)["rows"]
    hashes = map(Identity(installation="", secret="", salt="salt").hash, ("main", "topic"))
    assert {row["branch"]: row["calls"] for row in rows} == dict(
        zip((None, *hashes), (42, 39, 39), strict=True)
    )


def test_days_and_agents_can_be_selected(
    store: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(store, monkeypatch)
    day = NOW.date().isoformat()
    today = json.loads(run("--json", "--since", day, "--agent", "codex").stdout)
    assert today["totals"]["calls"] == 3 * 4
    assert run("--since", "2026-11-01T10:00").exit_code == 2
    assert run("--since", "2001-01-01", "--until", "2001-01-02").stdout == "The team's store contains no matching calls.\n"  # fmt: skip


def test_the_path_of_the_stores_address_is_kept() -> None:
    server = Collector()
    server.answer = lambda _path, _body: (500, b"Code: 241.", {})
    config_file().write_text(f'[team]\nstore = "{server.url}/clickhouse/"\n')
    assert run().exit_code == 2
    server.close()
    assert [path for path, _body in server.bodies] == ["/clickhouse/"]


def test_an_unknown_form_of_retention_is_refused(own_store: ClickHouse) -> None:
    own_store.run("ALTER TABLE llm.calls MODIFY TTL toDateTime(at) + INTERVAL 2400 HOUR")
    with (
        TeamStore(load(None).settings.team) as target,
        pytest.raises(TeamStoreError, match="give it in days, weeks, months, quarters or years"),
    ):
        target.check()


def test_a_store_that_refuses_the_login_is_reported(
    store: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(store, monkeypatch)
    monkeypatch.setenv("STORE_PASSWORD", "wrong")
    refused = run()
    assert refused.exit_code == 2
    assert refused.output == (
        f"token-sidecar: the team's store {store.url} refused the login; check store-user and "
        "store-password-env in [team]\n"
    )
    config_file().write_text("")
    assert "set [team] store" in run().output


def test_a_store_that_is_away_is_reported_without_the_drivers_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    config_file().write_text(f'[team]\nstore = "{url}"\nstore-password-env = "STORE_PASSWORD"\n')
    away = run()
    assert away.exit_code == 2
    assert away.output == (
        f"token-sidecar: the team's store {url} cannot be reached (ConnectError); check [team] store and that "
        "ClickHouse is running\n"
    )
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (200, b"<html>Sign in</html>", {"Content-Type": "text/html"}),
            "does not answer like ClickHouse",
        ),
        ((403, b"<html>Forbidden</html>", {}), "refused the login"),
        ((500, b"Code: 241. DB::Exception: secret", {}), "failed with error 241"),
    ],
)
def test_another_server_at_the_address_of_the_store_is_reported(
    answer: tuple[int, bytes, dict[str, str]], message: str
) -> None:
    server = Collector()
    server.answer = lambda _path, _body: answer
    config_file().write_text(f'[team]\nstore = "{server.url}"\n')
    result = run()
    server.close()
    assert result.exit_code == 2
    assert message in result.output
    assert "secret" not in result.output


def test_a_store_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_QUERY_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        config_file().write_text(f'[team]\nstore = "http://127.0.0.1:{server.getsockname()[1]}"\n')
        result = run()
    assert (result.exit_code, "did not answer within 1 s" in result.output) == (2, True)


async def test_an_editor_shows_what_to_do_about_a_report_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(team, "_QUERY_SECONDS", 1)
    client = Client(create_server())
    with socket.create_server(("127.0.0.1", 0)) as server:
        config_file().write_text(f'[team]\nstore = "http://127.0.0.1:{server.getsockname()[1]}"\n')
        await client.initialize()
        with pytest.raises(RpcError, match="within 1 s; try again, or choose fewer days"):
            await client.request("cost/detail", {"scope": "team"})
    await client.aclose()


def test_a_store_with_an_older_schema_is_reported(own_store: ClickHouse) -> None:
    own_store.run("DROP VIEW llm.first_kept_day")
    with (
        TeamStore(load(None).settings.team) as target,
        pytest.raises(TeamStoreError, match=r"load contrib/team/schema\.sql"),
    ):
        target.check()


@pytest.mark.parametrize(
    ("caps", "severity"),
    [
        ("team-soft-cap-usd = 0.1", "warning"),
        ("team-hard-cap-usd = 0.1", "error"),
        ("team-soft-cap-usd = 1000", "ok"),
    ],
)
async def test_the_status_warns_of_the_teams_caps(
    store: ClickHouse, monkeypatch: pytest.MonkeyPatch, caps: str, severity: str
) -> None:
    monkeypatch.setattr(costs, "FIRST_SECONDS", 0.0)
    configure(store, monkeypatch, f'team = "team1"\n[cost]\n{caps}\n')
    client = Client(create_server())
    await client.initialize()
    client.ignore("context/warning")
    await client.request(
        "cost/record", {"model": "gpt-5", "usage": {"input_tokens": 1, "output_tokens": 1}}
    )
    shown = await client.take(
        "status/update",
        lambda it: "Team this month" in ((it.get("cost") or {}).get("tooltip") or ""),
    )
    assert shown["cost"]["severity"] == severity
    verdict = await client.request("context/preflight", {"text": "hello"})
    assert verdict["verdict"] == "ok"
    await client.aclose()


@asynccontextmanager
async def forwarded(url: str, port: int = 0) -> AsyncIterator[int]:
    """Forward a local port to a store. Yield the port, and close it on exit."""
    host = urlsplit(url)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source, target = await asyncio.open_connection(host.hostname, host.port)
        copies = [
            asyncio.ensure_future(copy(reader, target)),
            asyncio.ensure_future(copy(source, writer)),
        ]
        connections.update(copies)
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for each in copies:
            each.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        for end in (target, writer):
            end.close()

    connections: set[asyncio.Future[None]] = set()
    server = await asyncio.start_server(forward, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.sleep(0.05)  # lets the connections close


async def test_an_outage_of_the_store_is_shown_until_it_is_over(
    store: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(costs, "INTERVAL_SECONDS", 0.2)
    configure(store, monkeypatch, "[cost]\nteam-soft-cap-usd = 1000\n")
    client = Client(create_server())

    async def tooltip(part: str) -> str:
        shown = await client.take(
            "status/update", lambda it: part in ((it.get("cost") or {}).get("tooltip") or "")
        )
        return str(shown["cost"]["tooltip"]).replace("\\", "")

    async with forwarded(store.url) as port:
        text = config_file().read_text()
        config_file().write_text(text.replace(store.url, f"http://127.0.0.1:{port}"))
        await client.initialize()
        client.ignore("context/warning")
        usage = {"input_tokens": 1, "output_tokens": 1}
        await client.request("cost/record", {"model": "gpt-5", "usage": usage})
        assert "unreachable" not in await tooltip("Team this month")
    outage = r"unreachable since \d\d:\d\d; run `token-sidecar doctor`"
    shown = await tooltip("store unreachable")
    assert re.search(rf"\$[\d.]+, store {outage}", shown), shown
    assert shown.count("Team") == 1, "both are in one row"
    with pytest.raises(RpcError) as failed:
        await client.request("cost/detail", {"scope": "team"})
    assert re.fullmatch(f"Team store {outage}", str(failed.value))
    async with forwarded(store.url, port):
        assert "unreachable" not in await tooltip("Team this month")
    await client.aclose()


async def test_the_server_answers_with_the_report_of_the_team(
    store: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(store, monkeypatch)
    client = Client(create_server())
    await client.initialize()
    report = await client.request("cost/detail", {"scope": "team", "by": ["user"], "charts": True})
    assert report["totals"]["calls"] == 120
    assert len(report["rows"]) == len(report["table"]["rows"]) == 3
    assert [chart["by"] for chart in report["charts"]] == ["day", "model", "agent"]
    await client.aclose()
