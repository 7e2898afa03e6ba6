"""Adds up the sizes of the parts of an agent's context, and estimates what fills it.

While readers read a session, they add its parts to a `ContextSizes` in order. `split` scales the
sizes since the last compaction to the exact number of tokens. Agents do not store the system prompt
or the tool definitions. Their size is estimated as the size of the first prompt minus the size of
the stored messages in it. For agents that store only the size of the latest prompt, the tokens of
the messages are estimated instead.

A `FirstPrompt` can take the place of a `ContextSizes`. It finds the start of the first prompt. If
`agents.labels` is `first-prompt`, untitled sessions are labeled with this text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

from sidecar import typed
from sidecar.agents.file_reading import CamelRecord, Record
from sidecar.errors import SidecarError
from sidecar.messages.vendor_usage import LONGEST_ID

PartKind = Literal["instructions", "user", "assistant", "call", "result", "attachment", "summary"]

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
_MOST_TOOLS = 200
"""How many tools have their own sizes. The sizes of all other tools are added up."""
_MOST_OPEN_CALLS = 50
_SAMPLED_CHARACTERS = 1_000
_SEARCHED_FOR_PROMPT = 200
_LONGEST_PROMPT = 80
"""Maximum number of characters in a label that is taken from the first prompt."""

Text = bytes | msgspec.Raw | str
"""The text of a part: JSON as bytes, or a decoded string."""


class ContentBlock(Record):
    """A message block in any supported vendor's format."""

    tool_use_id: str | None = None
    type: str | None = None
    text: msgspec.Raw = msgspec.Raw(b"")
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"")
    content: msgspec.Raw = msgspec.Raw(b"")
    thinking: msgspec.Raw = msgspec.Raw(b"")
    think: msgspec.Raw = msgspec.Raw(b"")
    arguments: msgspec.Raw = msgspec.Raw(b"")
    amp_tool_use_id: str | None = msgspec.field(default=None, name="toolUseID")
    run: msgspec.Raw = msgspec.Raw(b"")


Content = list[ContentBlock] | str | None
"""The content of a message: a text or a list of blocks."""


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


class Share(NamedTuple):
    """The number of context tokens for one type of content, such as a tool's results.

    `system` covers the content that agents do not store: the system prompt and tool definitions.
    """

    kind: PartKind | Literal["system"]
    name: str
    tokens: int


class ContextSizes(msgspec.Struct, omit_defaults=True):
    """The sizes of the parts of a context, in bytes. It contains no text."""

    sizes: dict[tuple[PartKind, str], int] = {}
    """The total size of the parts, keyed by kind and, for tool calls and results, by tool."""
    first: tuple[int, int] | None = None
    """The first prompt's size in tokens and in bytes."""
    reply_start: int | None = None
    """The size before the first reply, in bytes."""
    open_calls: dict[str, str] = {}
    """The tools whose results have not been read yet, keyed by call id."""
    is_read: bool = False
    """Whether the sizes were read with the session. Some agents store messages elsewhere."""
    tokens: int | None = None
    """An estimate of the tokens of all parts, or None if they are not counted."""

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    def pack(self) -> bytes | None:
        """Return the sizes as bytes for the session index, or None if they were not read."""
        return msgspec.msgpack.encode(self) if self.is_read else None

    def copy(self) -> ContextSizes:
        return msgspec.structs.replace(self, sizes=dict(self.sizes))

    def compact(self) -> None:
        """Remove all sizes, because a summary replaces the parts."""
        self.sizes, self.first, self.reply_start = {}, None, None

    def add_prompt(self, tokens: int, *, has_all_before: bool = False) -> None:
        """Add the size of a call's prompt, before or after the parts of the reply.

        Args:
            tokens: The size of the prompt in tokens.
            has_all_before: Whether the prompt contains all preceding parts. If not, the prompt ends
                before the first part of the current reply.
        """
        if self.first is None and tokens:
            start = None if has_all_before else self.reply_start
            self.first = tokens, self.total if start is None else start

    def set_system_prompt(self, tokens: int) -> None:
        """Set the size of the system prompt and the tool definitions, which precede all parts."""
        self.first = max(1, tokens), 0

    def add(self, kind: PartKind, text: Text, tool: str = "") -> None:
        """Add a part of the conversation, such as a message's text or a tool's result."""
        size = _encoded_size(text) if isinstance(text, str) else memoryview(text).nbytes
        if self.tokens is not None:
            self.tokens += _estimate_tokens(text)
        if size:
            self._add_size((kind, tool), size)

    def add_attachment(self) -> None:
        """Add an image or an attached file."""
        if self.tokens is not None:
            self.tokens += round(_ATTACHMENT_BYTES / _BYTES_PER_TOKEN)
        self._add_size(("attachment", ""), _ATTACHMENT_BYTES)

    def add_message(self, content: Content, kind: PartKind, tool: str = "") -> None:
        """Add a message whose content is text or a list of Anthropic-style blocks.

        Args:
            content: The message's content.
            kind: The kind of its texts.
            tool: The tool's name if the message is a tool's result.
        """
        if isinstance(content, str):
            self.add(kind, content, tool)
            return
        # Most bytes of agents' files are such messages, so known keys are updated here.
        known = self.sizes if self.first is not None else {}
        key: tuple[PartKind, str]
        for block in content or ():
            name, text = block.type, block.text
            if name == "text":
                key = kind, tool
            elif name == "tool_use":
                key, text = ("call", self.begin_call(block.id, block.name)), block.input
            elif name == "tool_result":
                called = block.tool_use_id or block.amp_tool_use_id
                key = "result", self.end_call(called)
                text = block.content if block.amp_tool_use_id is None else block.run
            elif name == "thinking":
                key, text = (kind, tool), block.thinking
            else:
                self._add_rare(block, kind, tool)
                continue
            if key in known:
                known[key] += memoryview(text).nbytes
            else:
                self.add(key[0], text, key[1])

    def _add_rare(self, block: ContentBlock, kind: PartKind, tool: str) -> None:
        if block.type == "toolCall":
            self.add("call", block.arguments, self.begin_call(block.id, block.name))
        elif block.type in ("image", "image_url", "document", "file"):
            self.add_attachment()
        else:
            self.add(kind, block.text, tool)
            self.add(kind, block.think, tool)

    def add_gemini_message(self, parts: Iterable[GeminiPart], kind: PartKind) -> None:
        """Add a message in Gemini's format, whose texts have the given kind."""
        for part in parts:
            if part.function_call is not None:
                self.add("call", part.function_call.args, part.function_call.name or "")
            elif part.function_response is not None:
                result = part.function_response
                self.add("result", result.response, result.name or "")
            elif memoryview(part.inline_data).nbytes:
                self.add_attachment()
            else:
                self.add(kind, part.text)

    def begin_call(self, call: str | None, tool: str | None) -> str:
        """Return the name of a called tool, and remember it for the result."""
        tool, open_calls = tool or "", self.open_calls
        if call is not None and len(call) + len(tool) <= LONGEST_ID:
            open_calls[call] = tool
            if len(open_calls) > _MOST_OPEN_CALLS:
                del open_calls[next(iter(open_calls))]
        return tool

    def end_call(self, call: str | None) -> str:
        """Forget an open call. Return its tool, or an empty string if the call is unknown."""
        return self.open_calls.pop(call or "", "")

    def new_message(self) -> ContextSizes:
        """Return an empty object for the parts of a message that may change or be removed."""
        return ContextSizes()

    def merge(self, message: ContextSizes) -> None:
        """Add the parts of a message."""
        self.is_read = True
        for key, size in message.sizes.items():
            self._add_size(key, size)

    def _add_size(self, key: tuple[PartKind, str], size: int) -> None:
        self.is_read = True
        kind, tool = key
        if self.first is None and self.reply_start is None and kind in ("assistant", "call"):
            self.reply_start = self.total
        if key not in self.sizes and (len(tool) > LONGEST_ID or len(self.sizes) >= _MOST_TOOLS):
            key = kind, ""
        self.sizes[key] = self.sizes.get(key, 0) + size

    def split(self, tokens: int) -> list[Share]:
        """Split a context of `tokens` tokens by content type, largest share first.

        The returned token counts add up to `tokens`.
        """
        if self.first is None or tokens <= 0:
            return []
        (prompt, size), rest = self.first, self.total
        grown, bytes_per_token = rest - size, _BYTES_PER_TOKEN
        if grown >= _ENOUGH_BYTES and tokens > prompt:
            found = grown / (tokens - prompt)
            bytes_per_token = min(_MOST_BYTES_PER_TOKEN, max(_LEAST_BYTES_PER_TOKEN, found))
        system = min(tokens, max(0, round(prompt - size / bytes_per_token)))
        left, shares = tokens - system, list[Share]()
        for (kind, tool), part in sorted(self.sizes.items(), key=lambda one: -one[1]):
            share = round(left * part / rest) if rest else 0
            shares.append(Share(kind, tool, share))
            left, rest = left - share, rest - part
        shares.append(Share("system", "", system + left))
        return sorted((one for one in shares if one.tokens), key=lambda one: -one.tokens)


def _encoded_size(text: str) -> int:
    """Return the size of a text in UTF-8. A long text is sampled, because encoding it is slow."""
    sample = text[:: 1 + len(text) // _SAMPLED_CHARACTERS]
    return len(sample.encode()) * len(text) // max(1, len(sample))


def _estimate_tokens(text: Text) -> int:
    from sidecar.counting.estimators import heuristic_tokens, heuristic_units

    data = text.encode() if isinstance(text, str) else bytes(text)
    data = data.replace(b"\\n", b"\n").replace(b'\\"', b'"')
    return heuristic_tokens(heuristic_units(data.decode("utf-8", "replace")))


def unpack(packed: bytes | None) -> ContextSizes | None:
    """Return the sizes in a session index, or None if they were not read with the session."""
    with suppress(msgspec.DecodeError):
        return None if packed is None else typed.unpack(packed, ContextSizes)
    return None


_PROMPT_TAG = re.compile(r"^\s*<(task|user_message)>")
"""A tag that some agents wrap around the user's prompt."""


class _TextBlock(Record):
    text: str | None = None


_Text = str | list[_TextBlock] | _TextBlock
_decode_text: Callable[[bytes], _Text] = typed.decoder(_Text)  # type: ignore[arg-type]


class _SearchEndedError(SidecarError):
    """Ends the reading of a session after its first prompt."""

    def __init__(self, prompt: str | None) -> None:
        super().__init__("")
        self.prompt = prompt


class FirstPrompt(ContextSizes):
    """Takes the place of a `ContextSizes` to find the first prompt."""

    added: int = 0

    def new_message(self) -> ContextSizes:
        return self

    def add_message(self, content: Content, kind: PartKind, tool: str = "") -> None:
        for text in [content] if isinstance(content, str) else [one.text for one in content or ()]:
            self.add(kind, text, tool)

    def add(self, kind: PartKind, text: Text, tool: str = "") -> None:  # noqa: ARG002
        """Raise `_SearchEndedError` after the first prompt.

        Tags around the user's prompt are removed. Messages that start with another tag are skipped,
        because they come from the agent itself.
        """
        self.added += 1
        if kind == "user":
            words = " ".join(_PROMPT_TAG.sub("", _text_of(text)).split())
            if words and not words.startswith("<"):
                raise _SearchEndedError(words[:_LONGEST_PROMPT])
        if self.added >= _SEARCHED_FOR_PROMPT:
            raise _SearchEndedError(None)


def first_prompt(measure: Callable[[ContextSizes], None]) -> str | None:
    """Return the start of the first prompt as one line, or None if there is no prompt yet.

    Args:
        measure: Adds a session's parts, as `StoreReader.measure` does.
    """
    try:
        measure(FirstPrompt())
    except _SearchEndedError as ended:
        return ended.prompt
    return None


def _text_of(text: Text) -> str:
    if isinstance(text, str):
        return text
    try:
        found = _decode_text(bytes(text))
    except msgspec.DecodeError:
        return ""
    if isinstance(found, str):
        return found
    blocks = found if isinstance(found, list) else [found]
    return next((block.text for block in blocks if block.text), "")
