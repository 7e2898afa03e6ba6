"""Tests agents that export their own telemetry while token-sidecar ships the same calls."""

from __future__ import annotations

import base64
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.cost import cost
from sidecar.config.paths import config_file
from tests.clickhouse import SCHEMA, ClickHouse
from tests.e2e.agents.adapters import Agent, ClaudeCode, Codex
from tests.e2e.agents.install import ensure_installed
from tests.e2e.agents.scene import Scene
from tests.e2e.team.rotel import Rotel
from tests.e2e.team.team_collector import TeamCollector, user_hash, users_line
from tests.fake_vendor import Reply

USER, TOKEN = "jane@example.com", "collector token"
HEADER = f"Basic {base64.b64encode(f'{USER}:{TOKEN}'.encode()).decode()}"
RESOURCE = "user.hash=0123456789abcdef,team.id=another"
"""What an agent claims. The collector replaces it."""
SECRET = "the swordfish word"  # noqa: S105
GREET = f"Greet me in one line, and keep {SECRET} to yourself."
WORK = "Run the command that does nothing."
DELEGATE = "Let somebody look into the cellar."
CELLAR = "Look into the cellar and report."
LONG = "Read the whole archive."
GUIDE = (SCHEMA.parents[2] / "docs/how-to/team.md").read_text("utf-8")
CALLS = (
    "SELECT source, agent, model, category, input, cache_read, cache_write, output, reasoning, cost "
    "FROM llm.calls FINAL"
)


class ExportingCodex(Codex):
    """Codex, configured with an `[otel]` exporter."""

    def configure(self, home: Path, url: str) -> None:
        super().configure(home, url)
        (exporter,) = re.findall(r"^\[otel\..*?(?=^```)", GUIDE, re.MULTILINE | re.DOTALL)
        assert "https://costs.example.com/" in exporter
        exporter = exporter.replace("https://costs.example.com", url)
        with (home / ".codex/config.toml").open("a") as file:
            file.write(exporter.replace("Basic <TOKEN>", HEADER))

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
            "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization={HEADER}",
            "OTEL_RESOURCE_ATTRIBUTES": RESOURCE,
        }


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
    store.run(
        "INSERT INTO llm.teams VALUES ({user:String}, today(), 'platform')", user=user_hash(USER)
    )
    collector = TeamCollector(rotel, users_line(USER, TOKEN))

    def receive(headers: Mapping[str, str], body: bytes) -> None:
        assert collector.receive(headers, body), "the collector refuses the token"

    scene.vendor.receive_logs = receive
    run_turns(scene)
    billed = [call.usage for call in scene.vendor.billed() if call.usage]
    tokens = Counter((use.uncached, use.cache_read, use.cache_write, use.output) for use in billed)

    # Only the agent has reported its calls.
    rows = await_rows(store, lambda rows: len(rows) >= len(billed))
    assert {(row[0], row[1]) for row in rows} == {(scene.agent.name, scene.agent.name)}
    assert Counter(tokens_of(row) for row in rows) == tokens
    store.compute_daily()
    resource = store.rows("SELECT DISTINCT user, team FROM llm.daily")
    assert resource == [[user_hash(USER), "platform"]]

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
