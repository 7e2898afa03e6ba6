"""Tests that the files in `contrib/team` are valid, and that their queries match the schema."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from sidecar.cli.team import STORED_NAME
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import FileCost
from sidecar.cost.records import Identity, ShippedRecord, export_request, file_record
from tests.clickhouse import SCHEMA, ClickHouse, statements
from tests.e2e.team.rotel import Rotel
from tests.e2e.team.test_team_reports import events, insert, insert_records, queue_of

FOLDER = SCHEMA.parent
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
COLLECTOR = yaml.safe_load((FOLDER / "collector.yaml").read_text("utf-8"))
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
QUERIES = {panel["title"]: panel["targets"][0]["rawSql"] for panel in DASHBOARD["panels"]}


def expand(query: str, since: str, until: str, teams: str) -> str:
    """Return a query with Grafana's macros expanded."""
    dates = rf"\1 >= toDate('{since}') AND \1 <= toDate('{until}')"
    times = rf"\1 >= toDateTime('{since}') AND \1 <= toDateTime('{until}') + 86400"
    query = re.sub(r"\$__dateFilter\(([\w.]+)\)", dates, query)
    query = re.sub(r"\$__timeFilter\(([\w.]+)\)", times, query)
    return query.replace("${team:singlequote}", teams)


def report_files(
    store: ClickHouse, identity: Identity, calls: int, usd: str | None, minutes: int
) -> None:
    """Report the costs of a repository's CLAUDE.md, and of the user's own CLAUDE.md.

    The user's CLAUDE.md has costs in two workspaces.
    """
    at = time.time_ns() + minutes * 60_000_000_000
    own = "file:///home/jane/.claude/CLAUDE.md"
    records = [
        file_record(
            FileCost(
                uri=uri,
                tokens=500,
                requests=calls,
                cost_usd=None if usd is None else float(usd),
                cached_percent=None,
                text="",
            ),
            "CLAUDE.md",
            workspace,
            at,
            identity,
        )
        for uri, workspace in (
            ("file:///project/CLAUDE.md", "file:///project"),
            (own, "file:///project"),
            (own, "file:///other"),
        )
    ]
    insert_records(store, records, identity.resource())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    folder = tmp_path_factory.mktemp("store")
    store = ClickHouse(folder / "store")
    for user in range(3):
        book = CostBook(folder / str(user))
        book.prices.load()
        book.ledger.record_many(events(user))
        queue = queue_of(book, user)
        insert(store, queue.next_batch().calls, queue.identity.resource())
        report_files(store, queue.identity, 10 * (user + 1), "0.5", minutes=0)
        report_files(store, queue.identity, 12 * (user + 1), "0.75", minutes=5)
        book.close()
    store.compute_daily()
    store.run(
        "INSERT INTO llm.budgets VALUES ('team0', '2020-01-01', 50), ('team0', toStartOfMonth(today() - 31), 100)"
    )
    store.run(
        "INSERT INTO llm.day_totals SELECT day, user, 'lost', 7, 8, 9, now() - 3600 FROM llm.daily LIMIT 1 BY user"
    )
    yield store
    store.close()


@pytest.mark.parametrize("title", QUERIES)
def test_each_query_of_the_dashboard_finds_calls(store: ClickHouse, title: str) -> None:
    query = expand(QUERIES[title], "2026-01-01", "2030-01-01", "'team0', 'team1'")
    rows = store.rows(query)
    assert rows
    assert rows != [["0"]]
    assert store.rows(expand(QUERIES[title], "2026-01-01", "2030-01-01", "'nobody'")) in (
        [],
        [["0"]],
    )


@pytest.mark.parametrize("title", [title for title, query in QUERIES.items() if "user" in query])
def test_panels_show_users_by_name(store: ClickHouse, title: str) -> None:
    store.run("INSERT INTO llm.names SELECT DISTINCT user, concat('name of ', user) FROM llm.daily")
    query = expand(QUERIES[title], "2026-01-01", "2030-01-01", "'team0', 'team1'")
    assert all("name of" in "".join(row) for row in store.rows(query))
    store.run("TRUNCATE TABLE llm.names")


def test_each_panel_of_the_dashboard_occurs_once() -> None:
    panels = DASHBOARD["panels"]
    assert len(QUERIES) == len({panel["id"] for panel in panels}) == len(panels)


def test_records_that_cannot_be_checked_are_dropped() -> None:
    modes = [part["error_mode"] for part in COLLECTOR["processors"].values() if "logs" in part or "log_statements" in part]  # fmt: skip
    assert modes == ["propagate", "propagate"]


def test_passwords_are_quoted_and_not_arguments(store: ClickHouse, tmp_path: Path) -> None:
    client = tmp_path / "clickhouse-client"
    client.write_text('#!/bin/sh\necho "$*" "$CLICKHOUSE_PASSWORD"\ncat\n')
    client.chmod(0o700)
    passwords = {
        "COLLECTOR_PASSWORD": r"it's \ $HOME",
        "LEAD_PASSWORD": "plain",
        "READER_PASSWORD": "'; DROP DATABASE llm; --",
    }
    result = subprocess.run(
        ["sh", str(FOLDER / "users.sh")],
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "CLICKHOUSE_USER": "admin",
            "CLICKHOUSE_PASSWORD": "root-secret",
            **passwords,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    first, *statements = result.stdout.splitlines()
    assert first == "--multiquery root-secret"
    for statement in "\n".join(statements).split(";\n"):
        escaped = statement.rstrip(";").replace("\\", r"\\")
        assert store.rows("SELECT formatQuery({sql:String})", sql=escaped)
    literals = re.findall(r"IDENTIFIED BY ('.*?')(?: SETTINGS.*)?;$", "\n".join(statements), re.M)
    found = [store.rows(f"SELECT hex({literal})")[0][0] for literal in literals]
    assert [bytes.fromhex(text).decode() for text in found] == list(passwords.values())


def test_the_variable_lists_the_teams(store: ClickHouse) -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    assert store.rows(variable["query"]) == [["team0"], ["team1"]]


def test_the_budget_of_a_team(store: ClickHouse) -> None:
    rows = store.rows(
        "SELECT team, month, spent, budget FROM llm.budget_use WHERE budget > 0 ORDER BY month"
    )
    by_month = store.rows(
        "SELECT team, toStartOfMonth(at) AS month, sum(cost), 100 FROM llm.calls FINAL "
        "WHERE team = 'team0' GROUP BY team, month ORDER BY month"
    )
    assert rows == by_month != []


def test_prompt_files_count_by_their_last_report(store: ClickHouse) -> None:
    query = (
        "SELECT name, team, tokens, calls, cost, day >= today() FROM llm.expensive_prompt_files "
        "ORDER BY calls"
    )
    rows = [
        ["CLAUDE.md", f"team{user % 2}", "500", str(12 * (user + 1) * places), usd, "1"]
        for user, places, usd in (
            (0, 1, "0.75"), (1, 1, "0.75"), (0, 2, "1.5"), (2, 1, "0.75"), (1, 2, "1.5"), (2, 2, "1.5"),
        )
    ]  # fmt: skip
    assert sorted(store.rows(query)) == sorted(rows)
    assert store.rows("SELECT count() FROM llm.calls FINAL WHERE agent = ''") == [["0"]]


def test_a_prompt_file_without_a_price_has_no_cost(tmp_path: Path) -> None:
    store = ClickHouse(tmp_path / "store")
    identity = Identity(installation="one", secret="two")  # noqa: S106
    report_files(store, identity, 10, "0.5", minutes=0)
    report_files(store, identity, 20, None, minutes=1)
    rows = store.rows("SELECT calls, cost FROM llm.expensive_prompt_files ORDER BY calls")
    assert rows == [["20", r"\N"], ["40", r"\N"]]
    store.close()


def test_running_the_schema_again_updates_views_and_keeps_rows(store: ClickHouse) -> None:
    counts = "SELECT (SELECT count() FROM llm.calls), (SELECT count() FROM llm.sessions)"
    before = store.rows(counts)
    store.run("CREATE OR REPLACE VIEW llm.sessions AS SELECT 1 AS of_an_earlier_version")
    for statement in statements(SCHEMA.read_text("utf-8")):
        store.run(statement)
    assert store.rows(counts) == before


GUIDE = (FOLDER.parents[1] / "docs/how-to/team.md").read_text("utf-8")


def test_every_statement_of_the_guide_runs(tmp_path: Path) -> None:
    store = ClickHouse(tmp_path / "store")
    for script in re.findall(r"```sql\n(.*?)```", GUIDE, re.DOTALL):
        for statement in script.split(";\n"):
            if statement.strip():
                store.run(statement.strip())
    store.close()


def test_a_users_rows_can_be_found_and_deleted(store: ClickHouse) -> None:
    """Runs the SQL statements in the team guide."""
    part = GUIDE.split("## Delete a user's rows")[1].split("\n## ")[0]
    (script,) = re.findall(r"```sql\n(.*?)```", part, re.DOTALL)
    ((user,),) = store.rows("SELECT user FROM llm.daily WHERE team = 'team1' LIMIT 1")
    store.run(
        "INSERT INTO llm.calls SELECT * REPLACE ('former' AS user, 0 AS version) FROM llm.calls FINAL "
        "WHERE user = {user:String}",
        user=user,
    )
    is_deleted = threading.Event()

    def refresh() -> None:
        """Refresh the sums all the time. A store does it every minute."""
        while not is_deleted.is_set():
            store.run("SYSTEM REFRESH VIEW llm.refresh_daily")

    with ThreadPoolExecutor(1) as pool:
        refreshes = pool.submit(refresh)
        try:
            for statement in script.replace("HASH", user).split(";\n"):
                if statement.strip():
                    store.run(statement.strip())
        finally:
            is_deleted.set()
        refreshes.result()
    for table in ("otel.otel_logs WHERE ResourceAttributes['user.hash']", "llm.calls WHERE user", "llm.daily WHERE user", "llm.daily_sums WHERE user", "llm.prompt_files WHERE user"):  # fmt: skip
        assert store.rows(f"SELECT count() FROM {table} = '{user}'") == [["0"]]  # noqa: S608
    assert store.rows("SELECT uniq(user) FROM llm.daily") == [["2"]]
    assert store.rows("SELECT count() FROM llm.calls WHERE user = 'former'") == [["0"]]


def test_a_late_call_does_not_replace_sums_whose_calls_have_expired(tmp_path: Path) -> None:
    store = ClickHouse(tmp_path / "store")
    insert = (
        "INSERT INTO llm.calls (call_id, at, user, cost, cost_source) "
        "SELECT llm_id(concat({name:String}, toString(number))), now() - toIntervalDay({days:UInt16}), "
        "'jane', 1, 'list' FROM numbers({calls:UInt8})"
    )
    (statement,) = re.findall(r"^ALTER TABLE llm.calls MODIFY TTL .*", GUIDE, re.MULTILINE)
    statement += " SETTINGS materialize_ttl_after_modify = 0"
    cases = ("90 DAY", 100), ("3 MONTH", 93), ("13 WEEK", 92), ("1 QUARTER", 93), ("1 YEAR", 367)
    for retention, days in cases:
        for table in ("calls", "daily_sums"):
            store.run(f"TRUNCATE TABLE llm.{table}")
        store.run(statement.replace("90 DAY", "400 DAY"))
        store.run(insert, name="early", days=days, calls=50)
        store.compute_daily()
        store.run(statement.replace("90 DAY", retention))
        store.run("TRUNCATE TABLE llm.calls")
        store.run(insert, name="late", days=days, calls=3)
        store.run(insert, name="recent", days=1, calls=2)
        store.compute_daily()
        found = store.rows("SELECT calls FROM llm.daily ORDER BY day")
        assert found == [["50"], ["2"]], retention
    store.close()


def test_calls_without_a_session_are_not_one_session(tmp_path: Path) -> None:
    store = ClickHouse(tmp_path / "store")
    store.run(
        "INSERT INTO llm.calls (call_id, at, user, session, cost, cost_source) "
        "SELECT llm_id(toString(number)), now(), toString(number), number, 1, 'list' FROM numbers(2)"
    )
    store.compute_daily()
    assert store.rows("SELECT session, user FROM llm.sessions") == [["1", "1"]]
    store.close()


def test_a_call_that_moves_to_another_month_counts_once(store: ClickHouse) -> None:
    """The versions of a call may be in two months' partitions. The newest may be in either one."""
    days = ("toDate(at)", "2027-01-31", "2027-02-01")
    for number, versions in enumerate(((1, 2), (2, 1))):
        for at, version in zip(
            ("2027-01-31 23:59:59", "2027-02-01 00:00:01"), versions, strict=True
        ):
            store.run(
                "INSERT INTO llm.calls (call_id, at, user, cost, cost_source, version) SELECT "
                "llm_id({id:String}), {at:DateTime}, 'mover', 1, 'list', {version:UInt8}",
                id=f"moved{number}",
                at=at,
                version=version,
            )
            store.compute_daily()
    found = store.rows("SELECT day, sum(calls) FROM llm.daily WHERE user = 'mover' GROUP BY day ORDER BY day")  # fmt: skip
    assert found == [[days[1], "1"], [days[2], "1"]]
    one_day = "SELECT count() FROM llm.calls FINAL WHERE user = 'mover' AND toDate(at) = {day:Date}"
    assert [store.rows(one_day, day=day) for day in days[1:]] == [[["1"]], [["1"]]]


def test_past_sums_stay_when_a_user_changes_team_in_the_middle_of_a_month(tmp_path: Path) -> None:
    """Also when the sums of a day are computed again after the change."""
    store = ClickHouse(tmp_path / "store")
    call = (
        "INSERT INTO llm.calls (call_id, at, user, cost, cost_source) SELECT "
        "llm_id({name:String}), {day:Date}, 'jane', {usd:UInt8}, 'list'"
    )
    sums = "SELECT team, sum(cost) FROM llm.daily GROUP BY team ORDER BY team"
    store.run("INSERT INTO llm.teams VALUES ('jane', '2026-10-05', 'search')")
    store.run(call, name="before", day="2026-10-01", usd=1)
    store.run(call, name="early", day="2026-10-14", usd=2)
    store.compute_daily()
    assert store.rows(sums) == [["search", "3"]]
    store.run("INSERT INTO llm.teams VALUES ('jane', '2026-10-15', 'platform')")
    store.run(call, name="that day", day="2026-10-15", usd=4)
    store.compute_daily()
    assert store.rows(sums) == [["platform", "4"], ["search", "3"]]
    store.run(call, name="late", day="2026-10-14", usd=8)
    store.compute_daily()
    assert store.rows(sums) == [["platform", "4"], ["search", "11"]]
    months = store.rows("SELECT team, month, spent FROM llm.budget_use ORDER BY team")
    assert months == [["platform", "2026-10-01", "4"], ["search", "2026-10-01", "11"]]
    store.close()


RECORD = (
    "INSERT INTO otel.otel_logs (Timestamp, ServiceName, ResourceAttributes, LogAttributes) "
    "SELECT now() - toIntervalMonth(number), 'token-sidecar', {resource:Map(String, String)}, "
    "mapUpdate({record:Map(String, String)}, map('token_sidecar.call.id', leftPad(hex(number), 32, {pad:String}))) "
    "FROM numbers({count:UInt16})"
)
RESOURCE = "{'user.hash':'jane','service.instance.id':'one'}"


@pytest.mark.parametrize("value", ["", "text", "-1", "1e30", "9" * 30, "nan", "9999-99-99"])
def test_a_record_with_impossible_values_is_stored(store: ClickHouse, value: str) -> None:
    """The collector would send it again for ever, and with it the records of others."""
    names = re.findall(r"\ba\['([\w.]+)'\]", SCHEMA.read_text("utf-8"))
    given = ("token_sidecar.day.calls", "token_sidecar.price.input")
    for kept in (set[str](), set(given)):
        record = {name: "7" if name in kept else value for name in names}
        text = json.dumps(record).replace('"', "'")
        store.run(RECORD, resource=RESOURCE, record=text, count=1, pad="z")


def test_records_of_many_months_are_stored(tmp_path: Path) -> None:
    """ClickHouse refuses to insert into more than 100 partitions at once."""
    store = ClickHouse(tmp_path / "store")
    store.run(RECORD, resource=RESOURCE, record="{}", count=150, pad="0")
    recent = "SELECT count() FROM llm.calls WHERE at > now() - INTERVAL 300 DAY"
    assert store.rows(recent) == [["10"]]
    store.close()


def test_an_impossible_price_does_not_stop_the_sums(tmp_path: Path) -> None:
    store = ClickHouse(tmp_path / "store")
    price = (
        "{'token_sidecar.price.input':'999999999999','token_sidecar.price.output':'999999999999'}"
    )
    store.run(RECORD, resource=RESOURCE, record=price, count=1, pad="0")
    call = "{'gen_ai.usage.input_tokens':'4000000000','gen_ai.usage.output_tokens':'4000000000','token_sidecar.cost_source':'unpriced'}"
    store.run(RECORD, resource=RESOURCE, record=call, count=5, pad="1")
    store.compute_daily()
    assert store.rows("SELECT sum(calls) FROM llm.daily") == [["6"]]
    store.close()


def test_a_negative_price_is_ignored(tmp_path: Path) -> None:
    store = ClickHouse(tmp_path / "store")
    for count, output in enumerate(("-2", "2"), start=1):
        price = f"{{'token_sidecar.price.input':'1','token_sidecar.price.output':'{output}'}}"
        store.run(RECORD, resource=RESOURCE, record=price, count=count, pad=str(count))
        assert store.rows("SELECT DISTINCT output FROM llm.prices") == [["2"]] * (count - 1)
    store.close()


def test_agents_that_report_too_large_parts_do_not_underflow(store: ClickHouse) -> None:
    collector = Rotel(store.url)
    collector.start()
    collector.await_ready()
    attributes: dict[str, str | int] = {
        "event.name": "gen_ai.client.inference.operation.details",
        "gen_ai.response.id": "underflow",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 30,
        "gen_ai.usage.output_tokens": 1,
    }
    body = export_request(
        [ShippedRecord(time.time_ns(), attributes)], {"service.name": "copilot-chat"}
    )
    httpx.post(
        f"{collector.url}/v1/logs",
        json=body,
        trust_env=False,
    )
    query = (
        "SELECT input, cache_read FROM llm.calls FINAL WHERE call_id = llm_id('copilot/underflow')"
    )
    deadline = time.monotonic() + 30
    while not store.rows(query) and time.monotonic() < deadline:
        time.sleep(0.1)
    collector.kill()
    assert store.rows(query) == [["0", "30"]]


def test_compose_is_valid_by_the_compose_specification() -> None:
    subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FOLDER / "compose.yaml")],
        check=True,
    )  # fmt: skip
    published = [name for name, service in COMPOSE["services"].items() if "ports" in service]
    assert published == ["caddy"], "the only service with TLS"
    upstreams = re.findall(r"reverse_proxy \{\$\w+:(\w+):\d+\}", (FOLDER / "Caddyfile").read_text())
    assert upstreams == ["collector", "grafana", "clickhouse"]
    assert set(upstreams) <= set(COMPOSE["services"])
    images = [service["image"] for service in COMPOSE["services"].values()]
    assert all(re.search(r":\d+\.\d+", image) for image in images), "pinned versions"
    mounted = {
        volume.split(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service["volumes"]
        if volume.startswith("./")
    }
    made = {"./users", "./certificates"}
    assert all((FOLDER / name).is_file() for name in mounted - made), "the guide creates the others"


def test_the_guide_sets_all_variables_and_creates_all_files(tmp_path: Path) -> None:
    """Runs the guide's first script with a stand-in for Docker."""
    (script,) = re.findall(r"```sh\n(cd contrib/team\n.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "contrib/team").mkdir(parents=True)
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho $*\n")
    docker.chmod(0o700)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    run = subprocess.run(
        ["sh", "-euc", script], cwd=tmp_path, env=path, capture_output=True, check=True
    )
    assert run.stdout == b"compose up --detach\n"
    folder = tmp_path / "contrib/team"
    settings = dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())
    assert settings.keys() == set(
        re.findall(r"\$\{(\w+):\?", (FOLDER / "compose.yaml").read_text())
    )
    assert all(settings.values())
    assert {path.name for path in folder.iterdir()} == {".env", "users", "certificates"}


def test_claude_code_sends_the_token_that_team_join_has_stored(tmp_path: Path) -> None:
    """Runs the helper in the guide, as Claude Code does."""
    (helper,) = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", GUIDE, re.DOTALL)
    (settings,) = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
    assert json.loads(settings)["env"]["OTEL_EXPORTER_OTLP_PROTOCOL"] == "http/protobuf"
    folder = tmp_path / ".config/token-sidecar"
    folder.mkdir(parents=True)
    (folder / STORED_NAME).write_text("jane@example.com:secret\n")
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(["sh", "-c", helper], env=environment, capture_output=True, check=True)
    scheme, _, token = json.loads(run.stdout)["Authorization"].partition(" ")
    assert (scheme, base64.b64decode(token)) == ("Basic", b"jane@example.com:secret")


def test_the_dashboard_has_only_keys_that_grafana_knows() -> None:
    """Grafana's own types can read and write the dashboard without losing keys."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    written = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(DASHBOARD)))
    assert only_keys_of(written, DASHBOARD) == DASHBOARD


def only_keys_of(value: Any, keys: Any) -> Any:
    """Return a value without the defaults that Grafana added."""
    if isinstance(keys, dict):
        return {name: only_keys_of(value[name], keys[name]) for name in keys if name in value}
    if isinstance(keys, list):
        return [only_keys_of(one, other) for one, other in zip(value, keys, strict=True)]
    return value


def test_pipelines_of_the_collector_use_what_is_declared() -> None:
    """Checks only names, because no package has a schema for the collector's configuration."""
    service = COLLECTOR["service"]
    for pipeline in service["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) == set(COLLECTOR[kind])
    assert set(service["extensions"]) == set(COLLECTOR["extensions"])


def test_the_collector_lets_exactly_the_attributes_pass_that_the_schema_reads() -> None:
    resource, _, log = COLLECTOR["processors"]["transform/allow"]["log_statements"]
    allowed = set(re.findall(r'"([\w.]+)"', " ".join(log["statements"]))) - {""}
    sql = SCHEMA.read_text("utf-8")
    read = set(re.findall(r"\ba\['([\w.]+)'\]", sql))
    assert read <= allowed
    # The schema reads the team only if the collector does not identify users.
    kept = set(re.findall(r'"([\w.]+)"', resource["statements"][-1]))
    assert set(re.findall(r"\br\['([\w.]+)'\]", sql)) - {"team.id"} <= kept
    assert "team.id" not in kept
    assert not [name for name in allowed if re.search("email|account|prompt|body|host|path", name)]
