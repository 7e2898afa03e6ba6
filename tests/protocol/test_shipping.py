"""Tests that a running server ships calls, and never waits for the collector."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import ClaudeHome
from sidecar.cli.cost import cost
from sidecar.config.paths import config_file
from sidecar.cost import shipping
from sidecar.cost.records import DAY_EVENT, EVENT, PRICE_EVENT
from sidecar.server.features import costs
from sidecar.tasks import JobKey, Work
from tests.collector import Answer, Collector
from tests.protocol.client import Client, until

CALL = {"model": "claude-haiku-4-5", "usage": {"input_tokens": 10, "output_tokens": 2}}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(costs, "SHIP_SECONDS", 0.05)
    monkeypatch.setattr(costs, "SHIP_PAUSE_SECONDS", 0.0)
    collector = Collector()
    config_file().write_text(f'[ledger]\notel-endpoint = "{collector.url}"\n')
    yield collector
    collector.close()


def count_calls(collector: Collector) -> int:
    return sum(record["event.name"] == EVENT for record in collector.calls())


async def test_new_calls_are_shipped(bare: Client, collector: Collector) -> None:
    await bare.initialize(ignored=("status/update",))
    for number in range(3):
        await bare.request("cost/record", {**CALL, "requestId": f"msg_{number}"})

    def events() -> Counter[str]:
        return Counter(str(record["event.name"]) for record in collector.calls())

    await until(lambda: events()[EVENT] >= 3 and events()[PRICE_EVENT])
    await asyncio.sleep(0.3)  # long enough for several more shipments
    # An empty ledger has no report. The day's report was sent after the first calls, and only once.
    assert events() == {EVENT: 3, DAY_EVENT: 1, PRICE_EVENT: 1}


async def test_what_prompt_files_cost_is_reported_once(
    bare: Client, collector: Collector, tmp_path: Path
) -> None:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(hours=1)
    root = tmp_path / "project"
    root.mkdir()
    (root / "CLAUDE.md").write_text("Be brief.")
    home.session(root).reply()
    await asyncio.to_thread(CliRunner().invoke, cost, ["--workspace", str(root)])
    await bare.initialize(root.as_uri(), ignored=("status/update",))

    def files() -> list[object]:
        return [call["token_sidecar.file.name"] for call in collector.calls() if "token_sidecar.file.id" in call]  # fmt: skip

    await until(files)
    await asyncio.sleep(0.3)  # long enough for several more shipments
    assert files() == ["CLAUDE.md"]


async def test_shutdown_does_not_wait_for_a_collector_that_hangs(
    bare: Client, collector: Collector
) -> None:
    asked, release = threading.Event(), threading.Event()

    def hang(_path: str, _body: bytes) -> Answer:
        asked.set()
        release.wait(60)
        return 200, b"", {}

    collector.answer = hang
    await bare.initialize(ignored=("status/update",))
    await bare.request("cost/record", CALL)
    assert await asyncio.to_thread(asked.wait, 30)
    await bare.request("shutdown", None)
    bare.notify("exit", None)
    await asyncio.wait_for(bare.exit, 30)
    release.set()


async def test_delay_doubles_while_the_collector_is_unavailable(
    bare: Client, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: dict[int, float] = {}
    scheduler = bare.server.scheduler
    schedule = scheduler.schedule

    def recorded(key: JobKey, seconds: float, work: Work) -> None:
        if key == ("shipping",) and (failures := bare.feature(costs.CallShipping)._failures):
            delays[failures] = seconds
        schedule(key, seconds, work)

    monkeypatch.setattr(scheduler, "schedule", recorded)
    collector.answer = lambda _path, _body: (503, b"", {})
    await bare.initialize(ignored=("status/update",))
    await bare.request("cost/record", CALL)
    await until(lambda: len(delays) >= 4)
    # The first delay is shorter if settings change during the first attempt.
    later = {failures: delays[failures] for failures in range(2, 5)}
    assert later == pytest.approx({2: 0.15, 3: 0.25, 4: 0.45})


async def test_rejected_calls_do_not_delay_later_ones(
    bare: Client, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.answer = lambda _path, body: (400 if b"gpt-5" in body else 200, b"", {})
    await bare.initialize(ignored=("status/update",))
    for number, model in enumerate(("gpt-5", "claude-haiku-4-5", "gpt-5", "claude-haiku-4-5")):
        await bare.request("cost/record", {**CALL, "model": model, "requestId": f"msg_{number}"})
        await asyncio.sleep(0.2)
    await until(lambda: count_calls(collector) >= 2 and "collector rejected calls" in caplog.text)
    assert caplog.text.count("the collector rejected calls") == 1


async def test_a_change_of_settings_ends_the_delay_after_failures(
    bare: Client, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "LONGEST_SHIP_SECONDS", 600.0)
    collector.answer = lambda _path, _body: (503, b"", {"Retry-After": "600"})
    await bare.initialize(ignored=("status/update",))
    await bare.request("cost/record", CALL)
    await until(lambda: collector.bodies)
    await asyncio.sleep(0.2)
    collector.answer = lambda _path, _body: (200, b"", {})
    with config_file().open("a") as file:
        file.write('[team]\nteam = "platform"\n')
    bare.notify("workspace/didChangeConfiguration", {"settings": {}})
    await until(lambda: any(call.get("team.id") == "platform" for call in collector.calls()))


async def test_invalid_headers_do_not_end_shipping(
    bare: Client, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=K\u00e4se")
    await bare.initialize(ignored=("status/update",))
    await bare.request("cost/record", CALL)
    await asyncio.sleep(0.5)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=Kase")
    await until(collector.calls)


async def test_the_queue_is_not_opened_for_every_run(
    bare: Client, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []

    def open_queue(*args: Any) -> object:
        opened.append(args)
        return real(*args)

    real = shipping.open_queue
    monkeypatch.setattr(shipping, "open_queue", open_queue)
    await bare.initialize(ignored=("status/update",))
    opened_by_call = []
    for number in range(3):
        await bare.request("cost/record", {**CALL, "requestId": f"msg_{number}"})
        await until(lambda: count_calls(collector) > number)  # noqa: B023
        opened_by_call.append(len(opened))
    assert opened_by_call[0] > 0
    assert opened_by_call[1] == opened_by_call[2]


async def test_the_token_command_runs_again_only_after_a_failure(
    bare: Client, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password manager may ask the user for each run."""
    monkeypatch.setattr(costs, "LONGEST_SHIP_SECONDS", 0.05)
    runs, script, token = (tmp_path / name for name in ("runs", "get-token", "token"))
    script.write_text(f"#!/bin/sh\necho run >> {runs}\ncat {token}\n")
    script.chmod(0o700)
    token.write_text("first")
    valid = "Bearer first"

    def answer(_path: str, _body: bytes) -> Answer:
        return 200 if collector.headers[-1]["authorization"] == valid else 401, b"", {}

    collector.answer = answer
    with config_file().open("a") as file:
        file.write(f'[team]\ntoken-command = "{script}"\n')
    await bare.initialize(ignored=("status/update",))
    await bare.request("cost/record", CALL)
    await until(lambda: count_calls(collector) == 1)
    before = runs.read_text()
    await asyncio.sleep(0.5)  # long enough for several more shipments
    await bare.request("cost/record", CALL)
    await until(lambda: count_calls(collector) == 2)
    assert runs.read_text() == before

    valid = "Bearer second"
    token.write_text("second")
    await bare.request("cost/record", CALL)
    await until(lambda: count_calls(collector) == 3)


async def test_a_refused_token_is_shown_until_calls_are_sent(
    bare: Client, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "LONGEST_SHIP_SECONDS", 0.05)
    collector.answer = lambda _path, _body: (401, b"", {})
    await bare.initialize()
    await bare.request("cost/record", {**CALL, "requestId": "msg"})

    await bare.take("status/update", lambda one: "refused the token" in str(one["cost"]))
    collector.answer = lambda _path, _body: (200, b"", {})
    await until(collector.calls)
    await until(lambda: not any(one.costs.shipping_problem for one in bare.server.services.roots))
    assert count_calls(collector) == 1
    bare.ignore("status/update")
