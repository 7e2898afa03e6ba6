"""The tools as clients see them. Every request of an agent carries these texts: keep them short."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a tool's arguments."""


class CountTokens(Arguments, frozen=True, kw_only=True):
    """Count a file, a folder or a text; one of `path` and `text` is required."""

    path: str | None = None
    text: str | None = None
    model: str | None = None


class CheckBudgets(Arguments, frozen=True, kw_only=True):
    """Check files and folders against their budgets; by default the whole project."""

    paths: list[str] = []


class FitToBudget(Arguments, frozen=True, kw_only=True):
    """Shorten a file's text; the file stays as it is."""

    path: str
    max_tokens: int


class ContextUsageArguments(Arguments, frozen=True, kw_only=True):
    """No arguments: the session is that of the calling agent."""


class TokenMap(Arguments, frozen=True, kw_only=True):
    """List the tokens of a folder by subfolder and file."""

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
"""Description, input schema and arguments of each tool."""


def describe_tools() -> list[dict[str, Any]]:
    """Return names, descriptions and input schemas, as `mcp --schemas` prints them."""
    return [
        {"name": name, "description": description, "inputSchema": schema}
        for name, (description, schema, _) in TOOLS.items()
    ]
