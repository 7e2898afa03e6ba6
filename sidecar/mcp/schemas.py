"""Describes the tools to clients.

Every request of an agent contains these texts, so they are short.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the arguments of tools."""


class CountTokens(Arguments, frozen=True, kw_only=True):
    """Arguments for counting a file, a folder or a text. Either `path` or `text` is required."""

    path: str | None = None
    text: str | None = None
    model: str | None = None


class CheckBudgets(Arguments, frozen=True, kw_only=True):
    """Arguments for checking files and folders against budgets; by default the whole project."""

    paths: list[str] = []


class FitToBudget(Arguments, frozen=True, kw_only=True):
    """Arguments for shortening the text of a file. The file itself does not change."""

    path: str
    max_tokens: int


class ContextUsageArguments(Arguments, frozen=True, kw_only=True):
    """Arguments for the context usage of the calling agent's session. There are none."""


class TokenMap(Arguments, frozen=True, kw_only=True):
    """Arguments for listing the tokens of a folder by subfolder and file."""

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
        "Tokens of a file, folder or text, and the share of your context that reading it takes",
        _schema(path=_STRING, text=_STRING, model=_STRING),
        CountTokens,
    ),
    "check_budgets": (
        "Files over their token budget",
        _schema(paths={"type": "array", "items": _STRING}),
        CheckBudgets,
    ),
    "fit_to_budget": (
        "A file's text shortened to max_tokens; the file stays unchanged",
        _schema(("path", "max_tokens"), path=_STRING, max_tokens=_NUMBER),
        FitToBudget,
    ),
    "context_usage": (
        "How full your context window is, your session's cost, and how many calls are left",
        _schema(),
        ContextUsageArguments,
    ),
    "token_map": (
        "Tokens by folder and file",
        _schema(folder=_STRING, depth=_NUMBER),
        TokenMap,
    ),
}
"""The description, input schema and arguments of each tool."""


def describe_tools() -> list[dict[str, Any]]:
    """Return the names, descriptions and input schemas of all tools, for `mcp --schemas`."""
    return [
        {"name": name, "description": description, "inputSchema": schema}
        for name, (description, schema, _) in TOOLS.items()
    ]
