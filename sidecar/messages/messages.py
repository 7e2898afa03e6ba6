"""Messages and tool schemas in every vendor's form, and the turns of a conversation.

A message may be in the format of OpenAI (chat or Responses), Anthropic, Gemini, Bedrock, the AI SDK
or this protocol. Ids and signatures are not part of a block's text. The text of an unknown block is
its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from sidecar.messages.media import Clip, Size, clip_of, size_of

_LISTS = ("functionDeclarations", "function_declarations", "functions", "tools")
_PARAMETERS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema")
_DEEPEST_SCHEMA = 32


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool as it is described to a model."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = {}
    opaque: str = ""
    """The JSON of a tool that has no schema because the vendor runs it."""

    @property
    def required(self) -> list[str]:
        names = self.parameters.get("required")
        listed = names if isinstance(names, list) else []
        return [name for name in listed if isinstance(name, str)]


def read_tools(tools: Sequence[Any]) -> list[ToolSchema]:
    """Read tools in the format of OpenAI, Anthropic, Gemini, Bedrock or MCP. Never raises."""
    return [schema for tool in tools for schema in _read(tool, 0)]


def _read(tool: Any, depth: int) -> Iterator[ToolSchema]:
    if not isinstance(tool, Mapping) or depth > 3:
        yield ToolSchema("tool", opaque=as_json(tool))
        return
    for key in _LISTS:
        inner = tool.get(key)
        if isinstance(inner, Sequence) and not isinstance(inner, str):
            for declared in inner:
                yield from _read(declared, depth + 1)
            return
    for key in ("function", "toolSpec"):
        if isinstance(tool.get(key), Mapping):
            yield from _read(tool[key], depth + 1)
            return
    yield _schema(tool)


def _schema(tool: Mapping[str, Any]) -> ToolSchema:
    found = (tool[key] for key in _PARAMETERS if isinstance(tool.get(key), Mapping))
    parameters = next(found, None)
    if parameters is None and "description" not in tool:
        return ToolSchema(str(tool.get("name") or tool.get("type") or "tool"), opaque=as_json(tool))
    parameters = parameters or {}
    if isinstance(parameters.get("json"), Mapping):
        parameters = parameters["json"]
    description = tool.get("description")
    return ToolSchema(
        name=str(tool.get("name") or ""),
        description=description if isinstance(description, str) else "",
        parameters=parameters,
    )


def as_json(value: Any) -> str:
    """Return compact JSON, or the `repr` of a value that JSON cannot represent."""
    try:
        return msgspec.json.encode(value).decode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
        return repr(value)


def properties_of(
    schema: Mapping[str, Any], depth: int = 0
) -> Iterator[list[tuple[str, Mapping[str, Any]]]]:
    """Yield the `properties` blocks in a JSON Schema. Each block precedes the blocks inside it."""
    if depth > _DEEPEST_SCHEMA:
        return
    properties = schema.get("properties")
    block = list(properties.items()) if isinstance(properties, Mapping) else []
    found = [(str(name), value) for name, value in block if isinstance(value, Mapping)]
    if found:
        yield found
    inner = [value for _, value in found]
    inner += [schema["items"]] if isinstance(schema.get("items"), Mapping) else []
    for value in inner:
        yield from properties_of(value, depth + 1)


BlockKind = Literal["text", "thinking", "call", "result", "picture", "file", "nothing", "other"]
"""A block's kind. `nothing` is a marker for the vendor, such as a cache point. `other` is any
unknown block.
"""
Place = Literal["block", "field", "turn"]
"""A block's place in its message: `block` for `content`, `field` for `toolCalls`, or `turn` for a
whole message with the role `tool`.
"""

RESULT_ROLES = frozenset({"tool", "function"})

_DEEPEST = 8
_TYPES: dict[str, tuple[BlockKind, tuple[str, ...], tuple[str, ...]]] = {
    "text": ("text", (), ()),
    "tool_use": ("call", ("id",), ("name",)),
    "tool_call": ("call", ("id",), ("name",)),
    "function_call": ("call", ("call_id", "id"), ("name",)),
    "custom_tool_call": ("call", ("call_id", "id"), ("name",)),
    "tool-call": ("call", ("toolCallId",), ("toolName",)),
    "tool_result": ("result", ("tool_use_id",), ()),
    "function_call_output": ("result", ("call_id",), ()),
    "custom_tool_call_output": ("result", ("call_id",), ()),
    "tool-result": ("result", ("toolCallId",), ("toolName",)),
    "redacted_thinking": ("thinking", (), ()),
    "thinking": ("thinking", (), ()),
    "reasoning": ("thinking", (), ()),
    "cache_control": ("nothing", (), ()),
    "image": ("picture", (), ()),
    "image_url": ("picture", (), ()),
    "input_image": ("picture", (), ()),
}
"""For each `type` of a block: its kind, the keys that may contain its id, and the keys that may
contain the tool's name.
"""

_KEYS: dict[str, tuple[BlockKind, tuple[str, ...], tuple[str, ...]]] = {
    "toolUse": ("call", ("toolUseId",), ("name",)),
    "functionCall": ("call", ("id",), ("name",)),
    "function_call": ("call", ("id",), ("name",)),
    "toolResult": ("result", ("toolUseId",), ()),
    "functionResponse": ("result", ("id",), ("name",)),
    "function_response": ("result", ("id",), ("name",)),
}
"""Like `_TYPES`, but for Bedrock and Gemini blocks, which are identified by their only key."""

_TEXTS = ("text", "thinking", "reasoning", "refusal", "transcript")
_ARGUMENTS = ("arguments", "input", "args")
_OUTPUTS = ("content", "output", "response", "result")
_FILES = frozenset(("document", "file", "input_file", "input_audio", "audio", "video"))
_DATA = frozenset(("data", "bytes", "file_data", "fileData", "inlineData", "inline_data"))


class Picture(NamedTuple):
    """The size and detail of a picture in a message."""

    size: Size | None
    detail: str


class Block(NamedTuple):
    """A text, image, tool call or other block of a message.

    Its properties are parsed when they are accessed.

    Attributes:
        kind: The block's kind.
        body: The text, or the vendor's object.
        place: Where in its message the block is.
        at: The block's index at that place, or 0 for a whole message.
        id: The id of the tool call or, in a tool result, of the call that it answers. Empty if
            missing.
        name: The tool's name. Empty if missing.
        by_vendor: Whether the vendor runs the tool. If so, no result is expected.
    """

    kind: BlockKind
    body: Any
    place: Place = "block"
    at: int = 0
    id: str = ""
    name: str = ""
    by_vendor: bool = False

    @property
    def text(self) -> str:
        """The text of a text, thinking or unknown block.

        Encrypted thinking has no text.
        """
        if isinstance(self.body, str):
            return self.body
        text = _text(self.body) if isinstance(self.body, Mapping) else None
        if text is None and self.kind == "thinking":
            inner = _blocks_of(self.body.get("content"))
            return "\n".join([block.text for block in inner if block.kind == "text"])
        return as_json(self.body) if text is None else text

    @property
    def arguments(self) -> str:
        """The arguments of a tool call as JSON, or "" if there are none."""
        inner = _function(self.body)
        given = next((inner[key] for key in _ARGUMENTS if inner.get(key) is not None), "")
        return given if isinstance(given, str) else as_json(given)

    @property
    def inner(self) -> list[Block]:
        """The blocks inside a tool result, or inside a file that contains text."""
        if self.kind == "file":
            return _file(self.body)
        if self.kind != "result":
            return []
        key = next((key for key in _OUTPUTS if self.body.get(key) is not None), "content")
        given = self.body.get(key)
        if key != "content" and isinstance(given, Mapping):
            return [Block("text", as_json(given))]
        return _blocks_of(given)

    @property
    def failed(self) -> bool:
        """Whether this is a tool result that reports a failure."""
        return bool(self.body.get("is_error")) or self.body.get("status") in ("error", "incomplete")

    @property
    def picture(self) -> Picture:
        """The size and detail of a picture block. The size may be unknown."""
        source = self.body["image"] if isinstance(self.body.get("image"), Mapping) else self.body
        return Picture(size_of(source), self.detail)

    @property
    def clip(self) -> Clip:
        """The kind and length of the audio, video or document in a file block."""
        return clip_of(self.body)

    @property
    def detail(self) -> str:
        """The block's `detail` (OpenAI) or media resolution (Gemini); `auto` by default."""
        inside = self.body.get("image_url")
        detail = (inside if isinstance(inside, Mapping) else self.body).get("detail")
        level = self.body.get("mediaResolution") or self.body.get("media_resolution")
        level = level.get("level") if isinstance(level, Mapping) else level
        words = (detail, level, self.body.get("resolution"))
        return next((word for word in words if isinstance(word, str)), "auto")


class Message(NamedTuple):
    """A message, split into blocks."""

    role: str
    name: str
    blocks: list[Block]

    def flat(self) -> Iterator[Block]:
        """Yield every block, followed by the blocks inside it."""
        yield from _flat(self.blocks, 0)

    @property
    def texts(self) -> list[str]:
        """The strings that the model reads, excluding tool calls."""
        return [block.text for block in self.flat() if block.kind in ("text", "thinking", "other")]


def read_message(message: Any) -> Message:
    """Split a message, which may be a mapping or a msgspec Struct, into blocks. Never raises."""
    if isinstance(message, msgspec.Struct):
        message = msgspec.to_builtins(message)
    fields = message if isinstance(message, Mapping) else {"content": message}
    role = str(fields.get("role") or "")
    name = fields["name"] if role and isinstance(fields.get("name"), str) else ""
    if not role and "type" in fields:  # this is an item of OpenAI's Responses API
        return Message("", "", [_block(fields, 0)])
    content = fields.get("content")
    content = fields.get("parts") if content is None else content
    calls = next((fields[key] for key in ("toolCalls", "tool_calls") if fields.get(key)), ())
    call_id = _first(fields, ("toolCallId", "tool_call_id"))
    return Message(role, name, _message_blocks(role, name, content, calls, call_id))


def _message_blocks(role: str, name: str, content: Any, calls: Any, call_id: str) -> list[Block]:
    """Return a message's blocks. A tool's message without any call or result is one result.

    Blocks of tools that the vendor runs do not count, because they answer no call of the client.
    """
    blocks = [*_call_entries(calls), *_blocks_of(content)]
    if role in RESULT_ROLES and not any(map(_is_paired, blocks)):
        return [Block("result", {"content": content}, "turn", 0, call_id, name)]
    return blocks


def _is_paired(block: Block) -> bool:
    """Return whether a block is a tool call that expects a result, or such a result."""
    return block.kind in ("call", "result") and not block.by_vendor


def _call_entries(calls: Any) -> list[Block]:
    """Return the blocks of a message's `toolCalls`, which may be in this protocol's or OpenAI's
    format.
    """
    entries = enumerate(calls if isinstance(calls, list) else ())
    return [
        Block("call", call, "field", at, _first(call, ("id",)), _first(_function(call), ("name",)))
        for at, call in entries
        if isinstance(call, Mapping)
    ]


def _blocks_of(content: Any) -> list[Block]:
    """Return the content blocks in a message or a tool result."""
    if content is None or content == "":
        return []
    if not isinstance(content, list | tuple):
        return [_block(content, 0)]
    return [_block(block, at) for at, block in enumerate(content) if block not in (None, "")]


def _block(block: Any, at: int) -> Block:
    if not isinstance(block, Mapping):
        return Block("text" if isinstance(block, str) else "other", block, at=at)
    type_ = str(block.get("type") or "")
    if type_ in _TYPES:
        kind, ids, names = _TYPES[type_]
        return Block(kind, block, "block", at, _first(block, ids), _first(block, names))
    for key in _KEYS.keys() & block.keys():
        if isinstance(inner := block[key], Mapping):
            kind, ids, names = _KEYS[key]
            return Block(kind, inner, "block", at, _first(inner, ids), _first(inner, names))
    if type_.endswith(("_tool_use", "_tool_result")):
        kind = "call" if type_.endswith("_use") else "result"
        call_id = _first(block, ("id", "tool_use_id"))
        return Block(kind, block, "block", at, call_id, _first(block, ("name",)), by_vendor=True)
    return Block(_plain_kind(block, type_), block, at=at)


def _plain_kind(block: Mapping[str, Any], type_: str) -> BlockKind:
    if "cachePoint" in block:
        return "nothing"
    if "image" in block or _is_picture_data(block):
        return "picture"
    if "reasoningContent" in block:
        return "thinking"
    if _text(block) is not None:
        return "text"
    return "file" if type_ in _FILES or any(key in block for key in _DATA) else "other"


def _text(block: Mapping[str, Any]) -> str | None:
    for key in _TEXTS:
        value = block.get(key)
        if isinstance(value, str):
            return value
    reasoning = block.get("reasoningContent")
    if isinstance(reasoning, Mapping):
        inner = reasoning.get("reasoningText")
        return _text(inner) or "" if isinstance(inner, Mapping) else ""
    return as_json(block["json"]) if isinstance(block.get("json"), Mapping | list) else None


def _file(block: Mapping[str, Any]) -> list[Block]:
    source = block.get("source")
    if not isinstance(source, Mapping):
        return []
    if source.get("type") == "text":
        return [Block("text", str(source.get("data") or ""))]
    return _blocks_of(source.get("content"))


def _flat(blocks: list[Block], depth: int) -> Iterator[Block]:
    for block in blocks:
        yield block
        if block.kind in ("result", "file") and depth < _DEEPEST:
            yield from _flat(block.inner, depth + 1)


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = call.get("function")
    return inner if isinstance(inner, Mapping) else call


def _first(block: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    values = (block.get(key) for key in keys)
    return next((value for value in values if isinstance(value, str) and value), "")


def _is_picture_data(block: Mapping[str, Any]) -> bool:
    data = block.get("inlineData") or block.get("inline_data")
    kind = data.get("mimeType") or data.get("mime_type") if isinstance(data, Mapping) else None
    return isinstance(kind, str) and kind.startswith("image/")


SYSTEM_ROLES = frozenset({"system", "developer"})
ASSISTANT_ROLES = frozenset({"assistant", "model"})

NO_OUTPUT = "(no output)"
"""Replaces an empty tool result, because vendors reject empty messages."""


class Turn(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A message in a conversation, in any vendor's format."""

    role: str
    content: str | list[Any] | None = None
    """Text, a list of blocks in a vendor's format, or null."""
    name: str | UnsetType | None = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType | None = UNSET
    """The tool calls: `{id, name, arguments}`, or OpenAI's `{id, function: {name, arguments}}`."""
    tool_call_id: str | UnsetType | None = UNSET
    """If this turn is a tool result, the id of its tool call."""
    openai_tool_calls: list[dict[str, Any]] | UnsetType | None = msgspec.field(
        name="tool_calls", default=UNSET
    )
    """The tool calls, if they are in the field that OpenAI uses."""
    openai_tool_call_id: str | UnsetType | None = msgspec.field(name="tool_call_id", default=UNSET)
    """If OpenAI's field is used: the id of the tool call that this turn answers."""


def is_system(turn: Turn) -> bool:
    return turn.role in SYSTEM_ROLES


def is_assistant(turn: Turn) -> bool:
    return turn.role in ASSISTANT_ROLES


def parts(turn: Turn) -> list[Block]:
    """Return the tool calls and tool results in a turn, in order."""
    if isinstance(turn.content, str) and turn.role not in RESULT_ROLES and not field_calls(turn):
        return []
    call_id = turn.tool_call_id or turn.openai_tool_call_id or ""
    blocks = _message_blocks(turn.role, turn.name or "", turn.content, field_calls(turn), call_id)
    return [*filter(_is_paired, blocks)]


def field_calls(turn: Turn) -> list[dict[str, Any]]:
    """Return the tool calls in the field `toolCalls` or `tool_calls`."""
    return turn.tool_calls or turn.openai_tool_calls or []


def is_empty(turn: Turn) -> bool:
    return not field_calls(turn) and _empty_content(turn.content)


def has_own_text(turn: Turn) -> bool:
    """Return whether a turn contains text in addition to tool results."""
    if isinstance(turn.content, list):
        taken = {part.at for part in parts(turn) if part.place == "block"}
        rest = [block for index, block in enumerate(turn.content) if index not in taken]
        return not _empty_content(rest)
    return turn.role not in RESULT_ROLES and bool(turn.content)


def starts_exchange(turn: Turn) -> bool:
    """Return whether a turn is a user message that does not consist only of tool results."""
    return turn.role == "user" and (has_own_text(turn) or not parts(turn))


def without(turn: Turn, gone: set[tuple[Place, int]]) -> Turn:
    """Return a copy of a turn with some of its tool calls and results removed.

    Args:
        turn: The turn.
        gone: The place and index of each tool call and result to remove.
    """
    if ("turn", 0) in gone:
        return msgspec.structs.replace(turn, content=None)
    changes: dict[str, Any] = {}
    if isinstance(turn.content, list):
        changes["content"] = [
            block for index, block in enumerate(turn.content) if ("block", index) not in gone
        ]
    calls = [call for index, call in enumerate(field_calls(turn)) if ("field", index) not in gone]
    field = "tool_calls" if turn.tool_calls else "openai_tool_calls"
    if field_calls(turn):
        changes[field] = calls or UNSET
    return msgspec.structs.replace(turn, **changes)


def with_outputs(turn: Turn) -> Turn:
    """Return the turn with a placeholder in place of each empty tool result."""
    if not isinstance(turn.content, list):
        return turn
    made = [_with_output(block) for block in turn.content]
    return turn if made == turn.content else msgspec.structs.replace(turn, content=made)


def _with_output(block: Any) -> Any:
    read = next(iter(_blocks_of([block])), None)
    if read is None or read.kind != "result" or read.by_vendor or not _is_blank(read):
        return block
    body = {**read.body, **_output(read.body, block)}
    return body if read.body is block else dict.fromkeys(block, body)


def _is_blank(result: Block) -> bool:
    response = result.body.get("response")
    if isinstance(response, Mapping):
        return not any(response.values())
    return not any(one.kind != "text" or one.text.strip() for one in result.inner)


def _output(body: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    if "toolResult" in block:
        return {"content": [{"text": NO_OUTPUT}]}
    if block is not body:  # in Gemini's format, the keys of the object show whether the call failed
        return {"response": dict.fromkeys(body.get("response") or ("output",), NO_OUTPUT)}
    output = body.get("output")
    if isinstance(output, Mapping):
        return {"output": {**output, "value": NO_OUTPUT}}
    named = "output" if str(body.get("type")).endswith("call_output") else "content"
    return {next((key for key in ("output", "result") if key in body), named): NO_OUTPUT}


def sends_reasoning(turn: Turn) -> bool:
    """Return whether a turn contains reasoning, which clients send back with later requests."""
    return any(block.kind == "thinking" for block in _listed(turn))


def own_text(turn: Turn) -> str:
    """Return the text of a turn, without tool calls and results."""
    return join_texts(_blocks_of(turn.content))


def join_texts(blocks: list[Block]) -> str:
    return "\n".join([block.text for block in blocks if block.kind == "text" and block.text])


def _listed(turn: Turn) -> list[Block]:
    return _blocks_of(turn.content) if isinstance(turn.content, list) else []


def _empty_content(content: object) -> bool:
    if isinstance(content, list):
        return all(_empty_block(block) for block in content)
    return not content


def _empty_block(block: object) -> bool:
    if isinstance(block, Mapping):
        return set(block) <= {"type", "text", "cache_control"} and not block.get("text")
    return not block
