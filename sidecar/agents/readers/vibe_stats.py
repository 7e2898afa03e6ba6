"""Mistral Vibe before 3.0: `logs/session/<session>/meta.json`, with the context size and sums."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sidecar.agents.events import CallFinished, Store, StoreRead, StoreReader
from sidecar.agents.fields import (
    Number,
    Record,
    decode_document,
    parse_iso_time,
    provider_of,
    token_count,
)
from sidecar.agents.line_files import NamedFiles
from sidecar.agents.stores import SessionState, StoreContents, read_document
from sidecar.agents.values import CallSize
from sidecar.messages.usage import usage_from_parts

AGENT = "vibe"


class _Stats(Record):
    session_prompt_tokens: Number = None
    session_completion_tokens: Number = None
    context_tokens: Number = None


class _Environment(Record):
    working_directory: str | None = None


class _Config(Record):
    active_model: str | None = None


class _Meta(Record):
    session_id: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    title: str | None = None
    environment: _Environment | None = None
    config: _Config | None = None
    stats: _Stats | None = None

    @property
    def folder(self) -> str:
        return (self.environment.working_directory if self.environment else None) or ""

    @property
    def model(self) -> str | None:
        return self.config.active_model if self.config else None


class VibeStats(NamedFiles, StoreReader):
    """See `sidecar.agents.events.StoreReader`."""

    agent = AGENT
    inner = "logs/session"
    name = "meta.json"

    def read(self, store: Store, state: bytes = b"") -> StoreRead:  # noqa: ARG002
        return read_document(store, partial(_parse_stats, Path(store.path).parent.name))


def _parse_stats(folder: str, data: bytes) -> StoreContents:
    """Return a session, and the sum of its calls as one call."""
    meta = decode_document(data, _Meta)
    stats, session = meta.stats or _Stats(), SessionState(meta.session_id or folder)
    session.work_in(meta.folder)
    session.at, session.model = parse_iso_time(meta.end_time), meta.model
    session.track = session.track.call(CallSize(token_count(stats.context_tokens), 0, meta.model))
    at = parse_iso_time(meta.start_time or meta.end_time)
    if at is None:
        return StoreContents(sessions=[session.snapshot()])
    prompt, output = (
        token_count(stats.session_prompt_tokens),
        token_count(stats.session_completion_tokens),
    )
    model = meta.model or "unknown"
    call = CallFinished(
        at=at,
        agent=AGENT,
        session=session.id,
        model=model,
        provider=provider_of(model),
        usage=usage_from_parts(prompt, 0, 0, 0, output, 0),
        request=session.id,
        workspace=meta.folder,
    )
    return StoreContents([call], [session.snapshot()])
