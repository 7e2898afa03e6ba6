"""What a number of a call can be at all: anything beyond is a mistake or malice, and is refused.

Generous on purpose: a record may stand for a whole batch. The ledger's sums of 64-bit integers hold
thousands of the largest.
"""

from __future__ import annotations

from decimal import Decimal

MOST_TOKENS = 10**12
"""In one number of one call."""
MOST_USD = Decimal(1_000)
"""What a vendor may say that one call cost."""
LONGEST_ID = 512
"""Characters of an id or a model's name."""
FIRST_YEAR, LAST_YEAR = 2000, 2100
"""In UTC, both inclusive: when a call can have been made."""


def count_in(value: object) -> int:
    """What a vendor's field counts; 0 for anything but a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
