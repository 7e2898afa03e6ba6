"""Converts all vendors' tool schemas to one format.

In this format, a tool has a name, a description and a JSON Schema for its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

_LISTS = ("functionDeclarations", "function_declarations", "functions", "tools")
_PARAMETERS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema")
_DEEPEST = 32


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
    if depth > _DEEPEST:
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
