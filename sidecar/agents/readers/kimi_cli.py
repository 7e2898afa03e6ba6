"""Kimi CLI: `sessions/<md5 of the folder>/<session>/wire.jsonl`, each status with the context."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar import typed
from sidecar.agents.fields import Record, TokenCount, beside, from_ms
from sidecar.agents.folding import fold_lines
from sidecar.agents.line_files import LineFiles, Newest, fold_entries
from sidecar.agents.values import Batch, Call, CallOrigin, Found, Glance, Mark, Reading
from sidecar.messages.usage import Usage, disjoint

if TYPE_CHECKING:
    from datetime import datetime

    from sidecar.agents.reader import Look

AGENT = "kimi-cli"
PROVIDER = "moonshotai"
_COMPACTIONS = ("CompactionBegin", "CompactionEnd")


class _Tokens(Record):
    """Tokens in parts that do not overlap."""

    input_other: TokenCount = None
    output: TokenCount = None
    input_cache_read: TokenCount = None
    input_cache_creation: TokenCount = None

    @property
    def usage(self) -> Usage:
        read, write = self.input_cache_read or 0, self.input_cache_creation or 0
        return disjoint(self.input_other or 0, read, write, 0, self.output or 0, 0)


class _Payload(Record):
    token_usage: _Tokens | None = None
    context_tokens: TokenCount = None
    max_context_tokens: TokenCount = None
    message_id: str | None = None
    model: str | None = None


class _Message(Record):
    type: str | None = None
    payload: _Payload | None = None


class _Entry(Record):
    timestamp: float | None = None
    message: _Message | None = None

    @property
    def at(self) -> datetime | None:
        return from_ms(self.timestamp * 1000) if self.timestamp else None

    @property
    def status(self) -> _Payload | None:
        """What a status says; None for all else."""
        message = self.message
        return message.payload if message and message.type == "StatusUpdate" else None


class _WorkDir(Record):
    path: str | None = None


class _Known(Record):
    work_dirs: list[_WorkDir] | None = None


_entry = typed.decoder(_Entry)


class KimiCli(LineFiles):
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT
    inner = "sessions"
    suffixes = ("wire.jsonl",)

    def glance(self, look: Look) -> Glance:
        found, roots = look.found, look.roots
        folder = Path(found.path).parent
        named = (path for path in roots.paths if _hash(path) == folder.parent.name)
        cwd = next(named, None) or _workspace(folder)
        if not roots.hold(cwd):
            return Glance(found)
        newest = _Newest()
        newest.look(found.path, _entry)
        session = newest.session(found, folder.name, cwd, window=newest.window)
        return Glance(found, (session,), newest.skipped)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        folder = Path(found.path).parent
        return fold_lines(found, mark, CallOrigin(folder.name, _workspace(folder) or ""), _fold)


READER = KimiCli()


class _Newest(Newest[_Entry]):
    window: int | None = None

    def take(self, entry: _Entry) -> bool:
        self.at = self.at or entry.at
        kind = entry.message.type if entry.message else None
        if self.active is None and kind is not None:
            self.active = kind != "TurnEnd"
        if kind in _COMPACTIONS:
            self.track = self.track.compaction()
            return True
        return entry.status is not None and self._take(entry.status)

    def _take(self, status: _Payload) -> bool:
        self.window = self.window or status.max_context_tokens
        if status.token_usage is not None:
            reading = Reading.of(status.token_usage.usage, status.model)
        elif status.context_tokens:
            reading = Reading(status.context_tokens, 0, status.model)
        else:
            return False
        self.track = self.track.call(reading)
        return self.track.newest is not None


def _call(origin: CallOrigin, entry: _Entry) -> Call | None:
    status, at = entry.status, entry.at
    if status is None or status.token_usage is None or at is None:
        return None
    return Call(
        at=at,
        agent=AGENT,
        session=origin.session,
        model=status.model or "unknown",
        provider=PROVIDER,
        usage=status.token_usage.usage,
        request=status.message_id or f"{origin.session}/{entry.timestamp}",
        workspace=origin.workspace,
    )


_fold = fold_entries(b'"token_usage"', _entry, _call)


def _workspace(session: Path) -> str | None:
    """The folder that a session's place stands for, by Kimi's own list of folders."""
    known = beside(session.parents[2] / "kimi.json", _Known) or _Known()
    paths = (one.path for one in known.work_dirs or () if one.path)
    return next((path for path in paths if _hash(path) == session.parent.name), None)


def _hash(folder: str) -> str:
    return md5(folder.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
