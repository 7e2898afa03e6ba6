"""Codex: `sessions/YYYY/MM/DD/rollout-<time>-<thread>.jsonl`, later compressed or archived.

Calls come as `token_usage_record` in new versions and as `token_count` events in all. The events
are written again and again with unchanged totals; threads that were forked or spawned begin with a
copy of their parent's lines (see `codex_forks`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.fields import provider_of, when
from sidecar.agents.folding import Folded, fold_lines
from sidecar.agents.homes import homes
from sidecar.agents.line_files import Decoded, LineFiles
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.readers.codex_forks import Parent, is_own, parent_of
from sidecar.agents.readers.codex_lines import (
    Payload,
    RolloutLine,
    RolloutState,
    UsageParts,
    entry,
    reading_of,
    usage_of,
    wanted,
)
from sidecar.agents.tail import chunks, first_lines, lines_backwards, open_quietly
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, stored

if TYPE_CHECKING:
    from datetime import datetime

    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

AGENT = "codex"
_FOLDERS = ("sessions", "archived_sessions")
_TAIL = 16 << 20
_THREAD = re.compile(r"([0-9a-fA-F]{8}-[0-9a-fA-F-]{27})\.jsonl")


class Codex(LineFiles):
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT
    suffixes = (".jsonl", ".jsonl.zst")

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(str(home / name) for home in homes(places, AGENT) for name in _FOLDERS)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:
        stores = {found.path: found for found in super().find(places, roots)}
        for path, found in stores.items():
            if path.removesuffix(".zst") not in stores or not path.endswith(".zst"):
                yield found

    def glance(self, look: Look) -> Glance:
        found = look.found
        meta = (look.before and look.before.memory) or _first(found.path)
        if meta is None:
            return Glance(found)
        newest, lines = _Newest(), Decoded(_newest_lines(found.path), entry)
        for one in lines:
            newest.take(one)
        if meta.is_subagent and not newest.is_persons:
            return Glance(found, memory=meta)
        cwd = next(filter(look.roots.hold, (newest.cwd, meta.cwd)), None)
        if cwd is None:
            return Glance(found, memory=meta, skipped=lines.skipped)
        session = stored(
            found,
            meta.id or _thread_of(found.path),
            cwd,
            newest.at,
            occupancy(newest.track, window=newest.window),
            model=newest.model,
            title=newest.title,
            parent=meta.forked_from_id,
            active=newest.active,
            ended=_FOLDERS[1] in Path(found.path).parts,
        )
        return Glance(found, (session,), lines.skipped, meta)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        start = RolloutState(thread=_thread_of(found.path))
        return fold_lines(found, mark, start, partial(_fold, found.path))


READER = Codex()


def _fold(path: str, before: RolloutState, data: bytes) -> Folded[RolloutState]:
    state = msgspec.structs.replace(before)
    calls: list[Call] = []
    lines = Decoded(filter(bytes.strip, wanted(data)), entry)
    parent: Parent | None = None
    for one in lines:
        if one.payload is None:
            continue
        if not state.own and state.named:
            parent = parent or parent_of(path, state.parent)
            state.own = is_own(state, one, one.payload, parent)
        call = _take(state, one, one.payload)
        if call is not None:
            calls.append(call)
    return Folded(state, calls, lines.skipped)


def _take(state: RolloutState, one: RolloutLine, payload: Payload) -> Call | None:
    """Take a line into the state; the call that it reports, where that is a new one."""
    kind = one.kind
    if state.subagent and state.own and payload.is_persons is not None:
        state.resumed = payload.is_persons
    if kind == "session_meta":
        state.begin(payload, one.timestamp)
    elif kind in ("turn_context", "thread_settings_applied"):
        state.change(payload.thread_settings or payload)
    elif kind == "token_usage_record":
        return _of_record(state, one, payload)
    elif kind == "token_count" and payload.info is not None:
        parts = state.fresh_parts(payload.info)
        if parts is None or state.records or not state.own or parts[0] + parts[3] == 0:
            return None
        state.count, state.last = state.count + 1, parts
        return _call(state, one, parts, f"{state.thread}#{state.count}", payload.info.model)
    return None


def _of_record(state: RolloutState, one: RolloutLine, payload: Payload) -> Call | None:
    """The call of a usage record: of this thread, and not of one that it holds a copy of."""
    if payload.usage is None or payload.thread_id not in (None, state.thread):
        return None
    if payload.thread_id is None and not state.own:
        return None
    parts = payload.usage.parts
    # The first record may follow the event of the same call, which was counted.
    counted = not state.records and state.last == parts
    state.records, state.own = True, True
    if counted:
        return None
    state.count += 1
    return _call(state, one, parts, payload.response_id or f"{state.thread}#{state.count}", None)


def _call(
    state: RolloutState,
    one: RolloutLine,
    parts: UsageParts,
    request: str,
    model: str | None,
) -> Call | None:
    at = when(one.timestamp)
    if at is None:
        return None
    named = model or state.model or "unknown"
    return Call(
        at=at,
        agent=AGENT,
        session=state.thread if state.resumed else state.session or state.thread,
        model=named,
        provider=_provider(state.provider, named),
        usage=usage_of(parts),
        request=request,
        workspace=state.cwd or "",
        category="subagent" if state.subagent and not state.resumed else "main",
    )


def _provider(named: str | None, model: str) -> str:
    """Codex' own providers by our names; the model's maker for a provider that a user named."""
    known = {"openai": "openai", "ollama": "ollama", "oss": "ollama", "lmstudio": "lmstudio"}
    return known.get(named or "openai") or provider_of(model) or str(named)


class _Newest:
    """What the newest lines of a rollout say, taken in their order."""

    def __init__(self) -> None:
        self.track = Track()
        self.window: int | None = None
        self.model: str | None = None
        self.cwd: str | None = None
        self.title: str | None = None
        self.at: datetime | None = None
        self.active: bool | None = None
        self.is_persons: bool | None = None
        """Whether a person began the newest turn."""
        self._state = RolloutState(thread="")
        self._summary: str | None = None

    def take(self, one: RolloutLine) -> None:
        if one.payload is not None:
            self.at = when(one.timestamp) or self.at
            self._take(one.kind, one.payload)

    def _take(self, kind: str | None, payload: Payload) -> None:
        if payload.is_persons is not None:
            self.is_persons = payload.is_persons
        self.window = payload.model_context_window or self.window
        if kind in ("turn_context", "thread_settings_applied"):
            changed = payload.thread_settings or payload
            self.model, self.cwd = changed.model or self.model, changed.cwd or self.cwd
        elif kind == "compacted":
            self.track, self._summary = self.track.compaction(), payload.compaction_response_id
        elif kind == "thread_rolled_back":
            self.track = self.track.rewind()
        elif kind == "thread_name_updated":
            self.title = payload.thread_name
        elif kind in _TURN:
            self.active = _TURN[kind]
        else:
            self._count(payload)

    def _count(self, payload: Payload) -> None:
        tokens = payload.usage
        if payload.info is not None:
            self.window = payload.info.model_context_window or self.window
            self.model = self.model or payload.info.model
            if self._state.fresh_parts(payload.info) is None:
                return
            tokens = payload.info.last_token_usage
        if tokens is None or (payload.response_id and payload.response_id == self._summary):
            return
        self.track = self.track.call(reading_of(tokens, self.model, self.window))


_TURN = {
    "task_started": True,
    "turn_started": True,
    "task_complete": False,
    "turn_complete": False,
    "turn_aborted": False,
}
"""By kind of line, whether a turn is under way after it."""


def _newest_lines(path: str) -> list[bytes]:
    """The newest lines that are read of a rollout, in their order.

    They go back to where the totals were others than they are now: an event with the totals of the
    one before it says nothing new.
    """
    with open_quietly(path) as file:
        if path.endswith(".zst"):
            return [line for data, _ in chunks(file) for line in wanted(data)]
        taken: list[bytes] = []
        totals: set[object] = set()
        has_model = False
        for line in lines_backwards(file, most=_TAIL):
            for one in wanted(line + b"\n"):
                taken.append(one)
                totals |= _totals(one)
                has_model = has_model or b'"turn_context"' in one[:320]
            if has_model and len(totals) > 1:
                break
    return taken[::-1]


def _totals(line: bytes) -> set[object]:
    """What distinguishes an event or record of usage from others."""
    try:
        payload = entry(line).payload
    except msgspec.DecodeError:
        return set()
    if payload is None or (payload.info is None and payload.usage is None):
        return set()
    if payload.info is None:
        return {payload.response_id}
    total = payload.info.total_token_usage
    return {total.parts} if total else set()


def _first(path: str) -> Payload | None:
    """The `session_meta` that names a file; later ones are copies of its parents'."""
    lines = (one for line in first_lines(path) for one in wanted(line + b"\n"))
    metas = (one.payload for one in Decoded(lines, entry) if one.kind == "session_meta")
    return next(metas, None)


def _thread_of(path: str) -> str:
    """The thread that a file's name says."""
    found = _THREAD.search(os.path.basename(path))
    return found.group(1) if found else os.path.basename(path)
