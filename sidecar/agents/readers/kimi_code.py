"""Kimi Code: `sessions/<workspace>/<session>/agents/<agent>/wire.jsonl`, a folder an agent.

`main` is the conversation; `state.json` of the session has its folder and title. Each call writes
`usage.record`, whose model is the user's alias: `llm.request` before it names the real one. Forks
copy all lines.
"""

from __future__ import annotations

import os
import re
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
)
from sidecar.agents.folding import Folded, fold_lines
from sidecar.agents.line_files import Decoded, LineFiles, lines_of, state_of
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, Reading, stored
from sidecar.messages.usage import Usage, disjoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

AGENT = "kimi-code"
_WIRE = "wire.jsonl"
_KINDS = re.compile(
    rb'"type"\s*:\s*"(?:usage\.record|llm\.request|token_counting\.|context\.apply_compaction'
    rb"|turn\.(?:prompt|ended))"
)


class _Tokens(CamelRecord):
    """Tokens in parts that do not overlap."""

    input_other: TokenCount = None
    output: TokenCount = None
    input_cache_read: TokenCount = None
    input_cache_creation: TokenCount = None

    @property
    def usage(self) -> Usage:
        read, write = self.input_cache_read or 0, self.input_cache_creation or 0
        return disjoint(self.input_other or 0, read, write, 0, self.output or 0, 0)


class _Line(CamelRecord):
    type: str | None = None
    time: float | None = None
    model: str | None = None
    model_alias: str | None = None
    provider: str | None = None
    usage: _Tokens | None = None
    usage_scope: str | None = None
    tokens: TokenCount = None


class _State(msgspec.Struct):
    """Of one agent's wire, after some of its lines."""

    session: str
    workspace: str
    subagent: bool
    model: str | None = None
    alias: str | None = None
    provider: str | None = None
    time: float | None = None
    """Of the newest line, in milliseconds since 1970."""
    active: bool | None = None
    track: Track = Track()


class _Session(CamelRecord):
    """`state.json`."""

    cwd: str | None = None
    title: str | None = None
    title_kind: str | None = None
    """A `replaceable` title is made of a prompt."""
    archived: bool | None = None
    forked_from: str | None = None


class _Alias(Record):
    max_context_size: TokenCount = None


class _Config(Record):
    models: dict[str, _Alias] | None = None


_line = typed.decoder(_Line)


class KimiCode(LineFiles):
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT
    inner = "sessions"
    suffixes = (_WIRE,)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:
        return map(_with_part, super().find(places, roots))

    def store_at(self, places: Places, path: str) -> Found | None:
        found = super().store_at(places, path)
        return _with_part(found) if found else None

    def glance(self, look: Look) -> Glance:
        found, folder = look.found, _session_folder(look.found.path)
        session = beside(folder / "state.json", _Session) or _Session()
        if not look.roots.hold(session.cwd):
            return Glance(found)
        state, mark = state_of(partial(self.read, found), look.before, _start(found))
        one = stored(
            found,
            folder.name,
            session.cwd,
            from_ms(state.time),
            occupancy(state.track, window=_window(folder, state.alias)),
            model=state.model,
            title=session.title if session.title_kind != "replaceable" else None,
            parent=session.forked_from,
            active=state.active,
            ended=bool(session.archived),
        )
        return Glance(found, (one,), mark.skipped if mark else 0, mark)

    def is_copy(self, found: Found) -> bool:
        """A fork names the session that it was copied from."""
        session = beside(_session_folder(found.path) / "state.json", _Session)
        return session is not None and session.forked_from is not None

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_lines(found, mark, _start(found), _fold)


READER = KimiCode()


def _fold(before: _State, data: bytes) -> Folded[_State]:
    state = msgspec.structs.replace(before)
    lines = Decoded(lines_of(data, _KINDS), _line)
    calls = [call for line in lines if (call := _apply(state, line))]
    return Folded(state, calls, lines.skipped)


def _apply(state: _State, line: _Line) -> Call | None:
    """Apply a line to the state; the call that it reports, if it reports one."""
    state.time = line.time or state.time
    kind = line.type or ""
    if kind == "llm.request":
        state.model, state.alias, state.provider = line.model, line.model_alias, line.provider
    elif kind == "turn.prompt":
        state.active = True
    elif kind == "turn.ended":
        state.active = False
    elif kind == "context.apply_compaction":
        state.track = state.track.compaction()
    elif kind in ("token_counting.rebased", "token_counting.truncated"):
        # Kimi's own estimate of what is left after a compaction or an undo.
        state.track = state.track.estimate(line.tokens or 0, state.model)
    elif kind == "usage.record" and line.usage is not None:
        return _call(state, line, line.usage.usage)
    return None


def _call(state: _State, line: _Line, usage: Usage) -> Call | None:
    """The call of a `usage.record`; one that belongs to no turn made a summary."""
    is_turn = line.usage_scope != "session"
    if is_turn and usage.prompt_tokens:
        state.track = state.track.call(Reading.of(usage, state.model))
    at = from_ms(line.time)
    if at is None:
        return None
    model = state.model or line.model or "unknown"
    return Call(
        at=at,
        agent=AGENT,
        session=state.session,
        model=model,
        provider=provider_of(model) or state.provider or "",
        usage=usage,
        request=f"{line.time:.0f}/{usage.prompt_tokens}/{usage.output_tokens}",  # as in forks
        workspace=state.workspace,
        category="subagent" if state.subagent else "main" if is_turn else "summary",
    )


def _start(found: Found) -> _State:
    folder = _session_folder(found.path)
    session = beside(folder / "state.json", _Session) or _Session()
    return _State(folder.name, session.cwd or "", subagent=not found.live)


def _with_part(found: Found) -> Found:
    """A wire as the conversation's, or as a sub-agent's."""
    live = os.path.basename(os.path.dirname(found.path)) == "main"
    return found if live else msgspec.structs.replace(found, live=False)


def _session_folder(path: str) -> Path:
    return Path(path).parents[2]


def _window(session: Path, alias: str | None) -> int | None:
    """The window that the user's configuration gives to a model, by its alias."""
    config = toml_file(session.parents[2] / "config.toml", _Config) or _Config()
    model = (config.models or {}).get(alias or "")
    return model.max_context_size if model else None
