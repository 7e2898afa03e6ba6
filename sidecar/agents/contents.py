"""What fills a session's context, by kind: estimated from the sizes of its parts.

A reader's `contents` adds up the parts since the last compaction. Texts are not kept: only the
length of their JSON counts. `ContextContents.split` scales the sizes to the exact number of tokens.
What was in the first prompt besides the parts is the system prompt with its tools.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import msgspec

from sidecar.agents.fields import Record

ContentKind = Literal["instructions", "user", "assistant", "call", "result", "attachment"]

_BYTES_PER_TOKEN = 4.0
_MOST_BYTES_PER_TOKEN, _LEAST_BYTES_PER_TOKEN = 8.0, 1.5
_ENOUGH_BYTES = 2_000
"""With less growth between calls, the bytes per token are not derived from it."""
_ATTACHMENT_BYTES = 6_000
"""Counted for a picture or file, whose tokens do not depend on its bytes."""


class Share(NamedTuple):
    """A part of a context in tokens. `kind` is `system` for what no part accounts for."""

    kind: ContentKind | Literal["system"]
    tool: str
    tokens: int


class ContextContents:
    """Adds up the parts of a context."""

    def __init__(self) -> None:
        self.compact()

    def compact(self) -> None:
        """Forget all parts, because a summary replaces them."""
        self._sizes: Counter[tuple[ContentKind, str]] = Counter()
        self._size = 0
        self._reply_start: int | None = None
        self._first: tuple[int, int] | None = None
        """Tokens of the first prompt, and the size of the parts in it."""

    def add(self, kind: ContentKind, size: int, tool: str = "") -> None:
        """Add a part of so many bytes."""
        if kind in ("assistant", "call") and self._reply_start is None:
            self._reply_start = self._size
        size = _ATTACHMENT_BYTES if kind == "attachment" else size
        self._sizes[kind, tool] += size
        self._size += size

    def add_call(self, prompt_tokens: int) -> None:
        """Add the prompt size of a call, before or after the parts of its reply."""
        if self._first is None and prompt_tokens:
            start = self._size if self._reply_start is None else self._reply_start
            self._first = prompt_tokens, start

    def split(self, tokens: int) -> list[Share]:
        """Return the shares of a context with so many tokens, largest first. They add up."""
        if self._first is None or tokens <= 0:
            return []
        prompt, size = self._first
        grown, bytes_per_token = self._size - size, _BYTES_PER_TOKEN
        if grown >= _ENOUGH_BYTES and tokens > prompt:
            found = grown / (tokens - prompt)
            bytes_per_token = min(_MOST_BYTES_PER_TOKEN, max(_LEAST_BYTES_PER_TOKEN, found))
        system = min(tokens, max(0, round(prompt - size / bytes_per_token)))
        left, rest = tokens - system, self._size
        shares = []
        for (kind, tool), part in self._sizes.most_common():
            share = round(left * part / rest) if rest else 0
            shares.append(Share(kind, tool, share))
            left, rest = left - share, rest - part
        shares.append(Share("system", "", system + left))
        return sorted((one for one in shares if one.tokens), key=lambda one: -one.tokens)


class Block(Record):
    """A block of a message in Anthropic's or OpenAI's form."""

    type: str | None = None
    id: str | None = None
    name: str | None = None
    tool_use_id: str | None = None
    text: msgspec.Raw = msgspec.Raw(b"")
    thinking: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    content: msgspec.Raw = msgspec.Raw(b"")
