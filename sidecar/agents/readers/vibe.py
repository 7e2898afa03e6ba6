"""Mistral Vibe 3: `logs/session/unified/<session>/`, with journals, generations and `meta.json`.

Each `core_input` of a journal that reports a reply is a call. A journal goes when two later
generations were saved, so each generation's sum says what calls were in journals that are gone.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.fields import (
    CamelRecord,
    Record,
    TokenCount,
    beside,
    from_ms,
    provider_of,
    toml_file,
    when,
)
from sidecar.agents.folding import Folded, fold_store
from sidecar.agents.homes import homes
from sidecar.agents.line_files import Decoded, state_of
from sidecar.agents.listing import entries, stat_of
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.readers.two_stores import TwoStores
from sidecar.agents.readers.vibe_stats import VibeStats
from sidecar.agents.tail import chunks, lines_with, open_quietly
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, Reading, stored
from sidecar.messages.usage import Usage, included

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

AGENT = "vibe"
_UNIFIED, _META = "unified", "meta.json"


class _Tokens(Record):
    """Tokens of a call; what a cache held is part of the input."""

    input_tokens: TokenCount = None
    cached_input_tokens: TokenCount = None
    output_tokens: TokenCount = None


class _CamelTokens(CamelRecord):
    input_tokens: TokenCount = None
    cached_input_tokens: TokenCount = None
    output_tokens: TokenCount = None


class _Result(Record):
    usage: _Tokens | None = None


class _Command(Record):
    type: str | None = None
    action_id: str | None = None
    result: _Result | None = None


class _Determinism(Record):
    time_unix_ms: float | None = None


class _Input(Record):
    command: _Command | None = None
    determinism: _Determinism | None = None


class _Shape(Record):
    turn: str | None = None
    observations: list[str] | None = None


class _Payload(Record):
    input: _Input | None = None
    transition_shape: _Shape | None = None


class _Line(Record):
    type: str | None = None
    sequence: int | None = None
    payload: _Payload | None = None


class _PublicSession(CamelRecord):
    context_usage: _CamelTokens | None = None
    token_usage: _CamelTokens | None = None
    """Of all calls of the session so far."""
    updated_at: float | None = None


class _Snapshot(Record):
    session: _PublicSession | None = None


class _Projection(Record):
    """A generation's `projection-state.json`."""

    snapshot_sequence: int = 0
    snapshot: _Snapshot | None = None


class _Environment(Record):
    working_directory: str | None = None


class _ModelName(Record):
    active_model: str | None = None
    """The user's alias."""
    model_name: str | None = None


class _Meta(Record):
    parent_session_id: str | None = None
    end_time: str | None = None
    title: str | None = None
    title_source: str | None = None
    """An `auto` title is made of a prompt."""
    archived_at: str | None = None
    environment: _Environment | None = None
    config: _ModelName | None = None

    @property
    def folder(self) -> str:
        return (self.environment.working_directory if self.environment else None) or ""

    @property
    def model(self) -> str | None:
        return self.config.model_name if self.config else None


class _Model(Record):
    alias: str | None = None
    name: str | None = None
    max_context_length: TokenCount = None


class _Settings(Record):
    models: list[_Model] | None = None


class _State(msgspec.Struct):
    """Of a session, after some of its journals."""

    offsets: dict[str, int] = {}
    """Bytes that were read of each journal that is there."""
    sequence: int = 0
    """Of the newest record, or generation, that was read."""
    billed: tuple[int, int, int] = (0, 0, 0)
    """Input, of it cached, and output of all calls up to there."""
    time: float | None = None
    """Of the newest record, in milliseconds since 1970."""
    active: bool | None = None
    track: Track = Track()


_line = typed.decoder(_Line)


class VibeSessions:
    """See `sidecar.agents.reader.Reader`. A store is a session, by the path of its `meta.json`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(str(home / "logs" / "session" / _UNIFIED) for home in homes(places, AGENT))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:  # noqa: ARG002
        for folder in self.folders(places):
            for entry in entries(folder):
                if found := _session_at(entry.path):
                    yield found

    def store_at(self, places: Places, path: str) -> Found | None:
        for folder in self.folders(places):
            if path.startswith(folder + os.sep):
                name = path[len(folder) + 1 :].partition(os.sep)[0]
                return _session_at(os.path.join(folder, name))
        return None

    def glance(self, look: Look) -> Glance:
        found, folder = look.found, Path(look.found.path).parent
        meta = beside(found.path, _Meta) or _Meta()
        if meta.parent_session_id or not look.roots.hold(meta.folder):
            return Glance(found)
        state, mark = state_of(partial(self.read, found), look.before, _State())
        session = stored(
            found,
            folder.name,
            meta.folder,
            from_ms(state.time) or when(meta.end_time),
            occupancy(state.track, window=_window(folder, meta)),
            model=meta.model,
            title=meta.title if meta.title_source != "auto" else None,
            active=state.active,
            ended=meta.archived_at is not None,
        )
        return Glance(found, (session,), mark.skipped if mark else 0, mark)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_store(found, mark, _State(), partial(_fold, Path(found.path).parent))


READER = TwoStores(
    VibeSessions(), VibeStats(), lambda path: Path(path).parent.parent.name != _UNIFIED
)


def _fold(folder: Path, before: _State) -> Folded[_State]:
    """What is new of a session."""
    state = msgspec.structs.replace(before, offsets={})
    meta = beside(folder / _META, _Meta) or _Meta()
    calls = [*_missed(folder, state, meta)]
    skipped = 0
    for name in sorted(entry.name for entry in entries(folder / "journal")):
        if not name.endswith(".jsonl"):
            continue
        path, offset = folder / "journal" / name, before.offsets.get(name, 0)
        with open_quietly(str(path)) as file:
            file.seek(offset)
            for data, passed in chunks(file):
                lines = Decoded(lines_with(data, b'"core_input"'), _line)
                calls += [call for line in lines if (call := _apply(state, line, meta, folder))]
                offset, skipped = offset + len(data) + passed, skipped + lines.skipped
        state.offsets[name] = offset
    return Folded(state, calls, skipped)


def _missed(folder: Path, state: _State, meta: _Meta) -> Iterator[Call]:
    """The calls of journals that went before they were read, as one: only their sum is known."""
    oldest = min((entry.name for entry in entries(folder / "generations")), default="")
    saved = beside(folder / "generations" / oldest / "projection-state.json", _Projection)
    session = saved.snapshot.session if saved and saved.snapshot else None
    if saved is None or session is None or saved.snapshot_sequence <= state.sequence:
        return
    total = _parts(session.token_usage)
    prompt, cached, output = (max(0, a - b) for a, b in zip(total, state.billed, strict=True))
    state.sequence, state.billed, state.time = saved.snapshot_sequence, total, session.updated_at
    size = _parts(session.context_usage)
    state.track = state.track.call(Reading(size[0], size[2], meta.model))
    name = f"{folder.name}/{saved.snapshot_sequence}"
    if call := _call(state, meta, folder, included(prompt, cached, 0, 0, output, 0), name):
        yield msgspec.structs.replace(call, quality="estimate")


def _apply(state: _State, line: _Line, meta: _Meta, folder: Path) -> Call | None:
    """Apply a record to the state; the call that it reports, if it reports one."""
    payload, sequence = line.payload, line.sequence or 0
    if line.type != "core_input" or payload is None or sequence <= state.sequence:
        return None
    given, shape = payload.input or _Input(), payload.transition_shape or _Shape()
    state.sequence = sequence
    state.time = (given.determinism and given.determinism.time_unix_ms) or state.time
    state.active = shape.turn == "running"
    command = given.command or _Command()
    parts = _parts(command.result.usage if command.result else None)
    if command.type != "completion_succeeded" or not any(parts):
        return None
    prompt, cached, output = parts
    done = state.billed
    state.billed = done[0] + prompt, done[1] + cached, done[2] + output
    made_summary = "context_compacted" in (shape.observations or ())
    usage = included(prompt, cached, 0, 0, output, 0)
    if made_summary:
        state.track = state.track.compaction()
    else:
        state.track = state.track.call(Reading.of(usage, meta.model))
    call = _call(state, meta, folder, usage, command.action_id or f"{folder.name}/{sequence}")
    if call and made_summary and call.category == "main":
        return msgspec.structs.replace(call, category="summary")
    return call


def _call(state: _State, meta: _Meta, folder: Path, usage: Usage, request: str) -> Call | None:
    at, parent = from_ms(state.time), meta.parent_session_id
    if at is None:
        return None
    model = meta.model or "unknown"
    return Call(
        at=at,
        agent=AGENT,
        session=parent or folder.name,
        model=model,
        provider=provider_of(model),
        usage=usage,
        request=request,
        workspace=meta.folder,
        category="subagent" if parent else "main",
    )


def _parts(tokens: _Tokens | _CamelTokens | None) -> tuple[int, int, int]:
    """Input, of it cached, and output."""
    if tokens is None:
        return 0, 0, 0
    return tokens.input_tokens or 0, tokens.cached_input_tokens or 0, tokens.output_tokens or 0


def _session_at(folder: str) -> Found | None:
    """A session as large and as new as its journals and `meta.json` are together."""
    found = stat_of(AGENT, os.path.join(folder, _META))
    if found is None:
        return None
    journals = (stat_of(AGENT, entry.path) for entry in entries(os.path.join(folder, "journal")))
    files = [found, *(one for one in journals if one is not None)]
    size, newest = sum(one.size for one in files), max(one.mtime_ns for one in files)
    return msgspec.structs.replace(found, inode=0, size=size, mtime_ns=newest)


def _window(session: Path, meta: _Meta) -> int | None:
    """The window that the user's settings give to a model."""
    settings = toml_file(session.parents[3] / "config.toml", _Settings) or _Settings()
    alias = (meta.config or _ModelName()).active_model
    named = (one for one in settings.models or () if alias in (one.alias, one.name))
    return next((one.max_context_length for one in named), None)
