"""Looks up limits that the price list does not provide, for context windows, prompts and replies.

The tables and their sources are in `limits.toml`.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Literal

from sidecar import typed
from sidecar.models.families import is_misspelled
from sidecar.models.names import first_inside, first_match

Table = Literal["overruling", "windows", "windows-of-bases", "prompts", "replies"]
_WHOLE = 0
"""Marks models whose replies may use the rest of the context window."""


@cache
def _rows(table: Table) -> list[tuple[str, int]]:
    """Return a table's patterns and limits, in order."""
    return list(_tables()[table].items())


@cache
def _tables() -> dict[Table, dict[str, int]]:
    return typed.read_table("sidecar.models", "limits.toml", dict[Table, dict[str, int]])


def overruling_window(bare: str) -> int | None:
    """Return the context window that overrides the price list for a model, or None."""
    return first_match(_rows("overruling"), bare)


def published_window(bare: str) -> int | None:
    """Return a model's published context window in tokens, or None if it is unknown."""
    if is_misspelled(bare):
        return None
    found = first_match(_rows("windows"), bare)
    return first_inside(_rows("windows-of-bases"), bare) if found is None else found


@lru_cache(maxsize=4096)
def input_limit(bare: str) -> int | None:
    """Return a model's maximum prompt size in tokens if it is smaller than the window, or None."""
    return None if is_misspelled(bare) else first_match(_rows("prompts"), bare) or None


def max_output_of(bare: str) -> int | None:
    """Return a model's maximum reply size in tokens, or None if it is unknown."""
    tokens = None if is_misspelled(bare) else first_match(_rows("replies"), bare)
    return published_window(bare) if tokens == _WHOLE else tokens
