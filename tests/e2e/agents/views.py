"""Reads the displayed session's numbers from each view."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.text.printable import usd_text
from tests.e2e.agents.sidecar_client import SidecarClient, run_sidecar

_PATTERNS = r"([\d,]+) (?:tokens|of)", r"(?<![±\d.])(\d+) %", r"(\$\d[\d,]*(?:\.\d+)?)"
"""Patterns for the tokens, the percentage and the cost. They skip error bands such as `±75 %`."""


class Numbers(NamedTuple):
    """A session's numbers in a view: its context size, the percentage of the window, and its cost.

    Numbers that the view does not show are None. Numbers that are taken from text are strings.
    """

    tokens: Any
    percent: Any
    usd: Any


def expected_in(view: str, numbers: Numbers) -> Numbers:
    """Return the numbers that a view should show, in the format of the view."""
    tokens, percent, usd = numbers
    if view == "cost/detail":
        return Numbers(None, None, _rounded(usd))
    if view in ("context/usage", "context/sessions", "usage --json"):
        return Numbers(tokens, percent, _rounded(usd))
    has_size = view not in ("status", "text of context/sessions", "statusline")
    return Numbers(f"{tokens:,}" if has_size else None, str(percent), usd_text(usd))


def numbers_in_editor(editor: SidecarClient) -> dict[str, Numbers]:
    """Return the numbers in each view of an editor."""
    _, status = editor.statuses[-1]
    usage = editor.usage()
    row = next(row for row in editor.sessions() if row["shown"])
    where = {"workspace": editor.root.as_uri()}
    page = editor.request("context/page", where)
    costs = editor.request("cost/detail", where | {"by": ["session"]})
    spent = [cost["costUsd"] for cost in costs["rows"] if cost["session"] == row["id"]]
    tooltips = [part["tooltip"] for part in (status["context"], status["cost"]) if part]
    return {
        "status": _in_text(status["text"]),
        "tooltip": _in_text("\n".join(tooltips)),
        "context/usage": _in_fields(usage),
        "text of context/usage": _in_text(usage["text"]),
        "context/page": _in_text(re.sub(r"<[^>]*>", " ", page["html"])),
        "context/sessions": _in_fields(row),
        "text of context/sessions": _in_text(row["detail"]),
        "cost/detail": Numbers(None, None, _rounded(sum(spent))),
    }


def numbers_in_terminal(root: Path) -> dict[str, Numbers]:
    """Return the numbers that each command prints."""
    return {
        "usage": _in_text(run_sidecar(root, "usage")),
        "usage --json": _in_fields(json.loads(run_sidecar(root, "usage", "--json"))),
        "statusline": _in_text(run_sidecar(root, "statusline")),
    }


def _in_text(text: str) -> Numbers:
    found = (re.search(pattern, text) for pattern in _PATTERNS)
    return Numbers(*(match and match[1] for match in found))


def _in_fields(row: dict[str, Any]) -> Numbers:
    return Numbers(row.get("tokens"), row.get("percent"), _rounded(row.get("costUsd")))


def _rounded(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 9)
