"""Defines the names, descriptions and arguments of the tools.

The docstrings of the arguments are the tools' descriptions. They are short, because agents include
them in every request.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class for tool arguments."""


class CountTokens(Arguments, frozen=True, kw_only=True):
    """Token count of a file, folder or text, and the share of your context that it would use"""

    path: str | None = None
    text: str | None = None
    model: str | None = None


class CheckBudgets(Arguments, frozen=True, kw_only=True):
    """Files that exceed their token budget"""

    paths: list[str] = []


class ContextUsageArguments(Arguments, frozen=True, kw_only=True):
    """How full your context window is, and how many tokens are left until compaction; with
    `footprint`, what is sent before the first word"""

    footprint: bool = False


class Spend(Arguments, frozen=True, kw_only=True):
    """Cost in USD of your session, git branch, this project and today, and the spending caps"""


class TokenMap(Arguments, frozen=True, kw_only=True):
    """Token counts by folder and file"""

    folder: str = "."
    depth: int = 1


TOOLS: dict[str, type[Arguments]] = {
    "count_tokens": CountTokens,
    "check_budgets": CheckBudgets,
    "context_usage": ContextUsageArguments,
    "spend": Spend,
    "token_map": TokenMap,
}
"""The arguments of each tool."""


def describe_tools() -> list[dict[str, Any]]:
    """Return the names, descriptions and input schemas of all tools."""
    return [
        {"name": name, "description": inspect.getdoc(kind), "inputSchema": _input_schema(kind)}
        for name, kind in TOOLS.items()
    ]


def _input_schema(kind: type[Arguments]) -> dict[str, Any]:
    """Return a JSON Schema with only what agents need."""
    _, definitions = msgspec.json.schema_components([kind])
    definition = definitions[kind.__name__]
    properties = {
        # An optional argument may be null, but agents need not know that.
        name: value.get("anyOf", [value])[0]
        for name, value in definition["properties"].items()
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | ({"required": definition["required"]} if definition["required"] else {})
