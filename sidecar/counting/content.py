"""A message of any vendor taken apart: the texts that a model reads, tool calls, pictures.

What is read, and nothing else of it: text; names and arguments of tool calls; results; thinking
that is sent back; pictures with their sizes. Ids and signatures are not text to a model. What is
not known is read as its JSON, so that it counts for something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sidecar.counting.images import Size, size_of
from sidecar.counting.tool_schemas import as_json

_TEXTS = ("text", "thinking", "reasoning", "refusal", "transcript")
_IMAGE_TYPES = frozenset(("image", "image_url", "input_image"))
_CALL_TYPES = frozenset(("tool_use", "function_call", "tool_call", "server_tool_use"))
_SILENT = frozenset(("redacted_thinking", "cache_control"))
_FILE_TYPES = frozenset(("document", "file", "input_file", "input_audio", "audio", "video"))
_DATA = frozenset(("data", "bytes", "file_data", "fileData", "inlineData", "inline_data"))

FILE_TOKENS = 1_500
"""A guess at a file whose text is not at hand: about a page of a PDF."""


class Picture(msgspec.Struct, frozen=True):
    """A picture in a message."""

    size: Size | None
    detail: str = "auto"


class Content(msgspec.Struct):
    """What of a message a model reads."""

    role: str = ""
    name: str = ""
    texts: list[str] = []
    calls: list[tuple[str, str]] = []
    """(name, arguments as JSON) of each tool call."""
    results: int = 0
    """How many tool results are among the texts."""
    pictures: list[Picture] = []
    files: int = 0
    """Files whose text is not at hand."""


def read_message(message: Any) -> Content:
    """A message taken apart: a mapping, or a msgspec Struct that encodes to one. Never raises."""
    fields = _fields(message)
    found = Content(role=str(fields.get("role") or ""))
    if found.role and isinstance(fields.get("name"), str):
        found.name = fields["name"]
    for key in ("content", "parts"):
        _read(fields.get(key), found, 0)
    for key in ("toolCalls", "tool_calls"):
        calls = fields.get(key)
        for call in calls if isinstance(calls, list) else ():
            _call(call, found)
    if found.role in ("tool", "function"):
        found.results += 1
    if "role" not in fields and "type" in fields:  # an item of OpenAI's Responses
        _read([fields], found, 0)
    return found


def _fields(message: Any) -> Mapping[str, Any]:
    if isinstance(message, msgspec.Struct):
        message = msgspec.to_builtins(message)
    return message if isinstance(message, Mapping) else {"content": message}


def _read(content: Any, found: Content, depth: int) -> None:
    if content is None or content == "" or depth > 8:
        return
    if isinstance(content, str):
        found.texts.append(content)
    elif isinstance(content, list | tuple):
        for block in content:
            _read(block, found, depth + 1)
    elif isinstance(content, Mapping):
        _block(content, found, depth)
    else:
        found.texts.append(as_json(content))


def _block(block: Mapping[str, Any], found: Content, depth: int) -> None:
    kind = str(block.get("type") or "")
    if kind in _SILENT or "cachePoint" in block:
        return
    if kind in _IMAGE_TYPES or "image" in block or _is_picture_data(block):
        found.pictures.append(_picture(block))
    elif kind in _CALL_TYPES or "toolUse" in block or "functionCall" in block:
        _call(block.get("toolUse") or block.get("functionCall") or block, found)
    elif (result := _result(block, kind)) is not None:
        found.results += 1
        _read(result, found, depth + 1)
    elif (text := _text(block)) is not None:
        found.texts.append(text)
    elif kind in _FILE_TYPES or any(key in block for key in _DATA):
        _file(block, found)
    else:
        found.texts.append(as_json(block))


def _text(block: Mapping[str, Any]) -> str | None:
    """The text of a block that has one, wherever the vendor puts it."""
    for key in _TEXTS:
        value = block.get(key)
        if isinstance(value, str):
            return value
    reasoning = block.get("reasoningContent")
    if isinstance(reasoning, Mapping):
        return _text(reasoning.get("reasoningText") or {}) or ""
    if isinstance(block.get("json"), Mapping | list):
        return as_json(block["json"])
    return None


def _result(block: Mapping[str, Any], kind: str) -> Any:
    """What a tool gave back, or None where the block is no result."""
    if kind.endswith("tool_result"):
        return block.get("content") or "ok"
    if kind == "function_call_output":
        return block.get("output") or "ok"
    for key, inner in (("toolResult", "content"), ("functionResponse", "response")):
        value = block.get(key)
        if isinstance(value, Mapping):
            given = value.get(inner)
            return as_json(given) if isinstance(given, Mapping) else given or "ok"
    return None


def _call(call: Any, found: Content) -> None:
    if not isinstance(call, Mapping):
        return
    function = call.get("function")
    inner = function if isinstance(function, Mapping) else call
    arguments = next(
        (inner[key] for key in ("arguments", "input", "args") if inner.get(key) is not None), ""
    )
    text = arguments if isinstance(arguments, str) else as_json(arguments)
    found.calls.append((str(inner.get("name") or ""), text))


def _is_picture_data(block: Mapping[str, Any]) -> bool:
    data = block.get("inlineData") or block.get("inline_data")
    kind = data.get("mimeType") or data.get("mime_type") if isinstance(data, Mapping) else None
    return isinstance(kind, str) and kind.startswith("image/")


def _picture(block: Mapping[str, Any]) -> Picture:
    inside = block.get("image_url")
    detail = inside.get("detail") if isinstance(inside, Mapping) else block.get("detail")
    source = block.get("image") if isinstance(block.get("image"), Mapping) else block
    return Picture(size_of(source), detail if isinstance(detail, str) else "auto")


def _file(block: Mapping[str, Any], found: Content) -> None:
    source = block.get("source")
    if isinstance(source, Mapping) and source.get("type") == "text":
        found.texts.append(str(source.get("data") or ""))
    elif isinstance(source, Mapping) and "content" in source:
        _read(source["content"], found, 4)
    else:
        found.files += 1
