"""Mistral Vibe before 3.0: `logs/session/<session>/meta.json`, with context and sums."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.agents.fields import Number, Record, count, provider_of, when, whole, whole_file
from sidecar.agents.folding import Folded, fold_whole
from sidecar.agents.line_files import NamedFiles
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.values import Batch, Call, CallOrigin, Found, Glance, Mark, Reading, stored
from sidecar.messages.usage import disjoint

if TYPE_CHECKING:
    from sidecar.agents.reader import Look

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


class VibeStats(NamedFiles):
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT
    inner = "logs/session"
    name = "meta.json"

    def glance(self, look: Look) -> Glance:
        found = look.found
        meta = whole_file(found.path, _Meta)
        if not look.roots.hold(meta.folder):
            return Glance(found)
        size = count((meta.stats or _Stats()).context_tokens)
        name = meta.session_id or Path(found.path).parent.name
        track = Track().call(Reading(size, 0, meta.model))
        at = when(meta.end_time)
        session = stored(found, name, meta.folder, at, occupancy(track), model=meta.model)
        return Glance(found, (session,))

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_whole(found, mark, CallOrigin(Path(found.path).parent.name), _fold)


def _fold(state: CallOrigin, data: bytes) -> Folded[CallOrigin]:
    """All calls of a session together: there is no more detail."""
    meta = whole(data, _Meta)
    stats, at = meta.stats or _Stats(), when(meta.start_time or meta.end_time)
    prompt, output = count(stats.session_prompt_tokens), count(stats.session_completion_tokens)
    if at is None:
        return Folded(state, ())
    model, name = meta.model or "unknown", meta.session_id or state.session
    call = Call(
        at=at,
        agent=AGENT,
        session=name,
        model=model,
        provider=provider_of(model),
        usage=disjoint(prompt, 0, 0, 0, output, 0),
        request=name,
        workspace=meta.folder,
        quality="estimate",
    )
    return Folded(state, (call,))
