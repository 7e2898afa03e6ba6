"""Reads `conversations/<id>/base_state.json` of OpenHands, which has an entry for each call."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from sidecar.agents.file_reading import (
    Number,
    Record,
    TokenCount,
    decode_document,
    parse_time,
    parse_usd,
    reported_usage,
    time_from_ns,
)
from sidecar.agents.session_events import CallFinished, CallSize, Category, Store, StoreRead
from sidecar.agents.stores import DocumentReader, SessionState
from sidecar.messages.vendor_usage import Usage

_MAIN = "agent"
_CATEGORIES: dict[str, Category] = {
    "condenser": "summary",
    "task": "subagent",
    "delegate": "subagent",
}
"""The category of calls by their purpose. Sub-agents add their id to it: `task:…`."""


class _Tokens(Record):
    model: str | None = None
    prompt_tokens: TokenCount = None
    completion_tokens: TokenCount = None
    cache_read_tokens: TokenCount = None
    cache_write_tokens: TokenCount = None
    reasoning_tokens: TokenCount = None
    context_window: TokenCount = None
    response_id: str | None = None

    @property
    def usage(self) -> Usage:
        return reported_usage(
            self.prompt_tokens,
            self.completion_tokens,
            self.cache_read_tokens,
            self.cache_write_tokens,
            self.reasoning_tokens,
        )


class _Cost(Record):
    cost: Number = None
    timestamp: Number = None


class _Metrics(Record):
    token_usages: list[_Tokens] | None = None
    costs: list[_Cost] | None = None


class _Stats(Record):
    usage_to_metrics: dict[str, _Metrics] | None = None


class _Workspace(Record):
    working_dir: str | None = None


class _State(Record):
    workspace: _Workspace | None = None
    execution_status: str | None = None
    stats: _Stats | None = None


class OpenHands(DocumentReader):
    inner = ("conversations",)
    pattern = r"[^/]+/base_state\.json"

    def parse(self, store: Store, data: bytes) -> StoreRead:
        state = decode_document(data, _State)
        session = SessionState(Path(store.path).parent.name)
        session.work_in(state.workspace.working_dir if state.workspace else None)
        session.active = state.execution_status == "running"
        metrics = (state.stats.usage_to_metrics if state.stats else None) or {}
        calls = [
            call
            for purpose, one in metrics.items()
            for call in _calls(session, purpose, one, store)
        ]
        session.began_at = min((call.at for call in calls), default=None)
        session.updated_at = time_from_ns(store.mtime_ns)
        return StoreRead(calls, [session.snapshot()])


READER = OpenHands()


def _calls(
    session: SessionState, purpose: str, metrics: _Metrics, store: Store
) -> list[CallFinished]:
    """Return the calls that the agent made for a purpose: the conversation, or its summaries."""
    calls: list[CallFinished] = []
    for tokens, cost in zip_longest(metrics.token_usages or (), metrics.costs or ()):
        if tokens is None:
            break
        provider, slash, model = (tokens.model or "").rpartition("/")
        at = parse_time(cost.timestamp) if cost else None
        if purpose == _MAIN:
            size = CallSize.of(tokens.usage, model, tokens.context_window)
            session.track = session.track.call(size)
        calls += session.call(
            at or time_from_ns(store.mtime_ns),
            tokens.usage,
            tokens.response_id or f"{session.id}/{purpose}/{len(calls)}",
            model or None,
            provider.partition("/")[0] if slash else None,
            category=_CATEGORIES.get(purpose.partition(":")[0], "main"),
            agent_cost=parse_usd(cost.cost) if cost else None,
        )
    return calls
