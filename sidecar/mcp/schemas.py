"""Defines the names, descriptions and arguments of the tools.

The descriptions are short, because agents include them in every request.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class for tool arguments."""


class CountTokens(Arguments, frozen=True, kw_only=True):
    """Counts the tokens in a file, folder or text. Either `path` or `text` is required."""

    path: str | None = None
    text: str | None = None
    model: str | None = None


class CheckBudgets(Arguments, frozen=True, kw_only=True):
    """Checks files and folders against their budgets. By default, checks the whole project."""

    paths: list[str] = []


class FitToBudget(Arguments, frozen=True, kw_only=True):
    """Shortens the text of a file without changing the file."""

    path: str
    max_tokens: int


class ContextUsageArguments(Arguments, frozen=True, kw_only=True):
    """Reports the context usage of the session that calls the tool."""


class TokenMap(Arguments, frozen=True, kw_only=True):
    """Lists the token counts in a folder by subfolder and file."""

    folder: str = "."
    depth: int = 1


ToolName = Literal["count_tokens", "check_budgets", "fit_to_budget", "context_usage", "token_map"]

_STRING = {"type": "string"}
_NUMBER = {"type": "integer"}


def _schema(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | {"required": [*required]} if required else schema


TOOLS: dict[ToolName, tuple[str, dict[str, Any], type[Arguments]]] = {
    "count_tokens": (
        "Token count of a file, folder or text, and the share of your context that it would use",
        _schema(path=_STRING, text=_STRING, model=_STRING),
        CountTokens,
    ),
    "check_budgets": (
        "Files that exceed their token budget",
        _schema(paths={"type": "array", "items": _STRING}),
        CheckBudgets,
    ),
    "fit_to_budget": (
        "A file's text, shortened to max_tokens. The file is not changed",
        _schema(("path", "max_tokens"), path=_STRING, max_tokens=_NUMBER),
        FitToBudget,
    ),
    "context_usage": (
        "How full your context window is, your session's cost, and how many calls are left",
        _schema(),
        ContextUsageArguments,
    ),
    "token_map": (
        "Token counts by folder and file",
        _schema(folder=_STRING, depth=_NUMBER),
        TokenMap,
    ),
}
"""The description, input schema and arguments of each tool."""


def describe_tools() -> list[dict[str, Any]]:
    """Return the names, descriptions and input schemas of all tools. Used by `mcp --schemas`."""
    return [
        {"name": name, "description": description, "inputSchema": schema}
        for name, (description, schema, _) in TOOLS.items()
    ]
