"""Tests a team's servers over TLS: a real proxy, collector and store, and a private authority."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.config.paths import config_file, state_dir
from sidecar.cost.book import CostBook
from tests.clickhouse import ClickHouse
from tests.collector import Collector
from tests.e2e.team.caddy import CADDYFILE, Caddy, caddy
from tests.e2e.team.rotel import Rotel
from tests.e2e.team.team_collector import TeamCollector, user_hash, users_line
from tests.e2e.team.test_team_end_to_end import wait_for
from tests.unit.cost_calls import call_of

USER = "jane@example.com"
SECRET = "jane's secret"  # noqa: S105
PASSWORD = "store secret"  # noqa: S105


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClickHouse]:
    store = ClickHouse(tmp_path / "store", PASSWORD)
    yield store
    store.close()


@pytest.fixture
def grafana() -> Iterator[Collector]:
    """A server that stands in for Grafana."""
    server = Collector()
    yield server
    server.close()


@pytest.fixture
def proxy(tmp_path: Path, store: ClickHouse, grafana: Collector) -> Iterator[Caddy]:
    rotel = Rotel(store.url, PASSWORD)
    rotel.start()
    rotel.await_ready()
    collector = TeamCollector(rotel, users_line(USER, SECRET)).serve()
    proxy = Caddy(tmp_path / "caddy", collector.url, store.url, grafana.url)
    proxy.start()
    yield proxy
    proxy.close()
    collector.close()
    rotel.kill()


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty machine, on which an agent has made a call."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    config_file().write_text("[agents]\nenabled = false\n")
    book = CostBook(state_dir())
    book.prices.load()
    book.ledger.record(call_of("claude-code", request_id="first"))
    book.close()


def run(*arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(main, arguments, input=given)


def test_one_command_and_one_secret_bring_the_first_call_to_the_store(
    proxy: Caddy, store: ClickHouse, grafana: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = f"{USER}:{SECRET}\n"
    refused = run("team", "join", proxy.url, given=token)
    assert (refused.exit_code, "--ca-file FILE" in refused.stderr) == (1, True)
    joined = run("team", "join", proxy.url, "--ca-file", str(proxy.authority), given=token)
    assert joined.exit_code == 0, joined.output
    assert run("cost", "ship").stdout == "Sent 1 call.\n"
    user = user_hash(USER)
    wait_for(store, "SELECT user, count() FROM llm.calls FINAL GROUP BY user", [[user, "1"]])
    assert grafana.bodies == []

    store.compute_daily()
    store.run("INSERT INTO llm.names SELECT {user:String}, {name:String}", user=user, name=USER)
    monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
    text = config_file().read_text()
    settings = f'[team]\nstore = "{proxy.store_url}"\nstore-password-env = "STORE_PASSWORD"'
    config_file().write_text(text.replace("[team]", settings))
    report = json.loads(run("cost", "--team", "--by", "user", "--json").stdout)
    assert [(row["user"], row["calls"]) for row in report["rows"]] == [(USER, 1)]


def test_the_proxy_serves_grafana_at_all_other_paths(proxy: Caddy, grafana: Collector) -> None:
    trusted = ssl.create_default_context(cafile=proxy.authority)
    with httpx.Client(verify=trusted, trust_env=False) as client:
        client.post(f"{proxy.url}/login", content=b"jane")
    assert grafana.bodies == [("/login", b"jane")]


@pytest.mark.parametrize(
    "tls", ["internal", "admin@example.com", "/certificates/cert.pem /certificates/key.pem"]
)
def test_the_configuration_of_the_proxy_is_valid(tls: str) -> None:
    environment = {"DOMAIN": "costs.example.com", "TLS": tls}
    adapted = caddy("adapt", "--config", str(CADDYFILE), environment=environment)
    assert adapted.returncode == 0, adapted.stderr
    assert "not formatted" not in adapted.stderr
    servers = json.loads(adapted.stdout)["apps"]["http"]["servers"]
    assert sorted(server["listen"] for server in servers.values()) == [[":443"], [":8443"]]
