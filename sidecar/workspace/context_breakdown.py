"""Breaks down agents' contexts by content type."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.conversations.context_protocol import ContextPart
from sidecar.tasks import SharedTasks

if TYPE_CHECKING:
    from sidecar.agents.context_sizes import ContextSizes
    from sidecar.agents.session_events import StoredSession
    from sidecar.tasks import Workers

TOOLS_NAMED = 4
"""How many tools are listed separately. All other tools share one entry."""
_LABELS = {
    "system": "System prompt and tools",
    "instructions": "Instructions",
    "user": "User messages",
    "assistant": "Assistant messages",
    "call": "Tool calls",
    "attachment": "Attachments",
    "summary": "Summary of earlier messages",
}
_REST = 20
"""A read that took a second is repeated after this many seconds at the earliest."""

_Key = tuple[str, str, str]
"""A session's source, path and ID."""


class _SeparateRead(NamedTuple):
    sizes: ContextSizes
    reread_at: float


class SizesReader:
    """Reads the sizes of contexts whose parts are not read together with the session.

    A large store is not read for each change. Until it is read again, the previous sizes are scaled
    to the current number of tokens.
    """

    def __init__(self, workers: Workers) -> None:
        self._run = workers.run
        self._recent: dict[_Key, _SeparateRead] = {}
        self._reading = SharedTasks[_Key, _SeparateRead]("measuring", outlives_waiters=False)

    async def sizes(self, session: StoredSession) -> ContextSizes:
        """Return a session's sizes. They are empty if the store is unreadable or incomplete."""
        key, now = (session.source, session.path, session.id), time.monotonic()
        self._recent = {each: read for each, read in self._recent.items() if now < read.reread_at}
        known = self._recent.get(key)
        if known is None:
            known = await self._reading.run(key, partial(self._read, session))
            self._recent[key] = known
        return known.sizes

    async def _read(self, session: StoredSession) -> _SeparateRead:
        began = time.monotonic()
        sizes, end = await self._run(partial(read_sizes, session)), time.monotonic()
        return _SeparateRead(sizes, end + _REST * (end - began))


def read_sizes(session: StoredSession) -> ContextSizes:
    """Read the sizes of the parts of a session's context. Blocks.

    They are empty if the store is unreadable or incomplete.
    """
    from sidecar.agents.context_sizes import ContextSizes
    from sidecar.agents.reader_registry import reader_of

    sizes = ContextSizes()
    try:
        reader_of(session.source).measure(session.path, session.id, sizes)
    except (OSError, msgspec.DecodeError):
        return ContextSizes()
    return sizes


def label_parts(sizes: ContextSizes, tokens: int) -> list[ContextPart]:
    """Divide a context's tokens among labeled content types. The largest type comes first.

    The result is empty if the sizes are unknown.
    """
    parts: Counter[str] = Counter()
    named = 0
    for share in sizes.split(tokens):
        label = _LABELS.get(share.kind)
        if label is None:
            named += 1
            is_named = share.name and named <= TOOLS_NAMED
            label = f"Results of {share.name}" if is_named else "Other tool results"
        parts[label] += share.tokens
    return [ContextPart(label=label, tokens=number) for label, number in parts.most_common()]
