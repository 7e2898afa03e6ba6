"""Tests that displayed numbers are never outdated, even if threads switch every microsecond.

Run `python -m tests.fuzz.shown_numbers --operations 100000` for a longer test.
"""

from __future__ import annotations

import pytest

from tests.fuzz.shown_numbers import stress


@pytest.mark.parametrize("operations", [100, pytest.param(3_000, marks=pytest.mark.slow)])
async def test_every_derived_number_equals_a_fresh_derivation(operations: int) -> None:
    await stress(operations, seed=1)
