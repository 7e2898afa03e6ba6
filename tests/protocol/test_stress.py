"""Tests that displayed numbers are never outdated, even if threads switch every microsecond.

Run `python -m tests.fuzz.shown_numbers --operations 100000` for a longer test.
"""

from __future__ import annotations

from tests.fuzz.shown_numbers import stress


async def test_every_derived_number_equals_a_fresh_derivation() -> None:
    await stress(300, seed=1)
