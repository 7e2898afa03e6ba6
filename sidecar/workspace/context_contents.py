"""Breaks down agents' contexts by content type."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.context.protocol import ContextPart

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.agents.contents import ContextContents
    from sidecar.workspace.workers import Workers

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
LARGE_FILE = 4_000_000
"""A session file with more bytes than this is read at most once every `REREAD_S` seconds."""
REREAD_S = 10.0
"""Minimum time between reads of a large session file, in seconds."""


class _LargeFileRead(NamedTuple):
    contents: ContextContents
    at: float


class ContentsReader:
    """Breaks down agents' contexts by content type.

    A large file is read at most once every `REREAD_S` seconds. Until then, the sizes from the
    previous read are scaled to the current number of tokens.
    """

    def __init__(self, workers: Workers, now: Callable[[], float] = time.monotonic) -> None:
        self._workers, self._now = workers, now
        self._recent: dict[tuple[str, str, str], _LargeFileRead] = {}

    async def parts(self, agent: str, path: str, session: str, tokens: int) -> list[ContextPart]:
        """Estimate the size of each content type in an agent's context, largest first.

        The sizes add up to `tokens`. The result is empty if the store is unreadable or incomplete.
        """
        key, now = (agent, path, session), self._now()
        self._recent = {
            each: read for each, read in self._recent.items() if now - read.at < REREAD_S
        }
        recent = self._recent.get(key)
        if recent is not None:
            return split_contents(recent.contents, tokens)
        contents, size = await self._workers.run(partial(read_contents, agent, path, session))
        if size > LARGE_FILE:
            self._recent[key] = _LargeFileRead(contents, self._now())
        return split_contents(contents, tokens)


def read_contents(agent: str, path: str, session: str) -> tuple[ContextContents, int]:
    """Return the contents of an agent's context, and the store's size in bytes. Blocks.

    The contents are empty if the store is unreadable or incomplete.
    """
    from sidecar.agents.contents import ContextContents
    from sidecar.agents.registry import reader_of

    contents, size = ContextContents(), 0
    with suppress(OSError, msgspec.DecodeError):
        size = Path(path).stat().st_size
        contents = ContextContents(reader_of(agent).current_contents(path, session))
    return contents, size


def split_contents(contents: ContextContents, tokens: int) -> list[ContextPart]:
    """Divide a context's tokens among labeled content types. The largest type comes first."""
    parts: Counter[str] = Counter()
    named = 0
    for share in contents.split(tokens):
        label = _LABELS.get(share.kind)
        if label is None:
            named += 1
            is_named = share.tool and named <= TOOLS_NAMED
            label = f"Results of {share.tool}" if is_named else "Other tool results"
        parts[label] += share.tokens
    return [ContextPart(label=label, tokens=number) for label, number in parts.most_common()]
