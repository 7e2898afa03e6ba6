"""Tests that the collector decides who has sent a call, and that the store prices and checks calls."""

from __future__ import annotations

import hmac
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.config.paths import config_file, state_dir
from sidecar.cost import prices
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from tests.clickhouse import SCHEMA, ClickHouse
from tests.collector import Collector
from tests.e2e.team.rotel import Rotel
from tests.e2e.team.shipper import become
from tests.e2e.team.team_collector import SALT, TeamCollector, user_hash, users_line
from tests.e2e.team.test_team_end_to_end import wait_for

PASSWORD = "store secret"  # noqa: S105
TOKENS = {f"{name}@example.com": f"{name}'s secret" for name in ("jane", "joe")}
NOW = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClickHouse]:
    monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
    store = ClickHouse(tmp_path / "store", PASSWORD)
    for name, team in zip(TOKENS, ("platform", "search"), strict=True):
        store.run(
            "INSERT INTO llm.teams SELECT {user:String}, today(), {team:String}",
            user=user_hash(name),
            team=team,
        )
    yield store
    store.close()


@pytest.fixture
def rotel(store: ClickHouse) -> Iterator[Rotel]:
    rotel = Rotel(store.url, PASSWORD)
    rotel.start()
    rotel.await_ready()
    yield rotel
    rotel.kill()


@pytest.fixture
def collector(rotel: Rotel) -> Iterator[Collector]:
    users = "\n".join(users_line(*user) for user in TOKENS.items())
    server = TeamCollector(rotel, users).serve()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the variables that `laptop` sets."""
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"TOKEN_SIDECAR_{name}", "")


def laptop(folder: Path, settings: str = "") -> None:
    """Make this process use a laptop of its own, with these settings."""
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(f"[agents]\nenabled = false\n{settings}")
    become(folder)


def call(number: int, **changes: object) -> LedgerEvent:
    event = LedgerEvent(
        at=NOW - timedelta(days=1) + timedelta(seconds=number),
        model="gpt-5",
        provider="openai",
        agent="opencode",
        session=f"session {number}",
        request_id=f"request {number}",
        buckets=Buckets(input=1_000, output=100),
    )
    return msgspec.structs.replace(event, **changes)


def record(*events: LedgerEvent) -> None:
    book = CostBook(state_dir())
    book.prices.load()
    book.ledger.record_many(events)
    book.close()


def run(*arguments: str, given: str = "") -> str:
    done = CliRunner().invoke(main, arguments, input=given)
    assert done.exit_code == 0, done.output
    return done.output


def join(collector: Collector, name: str) -> None:
    run("team", "join", collector.url, given=f"{name}:{TOKENS[name]}\n")


USERS = "SELECT user, team, toString(sum(calls)) FROM llm.daily GROUP BY user, team ORDER BY user"


def await_calls(store: ClickHouse, count: int) -> None:
    wait_for(store, "SELECT count() FROM llm.calls FINAL", [[str(count)]])
    store.compute_daily()


def test_a_call_belongs_to_the_user_of_the_token_whatever_the_machine_claims(
    store: ClickHouse, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joe's machine claims to be Jane's. Jane has two machines, and is one user."""
    monkeypatch.setenv("SALT", SALT)
    claims = '[team]\nuser = "jane@example.com"\nteam = "platform"\nsalt-env = "SALT"\n'
    machines = [
        ("jane@example.com", ""),
        ("jane@example.com", '[team]\nuser = "Jane"\nsalt-env = "SALT"\nteam = "another"\n'),
        ("joe@example.com", claims),
    ]
    for number, (name, settings) in enumerate(machines):
        laptop(tmp_path / str(number), settings)
        join(collector, name)
        record(*(call(10 * number + index) for index in range(number + 1)))
        assert run("cost", "ship") == f"Sent {number + 1} call{'s' if number else ''}.\n"
    await_calls(store, 6)
    assert store.rows(USERS) == sorted(
        [
            [user_hash("jane@example.com"), "platform", "3"],
            [user_hash("joe@example.com"), "search", "3"],
        ]
    )
    stored = store.run("SELECT * FROM otel.otel_logs FORMAT JSONEachRow")
    assert not re.search("jane|joe|another", stored)


def test_past_spending_stays_when_a_user_changes_team(
    store: ClickHouse, collector: Collector, tmp_path: Path
) -> None:
    """Jane moves in the middle of the month. A call from before arrives, and another is amended."""
    jane = user_hash("jane@example.com")
    store.run("TRUNCATE TABLE llm.teams")
    for since, team in (("9", "platform"), ("3", "search")):
        store.run(
            "INSERT INTO llm.teams SELECT {user:String}, today() - {days:UInt8}, {team:String}",
            user=jane,
            days=since,
            team=team,
        )
    laptop(tmp_path / "jane")
    join(collector, "jane@example.com")
    ages = (20, 4, 3, 1)
    events = [call(age, at=NOW - timedelta(days=age, hours=-1)) for age in ages]
    record(*events)
    run("cost", "ship")
    await_calls(store, 4)
    sums = "SELECT team, sum(calls), sum(output) FROM llm.daily GROUP BY team ORDER BY team"
    assert store.rows(sums) == [["platform", "2", "200"], ["search", "2", "200"]]

    more = Buckets(input=1_000, output=150)
    record(msgspec.structs.replace(events[0], buckets=more), call(5, at=NOW - timedelta(days=5)))
    assert run("cost", "ship") == "Sent 2 calls.\n"
    wait_for(store, "SELECT sum(output) FROM llm.calls FINAL", [["550"]])
    store.compute_daily()
    assert store.rows(sums) == [["platform", "3", "350"], ["search", "2", "200"]]


def test_a_wrong_token_sends_nothing(
    store: ClickHouse, collector: Collector, tmp_path: Path
) -> None:
    laptop(tmp_path / "one")
    done = CliRunner().invoke(
        main, ["team", "join", collector.url], input="jane@example.com:joe's secret\n"
    )
    assert done.exit_code == 1
    assert "refused the token" in done.output
    assert store.rows("SELECT count() FROM otel.otel_logs") == [["0"]]


def test_pseudonyms_of_laptops_are_readable_without_users_of_the_collector(
    store: ClickHouse, rotel: Rotel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of version 0.1: one token for all, and a salt on each machine."""
    monkeypatch.setenv("TEAM_SALT", "grain")
    laptop(
        tmp_path / "one",
        f'[ledger]\notel-endpoint = "{rotel.url}"\n'
        '[team]\nuser = "jane@example.com"\nteam = "platform"\nsalt-env = "TEAM_SALT"\n',
    )
    record(call(1), call(2))
    run("cost", "ship")
    await_calls(store, 2)
    name = hmac.new(b"grain", b"jane@example.com", "sha256").hexdigest()[:32]
    assert store.rows(USERS) == [[name, "platform", "2"]]


def test_a_laptops_files_name_no_colleague(
    store: ClickHouse, collector: Collector, tmp_path: Path
) -> None:
    reading = f'[team]\nstore = "{store.url}"\nstore-password-env = "STORE_PASSWORD"\n'
    for number, name in enumerate(TOKENS):
        laptop(tmp_path / name, reading)
        join(collector, name)
        record(call(number))
        run("cost", "ship")
    await_calls(store, 2)
    for name in TOKENS:
        store.run(
            "INSERT INTO llm.names SELECT {user:String}, {name:String}",
            user=user_hash(name),
            name=name,
        )
    shown = json.loads(run("cost", "--team", "--json", "--by", "user,team"))["rows"]
    assert len(shown) == 2, "Joe's laptop has read what Jane has spent"
    run("doctor")
    files = [path for path in (tmp_path / "joe@example.com").rglob("*") if path.is_file()]
    content = b"".join(path.read_bytes() for path in files)
    assert b"joe's secret" in content
    assert config_file() in files
    assert state_dir() / "ledger.db" in files
    for secret in ("jane", user_hash("jane@example.com"), "platform", SALT, PASSWORD):
        assert secret.encode() not in content
    # What the laptop has does not even confirm a guess.
    assert user_hash("joe@example.com").encode() not in content


def test_calls_get_a_price_in_the_store_when_another_machine_knows_it(
    store: ClickHouse, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joe's machine is away when the model gets a price. A machine that knows it reports it."""
    new = [call(number, model="gpt-9-new") for number in range(20)]
    laptop(tmp_path / "joe")
    join(collector, "joe@example.com")
    record(*new)
    run("cost", "ship")
    await_calls(store, 20)
    sums = "SELECT sum(cost), sum(priced_calls), sum(unpriced) FROM llm.daily WHERE user = {user:String}"
    joe = user_hash("joe@example.com")
    assert store.rows(sums, user=joe) == [["0", "0", str(20 * 1_100)]]

    find = prices.find_tariff
    monkeypatch.setattr(
        "sidecar.cost.prices.find_tariff", lambda snapshot, name, provider: find(
            snapshot, name.replace("gpt-9-new", "gpt-5"), provider
        ),
    )  # fmt: skip
    laptop(tmp_path / "jane")
    join(collector, "jane@example.com")
    record(call(100, model="gpt-9-new"))
    run("cost", "ship")
    wait_for(store, "SELECT count() FROM llm.model_prices", [["1"]])
    await_calls(store, 21)
    laptop_cost = CostBook(tmp_path / "again")
    laptop_cost.ledger.record_many(new)
    expected = laptop_cost.detail(CostDetailParams()).totals.cost_usd
    laptop_cost.close()
    assert expected
    ((stored, priced, unpriced),) = store.rows(sums, user=joe)
    assert float(stored) == pytest.approx(expected)
    assert (priced, unpriced) == ("20", "0")


def test_the_store_says_which_machine_lacks_calls_until_they_are_sent_again(
    store: ClickHouse, collector: Collector, tmp_path: Path
) -> None:
    laptop(
        tmp_path / "jane",
        f'[team]\nstore = "{store.url}"\nstore-password-env = "STORE_PASSWORD"\n',
    )
    join(collector, "jane@example.com")
    record(*(call(number) for number in range(5)))
    run("cost", "ship")
    await_calls(store, 5)
    assert "note" not in json.loads(run("cost", "--team", "--json"))
    store.run("ALTER TABLE llm.calls DELETE WHERE at < (SELECT max(at) FROM llm.calls) SETTINGS mutations_sync = 1")  # fmt: skip
    store.run("TRUNCATE TABLE llm.daily_sums")
    store.compute_daily()
    store.age_reports()
    (row,) = store.rows("SELECT user, day, sent, stored, missing, elsewhere FROM llm.missing")
    day = (NOW - timedelta(days=1)).date().isoformat()
    assert row == [user_hash("jane@example.com"), day, "5", "1", "4", "0"]
    said = run("cost", "--team")
    lacks = f"The store lacks 4 calls of user {row[0][:12]} since {day}"
    assert lacks in said
    run("cost", "--team", "--html", str(tmp_path / "page.html"))
    assert lacks in (tmp_path / "page.html").read_text("utf-8")
    assert run("cost", "ship", "--since", day) == "Sent 5 calls.\n"
    await_calls(store, 5)
    assert store.rows("SELECT * FROM llm.missing") == []
    assert "lacks" not in run("cost", "--team")


def test_the_script_adds_a_user_whose_token_the_collector_accepts(
    store: ClickHouse, rotel: Rotel, tmp_path: Path
) -> None:
    folder = tmp_path / "team"
    folder.mkdir()
    script = folder / "add-user.sh"
    script.write_text((SCHEMA.parent / "add-user.sh").read_text("utf-8"))
    (folder / ".env").write_text(f"OTHER=1\nUSER_SALT={SALT}\n")
    docker = tmp_path / "docker"
    docker.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" >> calls\ncase $2 in exec) cat >> calls ;; esac\n'
    )
    docker.chmod(0o700)

    def add(name: str, team: str) -> str:
        done = subprocess.run(
            ["sh", str(script), name, team],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    incomplete = subprocess.run(
        ["sh", str(script), "jane@example.com"], capture_output=True, text=True, check=False
    )
    assert (incomplete.returncode, incomplete.stderr) == (2, "Usage: sh add-user.sh NAME TEAM\n")
    token = add("jane@example.com", "platform")
    assert add("joe@example.com", "search").startswith("joe@example.com:")
    assert add("jane@example.com", "another") == "", "she keeps her token"
    asked = (folder / "calls").read_text()
    users = {f"--param_user={user_hash(name)}" for name in TOKENS}
    assert users == {line for line in asked.splitlines() if line.startswith("--param_user=")}
    assert asked.count("restart\ncollector\n") == 2
    statements = re.findall(r"^INSERT INTO .*;$", asked, re.MULTILINE)[:2]
    for statement in statements:
        store.run(statement, user="a", name="Jane", team="platform")
    assert store.rows("SELECT name FROM llm.names") == [["Jane"]]
    assert store.rows("SELECT team FROM llm.teams WHERE user = 'a'") == [["platform"]]

    server = TeamCollector(rotel, (folder / "users").read_text()).serve()
    laptop(tmp_path / "one")
    run("team", "join", server.url, given=f"{token}\n")
    server.close()
