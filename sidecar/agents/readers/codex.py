"""Codex: `sessions/YYYY/MM/DD/rollout-<time>-<thread>.jsonl`, later compressed or archived.

New versions write a `token_usage_record` per call. All versions write `token_count` events,
which repeat with unchanged totals. Forked and spawned threads start with a copy of their
parent's lines; see `codex_forks`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.contents import ContextContents
from sidecar.agents.events import CallFinished, SessionSnapshot, Store, StoreRead, StoreReader
from sidecar.agents.fields import parse_iso_time, provider_of
from sidecar.agents.homes import agent_folders
from sidecar.agents.line_files import LineFiles
from sidecar.agents.readers.codex_forks import Parent, is_own, parent_of
from sidecar.agents.readers.codex_lines import (
    KIND_WITHIN,
    SUMMARY_OUTPUT,
    Info,
    Payload,
    RolloutLine,
    RolloutState,
    Tokens,
    UsageParts,
    add_content_line,
    decode_content_line,
    entry,
    is_read,
    reading_of,
    usage_of,
)
from sidecar.agents.stores import Lines, SessionState, read_lines, read_records, record_at

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots

AGENT = "codex"
_FOLDERS = ("sessions", "archived_sessions")
_THREAD = re.compile(r"([0-9a-fA-F]{8}-[0-9a-fA-F-]{27})\.jsonl")


class Codex(LineFiles, StoreReader):
    """See `sidecar.agents.events.StoreReader`."""

    agent = AGENT
    suffixes = (".jsonl", ".jsonl.zst")

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(str(home / name) for home in agent_folders(places, AGENT) for name in _FOLDERS)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        stores = {found.path: found for found in super().find(places, roots)}
        for path, found in stores.items():
            if path.removesuffix(".zst") not in stores or not path.endswith(".zst"):
                yield found

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_lines(store, state, partial(_Rollout.of, store.path))

    def title(self, store: Store, title_at: str) -> str | None:
        line = record_at(store, title_at, entry)
        return line.payload.thread_name if line and line.payload else None

    def contents(self, path: str, session: str) -> ContextContents:  # noqa: ARG002
        contents, tools = ContextContents(), dict[str, str]()
        for line in read_records(path, decode_content_line):
            add_content_line(line, contents, tools)
        return contents


READER = Codex()


class _Rollout(RolloutState):
    session: SessionState = msgspec.field(default_factory=lambda: SessionState(""))
    """The conversation in the file, including lines copied from its parent."""
    summary: str | None = None
    """The response that wrote the newest compaction's summary."""
    awaits_summary: bool = False
    """Whether a summary's usage is still missing."""

    @classmethod
    def of(cls, path: str) -> _Rollout:
        session = SessionState("", ended=_FOLDERS[1] in Path(path).parts)
        return cls(_thread_of(path), session=session)

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        parent: Parent | None = None
        for line in lines.records_of(entry, is_read, SUMMARY_OUTPUT, within=KIND_WITHIN):
            if line.payload is None:
                continue
            if not self.own and self.named:
                parent = parent or parent_of(lines.path, self.parent)
                self.own = is_own(self, line, line.payload, parent)
            call = self._apply(line, line.payload, lines.position)
            if call is not None:
                yield call

    def snapshots(self) -> Iterator[SessionSnapshot]:
        if not self.named or (self.subagent and not self.resumed):
            return
        self.session.id = self.thread
        yield self.session.snapshot()

    def _apply(self, line: RolloutLine, payload: Payload, position: str) -> CallFinished | None:
        """Apply a line. Returns the call that it reports, unless it is known."""
        kind, session = line.kind, self.session
        session.at = parse_iso_time(line.timestamp) or session.at
        session.window = payload.model_context_window or session.window
        session.active = _TURN.get(kind or "", session.active)
        if self.subagent and self.own and payload.is_persons is not None:
            self.resumed = payload.is_persons
        self.awaits_summary = self.awaits_summary or line.is_summary
        if kind == "token_usage_record":
            return self._record(line, payload)
        if kind == "token_count" and payload.info is not None:
            return self._count(line, payload.info)
        if kind == "session_meta":
            if not self.named:
                session.work_in(payload.cwd)
                session.parent = payload.forked_from_id
            self.begin(payload, line.timestamp)
        elif kind in ("turn_context", "thread_settings_applied"):
            settings = payload.thread_settings or payload
            self.change(settings)
            session.model = settings.model or session.model
            session.work_in(settings.cwd)
        elif kind == "compacted":
            session.track, self.summary = session.track.compaction(), payload.compaction_response_id
        elif kind == "thread_rolled_back":
            session.track = session.track.rewind()
        elif kind == "thread_name_updated":
            session.title_at = position
        return None

    def _count(self, line: RolloutLine, info: Info) -> CallFinished | None:
        session = self.session
        session.window = info.model_context_window or session.window
        session.model = session.model or info.model
        parts = self.fresh_parts(info)
        if parts is None:
            return None
        self._measure(info.last_token_usage)
        if self.records or not self.own or parts[0] + parts[3] == 0:
            return None
        self.count, self.last = self.count + 1, parts
        is_summary, self.awaits_summary = self.awaits_summary, False
        request = f"{self.thread}#{self.count}"
        return self._call(line, parts, request, info.model, is_summary=is_summary)

    def _record(self, line: RolloutLine, payload: Payload) -> CallFinished | None:
        """Apply a usage record of this thread, or of a thread whose lines it copied."""
        if payload.usage is None:
            return None
        is_named = payload.response_id is not None and payload.response_id == self.summary
        is_summary, self.awaits_summary = is_named or self.awaits_summary, False
        if not is_summary:
            self._measure(payload.usage)
        if payload.thread_id not in (None, self.thread):
            return None
        if payload.thread_id is None and not self.own:
            return None
        parts = payload.usage.parts
        # The first record may follow the event of the same call, which was counted.
        counted = not self.records and self.last == parts
        self.records, self.own = True, True
        if counted:
            return None
        self.count += 1
        request = payload.response_id or f"{self.thread}#{self.count}"
        return self._call(line, parts, request, None, is_summary=is_summary)

    def _measure(self, tokens: Tokens | None) -> None:
        if tokens is not None:
            # The session's model is that of its settings.
            reading = reading_of(tokens, None, self.session.window)
            self.session.track = self.session.track.call(reading)

    def _call(
        self,
        line: RolloutLine,
        parts: UsageParts,
        request: str,
        model: str | None,
        *,
        is_summary: bool,
    ) -> CallFinished | None:
        at = parse_iso_time(line.timestamp)
        if at is None:
            return None
        named = model or self.model or "unknown"
        is_subagent = self.subagent and not self.resumed
        return CallFinished(
            at=at,
            agent=AGENT,
            session=self.thread if self.resumed else self.owner or self.thread,
            model=named,
            provider=_billing_provider(self.provider, named),
            usage=usage_of(parts),
            request=request,
            workspace=self.cwd or "",
            category="subagent" if is_subagent else "summary" if is_summary else "main",
        )


def _billing_provider(named: str | None, model: str) -> str:
    known = {"openai": "openai", "ollama": "ollama", "oss": "ollama", "lmstudio": "lmstudio"}
    return known.get(named or "openai") or provider_of(model) or str(named)


_TURN = {
    "task_started": True,
    "turn_started": True,
    "task_complete": False,
    "turn_complete": False,
    "turn_aborted": False,
}
"""Whether a turn is running after a line of this kind."""


def _thread_of(path: str) -> str:
    """Return the thread id in a file's name."""
    found = _THREAD.search(os.path.basename(path))
    return found.group(1) if found else os.path.basename(path)
