"""Qwen Code: `projects/<project>/chats/*.jsonl`, a line a message."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar import typed
from sidecar.agents.fields import CamelRecord, TokenCount, provider_of, when
from sidecar.agents.folding import fold_lines
from sidecar.agents.line_files import Decoded, LineFiles, Newest, fold_entries
from sidecar.agents.tail import first_lines
from sidecar.agents.values import Batch, Call, CallOrigin, Found, Glance, Mark, Reading
from sidecar.messages.usage import Usage, included

if TYPE_CHECKING:
    from sidecar.agents.reader import Look

AGENT = "qwen-code"
_HEAD = 64 << 10
_COMPRESSION = "chat_compression"


class _Usage(CamelRecord):
    prompt_token_count: TokenCount = None
    candidates_token_count: TokenCount = None
    thoughts_token_count: TokenCount = None
    cached_content_token_count: TokenCount = None
    total_token_count: TokenCount = None

    @property
    def usage(self) -> Usage:
        """In parts that do not overlap: the total shows whether thoughts are part of the output."""
        prompt, output = self.prompt_token_count or 0, self.candidates_token_count or 0
        thoughts = self.thoughts_token_count or 0
        if self.total_token_count == prompt + output + thoughts:
            output += thoughts
        return included(prompt, self.cached_content_token_count or 0, 0, 0, output, thoughts)


class _Entry(CamelRecord):
    type: str | None = None
    subtype: str | None = None
    uuid: str | None = None
    session_id: str | None = None
    timestamp: str | None = None
    cwd: str | None = None
    model: str | None = None
    context_window_size: TokenCount = None
    custom_title: str | None = None
    usage_metadata: _Usage | None = None

    @property
    def usage(self) -> Usage | None:
        """What a reply took; None for all else."""
        if self.type != "assistant" or self.usage_metadata is None:
            return None
        return self.usage_metadata.usage


_entry = typed.decoder(_Entry)


class QwenCode(LineFiles):
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT
    inner = "projects"

    def is_store(self, path: str) -> bool:
        return super().is_store(path) and os.path.basename(os.path.dirname(path)) == "chats"

    def glance(self, look: Look) -> Glance:
        found = look.found
        first = look.before.memory if look.before else _first_cwd(found.path)
        newest = _Newest()
        newest.look(found.path, _entry)
        cwd = next(filter(look.roots.hold, (newest.cwd, first)), None)
        if cwd is None:
            return Glance(found, memory=first, skipped=newest.skipped)
        name = newest.id or Path(found.path).stem
        session = newest.session(found, name, cwd, title=newest.title)
        return Glance(found, (session,), newest.skipped, first)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_lines(found, mark, CallOrigin(Path(found.path).stem), _fold)


READER = QwenCode()


class _Newest(Newest[_Entry]):
    id: str | None = None
    cwd: str | None = None
    title: str | None = None

    def take(self, entry: _Entry) -> bool:
        self.id, self.cwd = self.id or entry.session_id, self.cwd or entry.cwd
        self.at = self.at or when(entry.timestamp)
        self.title = self.title or entry.custom_title
        if self.active is None and entry.type in ("user", "assistant", "tool_result"):
            self.active = entry.type != "assistant"
        if entry.subtype == _COMPRESSION:
            self.track = self.track.compaction()
            return True
        if entry.usage is None:
            return False
        reading = Reading.of(entry.usage, entry.model, entry.context_window_size)
        self.track = self.track.call(reading)
        return self.track.newest is not None


def _call(origin: CallOrigin, entry: _Entry) -> Call | None:
    usage, at = entry.usage, when(entry.timestamp)
    if usage is None or at is None:
        return None
    session, model = entry.session_id or origin.session, entry.model or "unknown"
    return Call(
        at=at,
        agent=AGENT,
        session=session,
        model=model,
        provider=provider_of(model),
        usage=usage,
        request=f"{session}/{entry.uuid or entry.timestamp}",
        workspace=entry.cwd or "",
    )


_fold = fold_entries(b'"usageMetadata"', _entry, _call)


def _first_cwd(path: str) -> str | None:
    """The folder that a session was begun in."""
    entries = Decoded(first_lines(path, _HEAD), _entry)
    return next((entry.cwd for entry in entries if entry.cwd), None)
