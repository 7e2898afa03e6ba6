"""Reads the case tables of parametrized tests from `tests/fixtures/cases`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.mark import ParameterSet

FOLDER = Path(__file__).parent / "fixtures" / "cases"


def read_table(table: str) -> dict[str, Any]:
    """Return the content of the file `table`."""
    return tomllib.loads((FOLDER / f"{table}.toml").read_text("utf-8"))


def read_cases(table: str, kind: Any) -> list[ParameterSet]:
    """Return the cases in the file `table`, converted to `kind`. A case's key is its test id.

    Raises:
        msgspec.ValidationError: A case has a missing or wrong field.
    """
    cases = read_table(table).items()
    return [pytest.param(msgspec.convert(case, kind), id=name) for name, case in cases]


def read_rows(table: str, name: str, *fields: str) -> list[Any]:
    """Return the rows of the array `name` in the file `table`. Arrays become tuples.

    Inline tables become tuples of their values of `fields`, with None if one is missing.
    """
    return [
        tuple(map(row.get, fields))
        if isinstance(row, dict) and fields
        else tuple(row)
        if isinstance(row, list)
        else row
        for row in read_table(table)[name]
    ]
