"""Exports calls as OpenTelemetry GenAI metrics and spans. Deprecated: use `sidecar.cost.shipping`.

The export requires `[ledger] otel-signals` in the user's settings and the `[otel]` extra. It
contains numbers, ids, models and times, but no text and no workspace paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.cost.events import LedgerEvent, milliseconds
from sidecar.cost.records import provider_name
from sidecar.errors import SidecarError, how_to_install

if TYPE_CHECKING:
    from sidecar.cost.prices import Prices

_SECONDS = 2
_EVERY_MS = 15_000

# The semantic conventions recommend these bounds for `gen_ai.client.token.usage`.
_TOKEN_BOUNDS = tuple(float(4**power) for power in range(14))


class OtelMissingError(SidecarError):
    """The `[otel]` extra is not installed."""

    kind = "config"


class OtelExporter:
    """Exports calls in the background. Errors from the collector are ignored."""

    def __init__(self, endpoint: str, prices: Prices) -> None:
        """Create an exporter.

        Args:
            endpoint: The collector's address, such as `http://127.0.0.1:4318`.
            prices: The prices.

        Raises:
            OtelMissingError: The `[otel]` extra is not installed.
        """
        self._prices = prices
        try:
            self._traces, self._metrics = _make_providers(endpoint.rstrip("/"))
        except ImportError as error:
            raise OtelMissingError(
                f"exporting to OpenTelemetry requires additional packages; {how_to_install('otel')}"
            ) from error
        self._tracer = self._traces.get_tracer("token-sidecar")
        meter = self._metrics.get_meter("token-sidecar")
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of a call; input includes cache reads and writes.",
            explicit_bucket_boundaries_advisory=_TOKEN_BOUNDS,
        )
        self._cost = meter.create_counter(
            "token_sidecar.cost", unit="USD", description="Cost of calls whose price is known."
        )

    def export(self, event: LedgerEvent) -> None:
        """Queue a call for export."""
        shared = _metric_attributes(event)
        cost = self._prices.cost(event).usd
        for kind, tokens in (
            ("input", event.buckets.prompt),
            ("output", event.buckets.completion),
        ):
            self._tokens.record(tokens, shared | {"gen_ai.token.type": kind})
        if cost is not None:
            self._cost.add(float(cost), shared)
        at = milliseconds(event.at) * 1_000_000
        span = self._tracer.start_span(
            f"chat {event.model}",
            kind=_span_kind(),
            start_time=at,
            attributes=shared | _span_attributes(event, None if cost is None else float(cost)),
        )
        span.end(at)

    def close(self) -> None:
        """Send all queued calls. This can take a few seconds."""
        self._traces.shutdown()
        self._metrics.shutdown(timeout_millis=_SECONDS * 1000)


def _make_providers(endpoint: str) -> tuple[Any, Any]:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from sidecar import __version__

    resource = Resource.create({"service.name": "token-sidecar", "service.version": __version__})
    traces = TracerProvider(resource=resource, shutdown_on_exit=False)
    spans = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=_SECONDS)
    traces.add_span_processor(BatchSpanProcessor(spans))
    numbers = OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=_SECONDS)
    reader = PeriodicExportingMetricReader(numbers, export_interval_millis=_EVERY_MS)
    metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    return traces, metrics


def _span_kind() -> Any:
    from opentelemetry.trace import SpanKind

    return SpanKind.CLIENT


def _metric_attributes(event: LedgerEvent) -> dict[str, str]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_name(event.provider),
        "gen_ai.request.model": event.model,
        "token_sidecar.category": event.category,
    }


def _span_attributes(event: LedgerEvent, cost: float | None) -> dict[str, str | int | float]:
    buckets = event.buckets
    known: dict[str, str | int | float | None] = {
        "gen_ai.usage.input_tokens": buckets.prompt,
        "gen_ai.usage.output_tokens": buckets.completion,
        "gen_ai.usage.cache_read.input_tokens": buckets.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": buckets.cache_writes,
        "gen_ai.usage.reasoning.output_tokens": buckets.reasoning,
        "gen_ai.response.id": event.request_id,
        "gen_ai.conversation.id": event.session or None,
        "gen_ai.agent.name": event.agent,
        "token_sidecar.service_tier": event.tier or None,
        "token_sidecar.estimated_tokens": event.estimated_tokens,
        "token_sidecar.cost_usd": cost,
    }
    return {name: value for name, value in known.items() if value is not None}
