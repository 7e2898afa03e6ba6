"""Patterns of tables of model names, compiled row by row when a name first gets that far.

All of them together take 30 ms to compile; most names need a few.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TypeVar

T = TypeVar("T")


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The expression of a row."""
    return re.compile(pattern)


def first_match(rows: Iterable[tuple[str, T]], name: str) -> T | None:
    """The value of the first row whose pattern `name` begins with; None without one."""
    return next((value for pattern, value in rows if compiled(pattern).match(name)), None)


def first_inside(rows: Iterable[tuple[str, T]], name: str) -> T | None:
    """The value of the first row whose pattern is somewhere in `name`; None without one."""
    return next((value for pattern, value in rows if compiled(pattern).search(name)), None)
