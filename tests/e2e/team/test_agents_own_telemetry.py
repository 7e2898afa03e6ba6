"""Tests agents that export their own telemetry while token-sidecar ships the same calls."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from click.testing import CliRunner
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from sidecar.cli.cost import cost
from sidecar.config.paths import config_file
from tests.clickhouse import SCHEMA, ClickHouse
from tests.e2e.agents.adapters import ClaudeCode, Codex
from tests.e2e.agents.install import ensure_installed
from tests.e2e.agents.scene import Scene
from tests.e2e.team.rotel import Rotel
from tests.fake_vendor import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.e2e.agents.adapters import Agent

TOKEN = "collector token"  # noqa: S105
RESOURCE = "user.hash=0123456789abcdef,team.id=platform"
SECRET = "the swordfish word"  # noqa: S105
GREET = f"Greet me in one line, and keep {SECRET} to yourself."
WORK = "Run the command that does nothing."
DELEGATE = "Let somebody look into the cellar."
CELLAR = "Look into the cellar and report."
LONG = "Read the whole archive."
GUIDE = (SCHEMA.parents[2] / "docs/how-to/team.md").read_text("utf-8")
SET_MISSING_TIME = "set(time_unix_nano, observed_time_unix_nano) where time_unix_nano == 0"
CALLS = (
    "SELECT source, agent, model, category, input, cache_read, cache_write, output, reasoning, cost "
    "FROM llm.calls FINAL"
)


class ExportingCodex(Codex):
    """Codex, configured with an `[otel]` exporter."""

    def configure(self, home: Path, url: str) -> None:
        super().configure(home, url)
        (exporter,) = re.findall(r"^\[otel\..*?(?=^```)", GUIDE, re.MULTILINE | re.DOTALL)
        exporter = exporter.replace("https://collector.example.com", url)
        with (home / ".codex/config.toml").open("a") as file:
            file.write(exporter.replace("<COLLECTOR_TOKEN>", TOKEN))

    def environment(self, url: str) -> dict[str, str]:
        return super().environment(url) | {"OTEL_RESOURCE_ATTRIBUTES": RESOURCE}


class ExportingClaudeCode(ClaudeCode):
    """Claude Code, configured to export its own telemetry."""

    def environment(self, url: str) -> dict[str, str]:
        return super().environment(url) | {
            "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
            "OTEL_LOGS_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Bearer {TOKEN}",
            "OTEL_RESOURCE_ATTRIBUTES": RESOURCE,
        }


class TeamCollector:
    """Runs the processors in `collector.yaml`, which rotel does not support, and forwards the
    results to rotel.
    """

    def __init__(self, target: Rotel) -> None:
        self._target = target
        self.requests: list[ExportLogsServiceRequest] = []
        """The requests that were forwarded to rotel."""
        self.headers: list[dict[str, str]] = []
        processors = yaml.safe_load((SCHEMA.parent / "collector.yaml").read_text())["processors"]
        (drop,) = processors["filter/calls"]["logs"]["log_record"]
        self._events = set(re.findall(r'attributes\["event.name"\] == "([\w.]+)"', drop))
        statements = {
            group["context"]: group["statements"]
            for group in processors["transform/allow"]["log_statements"]
        }
        self._allowed = {
            context: set(re.findall(r'"([\w.]+)"', text))
            for context, texts in statements.items()
            for text in texts
            if text.startswith("keep_keys(")
        }
        assert SET_MISSING_TIME in statements["log"]

    def receive(self, headers: Mapping[str, str], body: bytes) -> None:
        self.headers.append({name.lower(): value for name, value in headers.items()})
        plain = gzip.decompress(body) if self.headers[-1].get("content-encoding") else body
        request = self._process(ExportLogsServiceRequest.FromString(plain))
        self.requests.append(request)
        self._send(request)

    def send_again(self) -> None:
        for request in self.requests:
            self._send(request)

    def _process(self, request: ExportLogsServiceRequest) -> ExportLogsServiceRequest:
        for resource in request.resource_logs:
            self._keep_keys(resource.resource.attributes, "resource")
            for scope in resource.scope_logs:
                kept = [record for record in scope.log_records if self._is_call(record)]
                for record in kept:
                    record.time_unix_nano = record.time_unix_nano or record.observed_time_unix_nano
                    record.ClearField("body")
                    self._keep_keys(record.attributes, "log")
                del scope.log_records[:]
                scope.log_records.extend(kept)
        return request

    def _is_call(self, record: Any) -> bool:
        return any(
            attribute.key == "event.name" and attribute.value.string_value in self._events
            for attribute in record.attributes
        )

    def _keep_keys(self, attributes: Any, context: str) -> None:
        kept = [attribute for attribute in attributes if attribute.key in self._allowed[context]]
        del attributes[:]
        attributes.extend(kept)

    def _send(self, request: ExportLogsServiceRequest) -> None:
        httpx.post(
            f"{self._target.url}/v1/logs",
            content=request.SerializeToString(),
            headers={"Content-Type": "application/x-protobuf"},
            trust_env=False,
        ).raise_for_status()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClickHouse]:
    store = ClickHouse(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def rotel(store: ClickHouse) -> Iterator[Rotel]:
    rotel = Rotel(store.url)
    rotel.start()
    rotel.await_ready()
    yield rotel
    rotel.kill()


@pytest.fixture(
    params=[ExportingCodex(), pytest.param(ExportingClaudeCode(), marks=pytest.mark.slow)],
    ids=lambda agent: agent.name,
)
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, rotel: Rotel, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """Yield a scene where both our server and the agent report the calls."""
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    agent: Agent = request.param
    scene = Scene("telemetry", agent, ensure_installed(agent.package), tmp_path)
    yield scene
    scene.close()


def run_turns(scene: Scene) -> None:
    agent = scene.agent
    scene.script.on(GREET, Reply("Hello there."))
    scene.turn(GREET)
    scene.script.on(WORK, Reply("", (agent.shell("true"),)), Reply("The command is done."))
    scene.turn(WORK, resume=True)
    delegate = Reply("", (agent.subagent(CELLAR),))
    scene.script.on(DELEGATE, delegate, Reply("It is empty.", after="subagent"))
    scene.script.on(CELLAR, Reply("Nothing there."), kind="subagent")
    scene.turn(DELEGATE, resume=True)
    scene.script.on(LONG, Reply("Reading.", prompt_tokens=agent.fills_window))
    scene.turn(LONG, resume=True)
    if agent.compact_command:
        scene.turn(agent.compact_command, resume=True)
    scene.turn("Say it again, please.", resume=True)
    assert scene.vendor.billed("subagent")
    assert scene.vendor.billed("summary")


def await_rows(store: ClickHouse, is_right: Callable[[list[list[str]]], bool]) -> list[list[str]]:
    deadline = time.monotonic() + 30
    while not is_right(rows := store.rows(CALLS)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return rows


def test_calls_that_the_agent_reports_too_are_stored_once(
    scene: Scene, store: ClickHouse, rotel: Rotel
) -> None:
    collector = TeamCollector(rotel)
    scene.vendor.receive_logs = collector.receive
    run_turns(scene)
    billed = [call.usage for call in scene.vendor.billed() if call.usage]
    tokens = Counter((use.uncached, use.cache_read, use.cache_write, use.output) for use in billed)

    # Only the agent has reported its calls.
    rows = await_rows(store, lambda rows: len(rows) >= len(billed))
    assert {(row[0], row[1]) for row in rows} == {(scene.agent.name, scene.agent.name)}
    assert Counter(tokens_of(row) for row in rows) == tokens
    assert {header["authorization"] for header in collector.headers} == {f"Bearer {TOKEN}"}
    resource = store.rows("SELECT DISTINCT user, team FROM llm.calls FINAL")
    assert resource == [["0123456789abcdef", "platform"]]

    # token-sidecar has reported the calls, too.
    config_file().write_text(f'[ledger]\notel-endpoint = "{rotel.url}"\n')
    result = CliRunner().invoke(cost, ["ship", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["accepted"] == len(billed)
    shipped = await_rows(store, lambda rows: all(row[0] == "token-sidecar" for row in rows))
    check_against_the_ledger(scene, shipped)

    # The agent's reports arrive again, after those from token-sidecar.
    reports = "SELECT count() FROM otel.otel_logs WHERE ServiceName != 'token-sidecar'"
    before = int(store.rows(reports)[0][0])
    collector.send_again()
    await_rows(store, lambda _rows: int(store.rows(reports)[0][0]) == 2 * before)
    assert int(store.rows(reports)[0][0]) == 2 * before
    assert sorted(store.rows(CALLS)) == sorted(shipped)
    store.compute_daily()
    assert store.rows("SELECT sum(calls) FROM llm.daily") == [[str(len(billed))]]

    stored = store.run("SELECT * FROM otel.otel_logs FORMAT JSONEachRow")
    assert not [
        word for word in (SECRET, "cellar", str(scene.home), "work/project") if word in stored
    ]
    scene.check_bill()
    scene.assert_no_differences()


def check_against_the_ledger(scene: Scene, rows: list[list[str]]) -> None:
    """Check that the store and the ledger contain the same calls, with equal tokens and costs."""
    calls = scene.sidecar.export_calls()
    writes = ("cacheWriteTokens", "cacheWrite5mTokens", "cacheWrite1hTokens")
    expected = Counter(
        (
            call["category"],
            call["inputTokens"],
            call["cacheReadTokens"],
            sum(call[name] for name in writes),
            call["outputTokens"] + call["reasoningTokens"],
            f"{call['costUsd']:.10f}",
        )
        for call in calls
    )
    assert Counter((row[3], *tokens_of(row), f"{float(row[9]):.10f}") for row in rows) == expected


def tokens_of(row: list[str]) -> tuple[int, ...]:
    prompt_and_output = [int(number) for number in row[4:9]]
    return (*prompt_and_output[:3], sum(prompt_and_output[3:]))
