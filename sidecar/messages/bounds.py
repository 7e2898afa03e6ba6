"""Limits of a call's numbers. Values beyond them are mistakes or attacks, and are refused.

The limits are generous, because a record may stand for a whole batch.
"""

from __future__ import annotations

from decimal import Decimal

MOST_TOKENS = 10**12
"""Largest number of tokens in a call."""
MOST_USD = Decimal(1_000)
"""Largest cost that a vendor may report for a call."""
LONGEST_ID = 512
"""Characters of an id or a model's name."""
FIRST_YEAR, LAST_YEAR = 2000, 2100
"""Years in which a call may have been made, inclusive, in UTC."""


def count_or_zero(value: object) -> int:
    """Return a vendor's number, or 0 if it is not a whole number of at least 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
