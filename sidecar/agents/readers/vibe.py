"""Mistral Vibe: `logs/session/<session>/meta.json`, with the context and the session's sums."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.fields import Number, Record, count, from_ns, provider_of, when, whole
from sidecar.agents.folding import Folded, fold_whole
from sidecar.agents.homes import homes
from sidecar.agents.listing import entries, stat_of
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.tail import open_quietly
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, Reading, StoredSession
from sidecar.messages.usage import disjoint

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

AGENT = "vibe"
_META = "meta.json"


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


class _State(msgspec.Struct, frozen=True):
    """Of a session's folder."""

    session: str


class Vibe:
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(str(home / "logs" / "session") for home in homes(places, AGENT))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:  # noqa: ARG002
        for folder in self.folders(places):
            for session in entries(folder):
                found = stat_of(AGENT, os.path.join(session.path, _META))
                if found is not None:
                    yield found

    def store_at(self, places: Places, path: str) -> Found | None:
        one = Path(path)
        inside = one.name == _META and str(one.parents[1]) in self.folders(places)
        return stat_of(AGENT, path) if inside else None

    def glance(self, look: Look) -> Glance:
        found = look.found
        with open_quietly(found.path) as file:
            meta = whole(file.read(), _Meta)
        if not look.roots.hold(meta.folder):
            return Glance(found)
        size = count((meta.stats or _Stats()).context_tokens)
        session = StoredSession(
            id=meta.session_id or Path(found.path).parent.name,
            source=AGENT,
            path=found.path,
            cwd=meta.folder,
            updated_at=when(meta.end_time) or from_ns(found.mtime_ns),
            model=meta.model,
            occupancy=occupancy(Track().call(Reading(size, 0, meta.model))),
        )
        return Glance(found, (session,))

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_whole(found, mark, _State(Path(found.path).parent.name), _fold)


READER = Vibe()


def _fold(state: _State, data: bytes) -> Folded[_State]:
    """All calls of a session together: there is no more detail."""
    meta = whole(data, _Meta)
    stats, at = meta.stats or _Stats(), when(meta.start_time or meta.end_time)
    prompt, output = count(stats.session_prompt_tokens), count(stats.session_completion_tokens)
    if at is None or not prompt + output:
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
