"""Amp: `threads/T-*.json`, each thread one document, rewritten as a whole. No sub-agents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.agents.fields import (
    CamelRecord,
    Number,
    Record,
    at_of,
    count,
    from_ms,
    provider_of,
    whole,
    whole_file,
)
from sidecar.agents.folding import Folded, fold_whole
from sidecar.agents.line_files import LineFiles
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.values import Batch, Call, CallOrigin, Found, Glance, Mark, Reading, stored
from sidecar.agents.vscode import local_path
from sidecar.messages.usage import Usage, disjoint

if TYPE_CHECKING:
    from datetime import datetime

    from sidecar.agents.reader import Look

AGENT = "amp"


class _Usage(CamelRecord):
    model: str | None = None
    input_tokens: Number = None
    output_tokens: Number = None
    cache_creation_input_tokens: Number = None
    cache_read_input_tokens: Number = None
    max_input_tokens: Number = None
    timestamp: str | float | None = None

    @property
    def usage(self) -> Usage:
        """The parts of a call. OpenAI's models have what was no cache under its writes."""
        fresh, write = count(self.input_tokens), count(self.cache_creation_input_tokens)
        if provider_of(self.model or "") == "openai":
            fresh, write = fresh + write, 0
        read = count(self.cache_read_input_tokens)
        return disjoint(fresh, read, write, 0, count(self.output_tokens), 0)

    @property
    def at(self) -> datetime | None:
        return at_of(self.timestamp)


class _Message(CamelRecord):
    role: str | None = None
    message_id: int | str | None = None
    usage: _Usage | None = None


class _Tree(Record):
    uri: str | None = None


class _Initial(Record):
    trees: list[_Tree] | None = None


class _Environment(Record):
    initial: _Initial | None = None


class _Thread(Record):
    id: str | None = None
    title: str | None = None
    created: Number = None
    messages: list[_Message] | None = None
    env: _Environment | None = None

    @property
    def folders(self) -> list[str]:
        initial = self.env.initial if self.env else None
        paths = (local_path(one.uri) for one in (initial.trees if initial else None) or ())
        return [path for path in paths if path]

    @property
    def replies(self) -> Iterator[tuple[str, _Usage]]:
        """Messages with a usage, each by an id that stays."""
        for number, one in enumerate(self.messages or ()):
            if one.usage is not None:
                yield str(number if one.message_id is None else one.message_id), one.usage


class Amp(LineFiles):
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT
    inner = "threads"
    suffixes = (".json",)

    def is_store(self, path: str) -> bool:
        return super().is_store(path) and os.path.basename(path).startswith("T-")

    def glance(self, look: Look) -> Glance:
        found = look.found
        thread = whole_file(found.path, _Thread)
        cwd = next(filter(look.roots.hold, thread.folders), None)
        if cwd is None:
            return Glance(found)
        track, at, model = Track(), from_ms(thread.created), None
        for _, one in thread.replies:
            usage, model, at = one.usage, one.model, one.at or at
            window = count(one.max_input_tokens) or None
            track = track.call(Reading.of(usage, model, window))
        name, title = thread.id or Path(found.path).stem, thread.title or None
        session = stored(found, name, cwd, at, occupancy(track), model=model, title=title)
        return Glance(found, (session,))

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_whole(found, mark, CallOrigin(Path(found.path).stem), _fold)


READER = Amp()


def _fold(state: CallOrigin, data: bytes) -> Folded[CallOrigin]:
    thread = whole(data, _Thread)
    name, folders = thread.id or state.session, thread.folders
    calls = []
    for request, one in thread.replies:
        at = one.at or from_ms(thread.created)
        if at is None:
            continue
        calls.append(
            Call(
                at=at,
                agent=AGENT,
                session=name,
                model=one.model or "unknown",
                provider=provider_of(one.model or ""),
                usage=one.usage,
                request=f"{name}/{request}",
                workspace=folders[0] if folders else "",
                quality="lower bound",
            )
        )
    return Folded(state, calls)
