"""Cline since its version 4: `~/.cline/data/sessions/<id>/`, shared by the CLI and all editors.

Beside the older tasks, which nobody writes any more. The messages are rewritten as a whole; each
reply has the numbers of its call, all input in one of them, cached or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.fields import (
    CamelRecord,
    Number,
    Record,
    beside,
    count,
    from_ms,
    provider_of,
    whole,
    whole_file,
)
from sidecar.agents.folding import Folded, fold_whole
from sidecar.agents.homes import cline_sessions
from sidecar.agents.listing import entries, stat_of
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.readers.cline import Tasks, reported_usd
from sidecar.agents.readers.two_stores import TwoStores
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, Reading, stored
from sidecar.messages.usage import Usage, included

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

AGENT = "cline"
_MESSAGES = ".messages.json"
_LEAD = "lead"


class _Metrics(CamelRecord):
    input_tokens: Number = None
    output_tokens: Number = None
    cache_read_tokens: Number = None
    cache_write_tokens: Number = None
    cost: Number = None

    @property
    def usage(self) -> Usage:
        read, written = count(self.cache_read_tokens), count(self.cache_write_tokens)
        return included(count(self.input_tokens), read, written, 0, count(self.output_tokens), 0)


class _Model(Record):
    id: str | None = None
    provider: str | None = None


class _Reply(CamelRecord):
    id: str | None = None
    ts: Number = None
    model_info: _Model | None = None
    metrics: _Metrics | None = None

    @property
    def usage(self) -> Usage | None:
        """Of the call that it answers; None for what is no reply, or has no numbers."""
        usage = self.metrics.usage if self.metrics else None
        return usage if usage and usage.prompt_tokens + usage.output_tokens else None


class _File(CamelRecord):
    agent: str | None = None
    session_id: str | None = None
    messages: list[_Reply] | None = None


class _Manifest(Record):
    cwd: str | None = None
    workspace_root: str | None = None
    model: str | None = None
    provider: str | None = None
    status: str | None = None
    ended_at: str | None = None

    @property
    def folder(self) -> str:
        return self.cwd or self.workspace_root or ""


class _Run(msgspec.Struct, frozen=True):
    """What the manifest beside the messages says."""

    workspace: str
    model: str | None
    provider: str | None


class ClineSessions:
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        return (str(cline_sessions(places)),)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:  # noqa: ARG002
        for session in entries(cline_sessions(places)):
            for entry in entries(session.path) if session.is_dir() else ():
                found = self.store_at(places, entry.path)
                if found is not None:
                    yield found

    def store_at(self, places: Places, path: str) -> Found | None:
        parts = Path(path)
        inside = str(parts.parent.parent) == str(cline_sessions(places))
        if not inside or not parts.name.endswith(_MESSAGES):
            return None
        return stat_of(AGENT, path, live=parts.name.startswith(f"{parts.parent.name}."))

    def glance(self, look: Look) -> Glance:
        found = look.found
        manifest = _manifest(found.path)
        if not look.roots.hold(manifest.folder):
            return Glance(found)
        kept = whole_file(found.path, _File)
        if kept.agent not in (None, _LEAD):
            return Glance(found)
        track, model, at = Track(), manifest.model, None
        for one in kept.messages or ():
            at = from_ms(one.ts) or at
            if (usage := one.usage) is not None:
                model = (one.model_info.id if one.model_info else None) or model
                track = track.call(Reading.of(usage, model))
        name = kept.session_id or Path(found.path).parent.name
        ended = manifest.ended_at is not None and manifest.status != "running"
        size = occupancy(track)
        session = stored(found, name, manifest.folder, at, size, model=model, ended=ended)
        return Glance(found, (session,))

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        manifest = _manifest(found.path)
        run = _Run(manifest.folder, manifest.model, manifest.provider)
        return fold_whole(found, mark, run, partial(_fold, Path(found.path).parent.name))


READER = TwoStores(
    ClineSessions(),
    Tasks(AGENT, "saoudrizwan.claude-dev"),
    lambda path: not path.endswith(_MESSAGES),
)


def _fold(folder: str, run: _Run, data: bytes) -> Folded[_Run]:
    kept = whole(data, _File)
    session, calls = kept.session_id or folder, []
    model, provider = run.model, run.provider
    for one in kept.messages or ():
        usage, at = one.usage, from_ms(one.ts)
        if usage is None or at is None:
            continue
        if one.model_info is not None:
            model, provider = one.model_info.id or model, one.model_info.provider or provider
        calls.append(
            Call(
                at=at,
                agent=AGENT,
                session=session,
                model=model or "unknown",
                provider=provider or provider_of(model or ""),
                usage=usage,
                request=one.id or f"{session}/{int(one.ts or 0)}",
                workspace=run.workspace,
                category="main" if kept.agent in (None, _LEAD) else "subagent",
                cost_usd=reported_usd(one.metrics.cost if one.metrics else None),
            )
        )
    return Folded(run, calls)


def _manifest(path: str) -> _Manifest:
    """That of the session in whose folder a file lies; an empty one where it cannot be read."""
    folder = Path(path).parent
    return beside(folder / f"{folder.name}.json", _Manifest) or _Manifest()
