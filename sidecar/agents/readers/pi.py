"""Pi: `sessions/--<folder>--/*.jsonl`, a tree of entries by `id` and `parentId`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.fields import CamelRecord, TokenCount, provider_of, when
from sidecar.agents.folding import Folded, fold_lines
from sidecar.agents.line_files import Decoded, LineFiles, Newest
from sidecar.agents.scan import lines_with
from sidecar.agents.tail import first_lines
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, Reading
from sidecar.messages.usage import Usage, disjoint

if TYPE_CHECKING:
    from sidecar.agents.reader import Look

AGENT = "pi"
_HEAD = 64 << 10
_FAILED = ("aborted", "error")
_PROVIDERS = {"openai-codex": "openai", "amazon-bedrock": "aws", "google-vertex": "google"}
"""Pi's names of providers, where ours are others."""


class _Usage(CamelRecord):
    """Tokens in parts that do not overlap."""

    input: TokenCount = None
    output: TokenCount = None
    cache_read: TokenCount = None
    cache_write: TokenCount = None


class _Message(CamelRecord):
    role: str | None = None
    provider: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Entry(CamelRecord):
    type: str | None = None
    id: str | None = None
    parent_id: str | None = None
    timestamp: str | None = None
    cwd: str | None = None
    name: str | None = None
    parent_session: str | None = None
    message: _Message | None = None

    @property
    def call(self) -> tuple[_Message, Usage] | None:
        """A reply and what it took; None for all else."""
        message = self.message
        if message is None or message.role != "assistant" or message.usage is None:
            return None
        numbers = message.usage
        return message, disjoint(
            numbers.input or 0,
            numbers.cache_read or 0,
            numbers.cache_write or 0,
            0,
            numbers.output or 0,
            0,
        )


class _State(msgspec.Struct, frozen=True):
    """Of a file: whose calls they are."""

    session: str
    workspace: str = ""


_entry = typed.decoder(_Entry)


class Pi(LineFiles):
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT
    inner = "sessions"

    def glance(self, look: Look) -> Glance:
        found = look.found
        first = look.before.memory if look.before else _header(found.path)
        if not look.roots.hold(first.cwd):
            return Glance(found, memory=first)
        newest = _Newest()
        newest.look(found.path, _entry)
        name = first.id or Path(found.path).stem
        session = newest.session(found, name, first.cwd, title=newest.title)
        return Glance(found, (session,), newest.skipped, first)

    def is_copy(self, found: Found) -> bool:
        """A fork names the session that it was copied from."""
        return _header(found.path).parent_session is not None

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        first = _header(found.path)
        state = _State(first.id or Path(found.path).stem, first.cwd or "")
        return fold_lines(found, mark, state, _fold)


READER = Pi()


class _Newest(Newest[_Entry]):
    """What the active branch says, from the newest entry back to the last call."""

    title: str | None = None
    _wanted: str | None = None
    _begun = False

    def take(self, entry: _Entry) -> bool:
        self.at = self.at or when(entry.timestamp)
        if entry.type == "session_info":
            self.title = self.title or entry.name
        if (
            entry.id is None
            or entry.type == "session"
            or (self._begun and entry.id != self._wanted)
        ):
            return False
        self._begun, self._wanted = True, entry.parent_id
        if entry.type == "compaction":
            self.track = self.track.compaction()
            return True
        return self._take(entry)

    def _take(self, entry: _Entry) -> bool:
        if self.active is None and entry.message is not None:
            waits = entry.message.stop_reason not in (None, "toolUse")
            self.active = not (entry.message.role == "assistant" and waits)
        if entry.call is None or entry.call[0].stop_reason in _FAILED:
            return False
        message, usage = entry.call
        reading = Reading(usage.prompt_tokens, usage.output_tokens, message.model)
        self.track = self.track.call(reading)
        return self.track.newest is not None


def _fold(state: _State, data: bytes) -> Folded[_State]:
    """The calls in some lines, those of branches that were left and of failed replies too."""
    calls: list[Call] = []
    entries = Decoded(lines_with(data, b'"usage"'), _entry)
    for entry in entries:
        at = when(entry.timestamp)
        if entry.call is None or at is None:
            continue
        message, usage = entry.call
        model = message.model or "unknown"
        provider = message.provider or provider_of(model)
        if usage.prompt_tokens + usage.output_tokens:
            calls.append(
                Call(
                    at=at,
                    agent=AGENT,
                    session=state.session,
                    model=model,
                    provider=_PROVIDERS.get(provider, provider),
                    usage=usage,
                    # Forks copy entries with their ids and times.
                    request=f"{entry.id or state.session}/{entry.timestamp}",
                    workspace=state.workspace,
                )
            )
    return Folded(state, calls, entries.skipped)


def _header(path: str) -> _Entry:
    """The line that names a session and its folder; an empty one where there is none."""
    for line in first_lines(path, _HEAD):
        with suppress(msgspec.DecodeError):
            entry = _entry(line)
            if entry.type == "session":
                return entry
    return _Entry()
