"""The event loop and the workers take turns at every microsecond: no number that is shown is stale.

The long run: `python -m tests.fuzz.shows --operations 100000`.
"""

from __future__ import annotations

from tests.fuzz.shows import stress


async def test_every_derived_number_equals_a_fresh_derivation() -> None:
    await stress(300, seed=1)
