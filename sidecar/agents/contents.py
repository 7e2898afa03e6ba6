"""Estimates what fills an agent's context, based on message sizes.

A reader's `contents` yields the parts of a session in order. `ContextContents` adds up the sizes of
the parts since the last compaction, and `split` scales these sizes to the exact number of tokens.
Agents do not store the system prompt or the tool definitions. Their size is estimated as the size
of the first prompt minus the size of the stored messages in it. For agents that store only the size
of the latest prompt, use `system_prompt_size`.

`first_prompt` returns the start of the first prompt. If `agents.labels` is `first-prompt`, untitled
sessions are labeled with this text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from sidecar import typed
from sidecar.agents.fields import CamelRecord, Record

ContentKind = Literal[
    "instructions", "user", "assistant", "call", "result", "attachment", "summary"
]

_BYTES_PER_TOKEN = 4.0
_MOST_BYTES_PER_TOKEN, _LEAST_BYTES_PER_TOKEN = 8.0, 1.5
_ENOUGH_BYTES = 2_000
"""How many bytes a context must have grown before its bytes per token can be measured.

Until then, a default ratio is used.
"""
_ATTACHMENT_BYTES = 6_000
"""Assumed size, in bytes, of an image or attached file.

The actual size is not used, because it says little about the number of tokens.
"""
_SEARCHED_FOR_PROMPT = 200
_LONGEST_PROMPT = 80
"""Maximum number of characters in a label that is taken from the first prompt."""


class Part(NamedTuple):
    """A part of a conversation, such as a message's text or a tool's result."""

    kind: ContentKind
    json: bytes | msgspec.Raw = b""
    """The part's text, as JSON."""
    tool: str = ""


class PromptSize(NamedTuple):
    """The size of a call's prompt. Readers yield it before or after the parts of the reply."""

    tokens: int
    has_all_before: bool = False
    """Whether the prompt contains all preceding parts.

    If not, the prompt ends before the first part of the current reply.
    """


class Compaction(NamedTuple):
    """A compaction, which replaces all earlier parts with a summary."""


ContentEntry = Part | PromptSize | Compaction


class Share(NamedTuple):
    """The number of context tokens for one type of content, such as a tool's results.

    `system` covers the content that agents do not store: the system prompt and tool definitions.
    """

    kind: ContentKind | Literal["system"]
    tool: str
    tokens: int


class ContextContents:
    """Adds up the sizes of the parts of a context."""

    def __init__(self, entries: Iterable[ContentEntry] = ()) -> None:
        self._compact()
        for entry in entries:
            if isinstance(entry, Part):
                self._add(entry)
            elif isinstance(entry, PromptSize):
                self._add_call(entry)
            else:
                self._compact()

    def _compact(self) -> None:
        self._sizes: Counter[tuple[ContentKind, str]] = Counter()
        self._size = 0
        self._reply_start: int | None = None
        self._first: tuple[int, int] | None = None
        """The first prompt's size in tokens and in bytes."""

    def _add(self, part: Part) -> None:
        if part.kind in ("assistant", "call") and self._reply_start is None:
            self._reply_start = self._size
        size = len(bytes(part.json))
        if part.kind == "attachment" and not size:
            size = _ATTACHMENT_BYTES
        self._sizes[part.kind, part.tool] += size
        self._size += size

    def _add_call(self, prompt: PromptSize) -> None:
        if self._first is None and prompt.tokens:
            start = None if prompt.has_all_before else self._reply_start
            self._first = prompt.tokens, self._size if start is None else start

    def split(self, tokens: int) -> list[Share]:
        """Split a context of `tokens` tokens by content type, largest share first.

        The returned token counts add up to `tokens`.
        """
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


def system_prompt_size(tokens: int, parts: Iterable[Part]) -> PromptSize:
    """Estimate the size of the system prompt and the tool definitions.

    Args:
        tokens: The size of the whole context, including `parts`.
        parts: The stored parts of the context.
    """
    return PromptSize(max(1, tokens - sum(map(_estimate_tokens, parts))), has_all_before=True)


def _estimate_tokens(part: Part) -> int:
    from sidecar.counting.estimators import heuristic_tokens, heuristic_units

    if part.kind == "attachment" and not part.json:
        return round(_ATTACHMENT_BYTES / _BYTES_PER_TOKEN)
    text = bytes(part.json).replace(b"\\n", b"\n").replace(b'\\"', b'"')
    return heuristic_tokens(heuristic_units(text.decode("utf-8", "replace")))


class Block(Record):
    """A message block in any supported vendor's format."""

    type: str | None = None
    id: str | None = None
    name: str | None = None
    tool_use_id: str | None = None
    amp_tool_use_id: str | None = msgspec.field(default=None, name="toolUseID")
    text: msgspec.Raw = msgspec.Raw(b"")
    thinking: msgspec.Raw = msgspec.Raw(b"")
    think: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    arguments: msgspec.Raw = msgspec.Raw(b"")
    content: msgspec.Raw = msgspec.Raw(b"")
    run: msgspec.Raw = msgspec.Raw(b"")


_decode_blocks = typed.decoder(list[Block])


def message_parts(
    content: bytes | msgspec.Raw, kind: ContentKind, tools: dict[str, str]
) -> Iterator[Part]:
    """Yield the parts of a message whose content is text or a list of Anthropic-style blocks.

    Args:
        content: The message's content as JSON.
        kind: The kind to assign to text parts.
        tools: Tool names, keyed by call id. The tools called in the message are added.

    Raises:
        msgspec.DecodeError: The content is malformed.
    """
    if not bytes(content).lstrip().startswith(b"["):
        yield Part(kind, content)
        return
    for block in _decode_blocks(bytes(content)):
        if block.type in ("tool_use", "toolCall"):
            tools[block.id or ""] = block.name or ""
            yield Part("call", bytes(block.input) or block.arguments, block.name or "")
        elif block.type == "tool_result":
            called = block.tool_use_id or block.amp_tool_use_id or ""
            yield Part("result", bytes(block.content) or block.run, tools.get(called, ""))
        elif block.type in ("image", "image_url", "document", "file"):
            yield Part("attachment")
        else:
            yield Part(kind, block.text)
            yield Part(kind, bytes(block.thinking) or block.think)


class _FunctionCall(Record):
    name: str | None = None
    args: msgspec.Raw = msgspec.Raw(b"")


class _FunctionResponse(Record):
    name: str | None = None
    response: msgspec.Raw = msgspec.Raw(b"")


class GeminiPart(CamelRecord):
    """A message part in Gemini's format."""

    text: msgspec.Raw = msgspec.Raw(b"")
    function_call: _FunctionCall | None = None
    function_response: _FunctionResponse | None = None
    inline_data: msgspec.Raw = msgspec.Raw(b"")


def gemini_parts(parts: Iterable[GeminiPart], kind: ContentKind) -> Iterator[Part]:
    """Yield the parts of a Gemini message. Text parts have the given `kind`."""
    for part in parts:
        if part.function_call is not None:
            yield Part("call", part.function_call.args, part.function_call.name or "")
        elif part.function_response is not None:
            yield Part("result", part.function_response.response, part.function_response.name or "")
        elif bytes(part.inline_data):
            yield Part("attachment")
        else:
            yield Part(kind, part.text)


_PROMPT_TAG = re.compile(r"^\s*<(task|user_message)>")
"""A tag that some agents wrap around the user's prompt."""


class _TextBlock(Record):
    text: str | None = None


_Text = str | list[_TextBlock] | _TextBlock
_decode_text: Callable[[bytes], _Text] = typed.decoder(_Text)  # type: ignore[arg-type]


def first_prompt(entries: Iterable[ContentEntry]) -> str | None:
    """Return the start of the first prompt as one line, or None if there is no prompt yet.

    Tags around the user's prompt are removed. Messages that start with another tag are skipped,
    because they come from the agent itself.
    """
    for entry in islice(entries, _SEARCHED_FOR_PROMPT):
        if isinstance(entry, Part) and entry.kind == "user":
            words = " ".join(_PROMPT_TAG.sub("", _text_of(entry.json)).split())
            if words and not words.startswith("<"):
                return words[:_LONGEST_PROMPT]
    return None


def _text_of(json: bytes | msgspec.Raw) -> str:
    try:
        found = _decode_text(bytes(json))
    except msgspec.DecodeError:
        return ""
    if isinstance(found, str):
        return found
    blocks = found if isinstance(found, list) else [found]
    return next((block.text for block in blocks if block.text), "")
