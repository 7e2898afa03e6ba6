"""Tests the deprecated export of metrics and spans to a collector."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.agents.claude import ClaudeHome
from sidecar.agents.registry import Sources
from sidecar.budget.rules import Rules
from sidecar.config.load import load
from sidecar.config.paths import config_file
from sidecar.cost.book import CostBook
from sidecar.cost.events import Buckets, LedgerEvent
from sidecar.cost.otel import OtelExporter
from sidecar.cost.prices import Prices
from sidecar.cost.protocol import CostRecordParams
from sidecar.workspace.services import Services
from sidecar.workspace.session_index import ingest_all
from sidecar.workspace.state import State
from sidecar.workspace.workspace import SettingsChange
from tests.collector import Collector, attributes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)


def spans(collector: Collector) -> list[Any]:
    return [
        span
        for request in collector.requests(ExportTraceServiceRequest, "/v1/traces")
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def metrics(collector: Collector) -> dict[str, Any]:
    """Return each metric's last state, by name."""
    return {
        metric.name: metric
        for request in collector.requests(ExportMetricsServiceRequest, "/v1/metrics")
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


EVENT = LedgerEvent(
    at=AT,
    model="claude-haiku-4-5",
    provider="anthropic",
    category="main",
    workspace="file:///home/someone/secret-project",
    session="session-1",
    request_id="msg_1",
    buckets=Buckets(
        input=100, cache_read=1000, cache_write_5m=200, cache_write_1h=50, output=30, reasoning=7
    ),
    estimated_tokens=1300,
)


def test_a_call_becomes_a_span_of_the_genai_conventions(collector: Collector) -> None:
    exporter = OtelExporter(collector.url + "/", Prices())
    exporter.export(EVENT)
    exporter.close()
    (span,) = spans(collector)
    assert span.name == "chat claude-haiku-4-5"
    assert span.start_time_unix_nano == span.end_time_unix_nano == int(AT.timestamp()) * 10**9
    by_hand = (100 * 1 + 1000 * 0.1 + 200 * 1.25 + 50 * 2 + 37 * 5) / 10**6
    found = attributes(span)
    assert found.pop("token_sidecar.cost_usd") == pytest.approx(by_hand)
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-haiku-4-5",
        "gen_ai.usage.input_tokens": 1350,
        "gen_ai.usage.output_tokens": 37,
        "gen_ai.usage.cache_read.input_tokens": 1000,
        "gen_ai.usage.cache_creation.input_tokens": 250,
        "gen_ai.usage.reasoning.output_tokens": 7,
        "gen_ai.response.id": "msg_1",
        "gen_ai.conversation.id": "session-1",
        "gen_ai.agent.name": "protocol",
        "token_sidecar.category": "main",
        "token_sidecar.estimated_tokens": 1300,
    }


def test_tokens_become_the_conventions_histogram(collector: Collector) -> None:
    exporter = OtelExporter(collector.url, Prices())
    for _ in range(3):
        exporter.export(EVENT)
    exporter.close()
    usage = metrics(collector)["gen_ai.client.token.usage"]
    assert usage.unit == "{token}"
    sums = {
        attributes(point)["gen_ai.token.type"]: (point.count, point.sum)
        for point in usage.histogram.data_points
    }
    assert sums == {"input": (3, 3 * 1350), "output": (3, 3 * 37)}


def test_cost_is_exported_where_it_is_known(collector: Collector) -> None:
    exporter = OtelExporter(collector.url, Prices())
    unknown = {"model": "nobody-knows-me", "provider": ""}
    for changes in ({"reported_cost": Decimal("0.5")}, unknown):
        exporter.export(LedgerEvent(**{**_fields(EVENT), **changes}))
    exporter.close()
    (point,) = metrics(collector)["token_sidecar.cost"].sum.data_points
    assert point.as_double == 0.5
    costs = [attributes(span).get("token_sidecar.cost_usd") for span in spans(collector)]
    assert sorted(costs, key=str) == [0.5, None]


def _fields(event: LedgerEvent) -> dict[str, Any]:
    return {name: getattr(event, name) for name in LedgerEvent.__struct_fields__}


def test_no_text_and_no_path_leaves(collector: Collector, tmp_path: Path) -> None:
    book = CostBook(tmp_path / "state", otel_endpoint=collector.url)
    usage = {"input_tokens": 5, "output_tokens": 1, "note": "PLANTED-SECRET"}
    params = CostRecordParams(
        model="claude-haiku-4-5",
        usage=usage,
        workspace="file:///home/someone/secret-project",
        request_id="once",
    )
    for _ in range(2):
        book.record(params)
    book.record_many([EVENT, EVENT])
    book.close()
    assert len(spans(collector)) == 2, "a duplicate is not exported again"
    sent = b"".join(body for _path, body in collector.bodies)
    assert b"PLANTED-SECRET" not in sent
    assert b"secret-project" not in sent


def test_a_dead_collector_disturbs_nobody(tmp_path: Path) -> None:
    book = CostBook(tmp_path / "state", otel_endpoint="http://127.0.0.1:9")
    book.record_many([EVENT])
    book.close()
    with book.ledger.reader() as connection:
        assert connection.execute("SELECT count(*) FROM event").fetchone() == (1,)


async def test_calls_of_agents_sessions_are_exported_by_the_reading_that_finds_them(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that were recorded before the export was enabled are not exported."""
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    config_file().write_text(f'[ledger]\notel-endpoint = "{collector.url}"\notel-signals = true\n')
    home = ClaudeHome(tmp_path / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(hours=1)
    session = home.session(root)
    session.reply()
    services = Services(state=State(tmp_path / "state"))
    workspace = services.roots.add(root.as_uri())
    loaded = load(root)
    workspace.apply_settings(SettingsChange(read=(loaded, Rules(loaded.settings))))
    sources = Sources.of(workspace.settings.agents, str(root))
    assert sources is not None
    await services.agents.find_sessions(workspace)
    ingest_all(services.spending(workspace).book, sources, mine=True)
    changed = [str(session.path)]
    session.reply()
    assert await services.agents.read_changed(workspace, changed)
    session.reply()
    assert await services.agents.read_changed(workspace, changed, {"claude-code"})
    await services.aclose()
    services.workers.close()
    exported = {attributes(span)["gen_ai.response.id"] for span in spans(collector)}
    assert exported == set(list(home.truth.calls)[1:])
