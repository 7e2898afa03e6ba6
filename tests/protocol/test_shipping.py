"""A running server ships recorded calls, and never waits for the collector."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import ClaudeHome
from sidecar.cli.cost import cost
from sidecar.config.paths import config_file
from sidecar.server.features import background
from tests.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.collector import Answer
    from tests.protocol.client import Client

CALL = {"model": "claude-haiku-4-5", "usage": {"input_tokens": 10, "output_tokens": 2}}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(background, "SHIP_SECONDS", 0.05)
    collector = Collector()
    config_file().write_text(f'[ledger]\notel-endpoint = "{collector.url}"\n')
    yield collector
    collector.close()


async def test_new_calls_are_shipped(bare: Client, collector: Collector) -> None:
    await bare.initialize()
    bare.ignore("status/update")
    for number in range(3):
        await bare.request("cost/record", {**CALL, "requestId": f"msg_{number}"})
    async with asyncio.timeout(30):
        while len(collector.calls()) < 3:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)  # several more runs
    assert len(collector.calls()) == 3


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
    await bare.initialize(root.as_uri())
    bare.ignore("status/update")

    def files() -> list[object]:
        return [call["token_sidecar.file.name"] for call in collector.calls() if "token_sidecar.file.id" in call]  # fmt: skip

    async with asyncio.timeout(30):
        while not files():
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)  # several more runs
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
    await bare.initialize()
    bare.ignore("status/update")
    await bare.request("cost/record", CALL)
    assert await asyncio.to_thread(asked.wait, 30)
    started = time.monotonic()
    await bare.request("shutdown", None)
    bare.notify("exit", None)
    await bare.exit
    release.set()
    assert time.monotonic() - started < 1


async def test_a_collector_that_is_away_is_asked_less_and_less(
    bare: Client, collector: Collector
) -> None:
    collector.answer = lambda _path, _body: (503, b"", {})
    await bare.initialize()
    bare.ignore("status/update")
    await bare.request("cost/record", CALL)
    await asyncio.sleep(2)
    assert 2 <= len(collector.bodies) <= 6, "after 0.1, 0.15, 0.25, 0.45, 0.85 and 1.65 seconds"
