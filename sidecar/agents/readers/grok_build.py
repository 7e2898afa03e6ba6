"""Reads Grok Build's `sessions/<folder>/<session>/updates.jsonl`, with the files beside it.

The updates contain the usage of each turn, which may be several calls. The size of the context is
in `signals.json`, and the folder in `summary.json`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from sidecar import typed
from sidecar.agents.fields import (
    CamelRecord,
    Record,
    TokenCount,
    parse_time,
    reported_usage,
    time_from_ns,
    try_decode_file,
)
from sidecar.agents.folders import Places
from sidecar.agents.session_events import CallFinished, CallSize, Store, StoredSession
from sidecar.agents.store_files import store_from_path, with_size_of
from sidecar.agents.stores import ContextTrack, LineReader, Lines, SessionLines, SessionState

_UPDATES, _SUMMARY, _SIGNALS = "updates.jsonl", "summary.json", "signals.json"
_ENDED = "turn_completed"


class _Info(Record):
    id: str | None = None
    cwd: str | None = None


class _Summary(Record):
    info: _Info | None = None
    current_model_id: str | None = None
    generated_title: str | None = None
    parent_session_id: str | None = None
    head_branch: str | None = None


class _Signals(CamelRecord):
    context_tokens_used: TokenCount = None
    context_window_tokens: TokenCount = None


class _Usage(CamelRecord):
    input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    cached_read_tokens: TokenCount = None
    cache_creation_tokens: TokenCount = None
    reasoning_tokens: TokenCount = None


class _Update(Record):
    kind: str | None = msgspec.field(name="sessionUpdate", default=None)
    prompt_id: str | None = None
    usage: _Usage | None = None


class _Params(Record):
    update: _Update | None = None


class _Line(Record):
    timestamp: str | float | None = None
    params: _Params | None = None


_line = typed.decoder(_Line)


class GrokBuild(LineReader):
    inner = ("sessions",)
    pattern = rf"[^/]+/[^/]+/{re.escape(_UPDATES)}"

    def store_at(self, places: Places, path: str) -> Store | None:
        folder, name = os.path.split(path)
        is_beside = name in (_SUMMARY, _SIGNALS)
        return super().store_at(places, os.path.join(folder, _UPDATES) if is_beside else path)

    def make_store(self, path: str) -> Store | None:
        """Return a session's store. A change of the files beside the updates counts, too."""
        store, folder = store_from_path(self.agent, path), os.path.dirname(path)
        beside = (
            store_from_path(self.agent, os.path.join(folder, one)) for one in (_SUMMARY, _SIGNALS)
        )
        return store and with_size_of(store, *filter(None, beside))

    def begin(self, store: Store) -> _Updates:
        folder = os.path.dirname(store.path)
        return _Updates(SessionState(os.path.basename(folder)), folder)

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        summary = try_decode_file(Path(store.path).with_name(_SUMMARY), _Summary)
        return summary.generated_title if summary else None


READER = GrokBuild()


class _Updates(SessionLines):
    folder: str
    """The session's folder in Grok's files."""

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        session, modified = self.session, time_from_ns(os.stat(lines.path).st_mtime_ns)
        self._describe()
        for line in lines.records(_line):
            session.touch(parse_time(line.timestamp))
            update = (line.params and line.params.update) or _Update()
            session.active = update.kind != _ENDED
            if update.kind != _ENDED or update.usage is None:
                continue
            used = update.usage
            usage = reported_usage(
                used.input_tokens,
                used.output_tokens,
                used.cached_read_tokens,
                used.cache_creation_tokens,
                used.reasoning_tokens,
            )
            turn = update.prompt_id or lines.position  # the last line of a turn counts
            request = f"{session.id}/{turn}"
            yield from session.call(session.at or modified, usage, request, session.model)

    def snapshots(self) -> Iterable[StoredSession]:
        self._describe()
        return super().snapshots()

    def _describe(self) -> None:
        session, folder = self.session, Path(self.folder)
        summary = try_decode_file(folder / _SUMMARY, _Summary) or _Summary()
        session.work_in(summary.info.cwd if summary.info else None)
        session.model = summary.current_model_id or session.model
        session.branch = summary.head_branch or session.branch
        session.parent = summary.parent_session_id
        session.title_at = _SUMMARY if summary.generated_title else None
        signals = try_decode_file(folder / _SIGNALS, _Signals) or _Signals()
        size = CallSize(
            signals.context_tokens_used or 0, 0, session.model, signals.context_window_tokens
        )
        session.track = ContextTrack().call(size) if size.prompt else session.track
