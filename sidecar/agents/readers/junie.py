"""Reads Junie's `sessions/<session>/events.jsonl`.

An event with usage lists the models of one reply: the conversation's, and those of helpers that
make titles or check commands. The size of the context is in events of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sidecar import typed
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    Record,
    TokenCount,
    parse_usd,
    reported_usage,
    time_from_ms,
)
from sidecar.agents.session_events import CallFinished, CallSize, Store
from sidecar.agents.stores import LineReader, Lines, SessionLines, SessionState
from sidecar.messages.vendor_usage import Usage

_MAIN = "MainAgent"


class _Usage(CamelRecord):
    model: str | None = None
    cost: Number = None
    input_tokens: TokenCount = None
    cache_input_tokens: TokenCount = None
    cache_create_tokens: TokenCount = None
    output_tokens: TokenCount = None

    @property
    def tokens(self) -> Usage:
        cached = self.cache_input_tokens, self.cache_create_tokens
        return reported_usage(self.input_tokens, self.output_tokens, *cached, includes_cached=False)


class _Agent(Record):
    kind: str | None = None


class _AgentEvent(CamelRecord):
    kind: str | None = None
    current_directory: str | None = None
    agent: _Agent | None = None
    model_usage: list[_Usage] | None = None
    used: TokenCount = None
    size: TokenCount = None


class _Event(CamelRecord):
    state: str | None = None
    agent_event: _AgentEvent | None = None


class _Line(CamelRecord):
    kind: str | None = None
    timestamp_ms: Number = None
    event: _Event | None = None


_line = typed.decoder(_Line)


class Junie(LineReader):
    inner = ("sessions",)
    pattern = r"[^/]+/events\.jsonl"

    def begin(self, store: Store) -> _Events:
        return _Events(SessionState(Path(store.path).parent.name))


READER = Junie()


class _Events(SessionLines):
    has_reports: bool = False
    """Whether the session reports the size of its context."""

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        session = self.session
        for line in lines.records(_line):
            session.touch(time_from_ms(line.timestamp_ms))
            event = line.event or _Event()
            agent = event.agent_event or _AgentEvent()
            session.work_in(agent.current_directory)
            if "UserPromptEvent" in (line.kind, agent.kind):
                session.active = True
            elif event.state == "COMPLETED":
                session.active = False
            if agent.used:
                self.has_reports = True
                session.track = session.track.call(CallSize(agent.used, 0, None, agent.size))
            if agent.model_usage:
                yield from self._calls(agent, agent.model_usage, lines.position)

    def _calls(
        self, event: _AgentEvent, usages: list[_Usage], position: str
    ) -> Iterator[CallFinished]:
        session = self.session
        is_main = event.agent is None or event.agent.kind == _MAIN
        largest = max(usages, key=lambda one: one.tokens.prompt_tokens)
        if is_main:
            session.model = largest.model or session.model
            if not self.has_reports:
                session.track = session.track.call(CallSize.of(largest.tokens, largest.model))
        for number, usage in enumerate(usages):
            yield from session.call(
                None,
                usage.tokens,
                f"{session.id}/{position}/{number}",  # events have no ids
                usage.model,
                category="main" if is_main else "subagent",
                agent_cost=parse_usd(usage.cost),
            )
