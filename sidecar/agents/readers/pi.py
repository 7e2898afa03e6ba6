"""Pi: `sessions/--<folder>--/*.jsonl`, a tree of entries by `id` and `parentId`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar import typed
from sidecar.agents.fields import (
    CamelRecord,
    Number,
    Record,
    TokenCount,
    provider_of,
    usd,
    when,
)
from sidecar.agents.folding import fold_lines
from sidecar.agents.line_files import Decoded, LineFiles, Newest, fold_entries
from sidecar.agents.tail import first_lines
from sidecar.agents.values import Batch, Call, CallOrigin, Found, Glance, Mark, Reading
from sidecar.messages.usage import Usage, disjoint

if TYPE_CHECKING:
    from sidecar.agents.reader import Look

AGENT = "pi"
_HEAD = 64 << 10
_FAILED = ("aborted", "error")


class _Cost(Record):
    total: Number = None
    """USD, by the prices of the user's or Pi's own list."""


class _Usage(CamelRecord):
    """Tokens in parts that do not overlap."""

    input: TokenCount = None
    output: TokenCount = None
    cache_read: TokenCount = None
    cache_write: TokenCount = None
    cost: _Cost | None = None


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


_entry = typed.decoder(_Entry)


class Pi(LineFiles):
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT
    inner = "sessions"

    def glance(self, look: Look) -> Glance:
        found = look.found
        first = (look.before and look.before.memory) or _header(found.path)
        if not look.roots.hold(first.cwd):
            return Glance(found, memory=first if first.type else None)
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
        origin = CallOrigin(first.id or Path(found.path).stem, first.cwd or "")
        return fold_lines(found, mark, origin, _fold)


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
            self.active = bool(self.active)
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
        self.track = self.track.call(Reading.of(usage, message.model))
        return self.track.newest is not None


def _call(origin: CallOrigin, entry: _Entry) -> Call | None:
    """What a line bills: replies of branches that were left, and failed ones, too."""
    at = when(entry.timestamp)
    if entry.call is None or at is None:
        return None
    message, usage = entry.call
    model, cost = message.model or "unknown", message.usage and message.usage.cost
    return Call(
        at=at,
        agent=AGENT,
        session=origin.session,
        model=model,
        provider=message.provider or provider_of(model),
        usage=usage,
        # Forks copy entries with their ids and times.
        request=f"{entry.id or origin.session}/{entry.timestamp}",
        workspace=origin.workspace,
        agent_cost_usd=usd(cost.total) if cost else None,
    )


_fold = fold_entries(b'"usage"', _entry, _call)


def _header(path: str) -> _Entry:
    """The line that names a session and its folder; an empty one where there is none."""
    entries = Decoded(first_lines(path, _HEAD), _entry)
    return next((entry for entry in entries if entry.type == "session"), _Entry())
