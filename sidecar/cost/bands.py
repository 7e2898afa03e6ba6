"""Sizes of prompt that price lists distinguish: what lets a sum of many calls still be priced.

Long-context prices hold for a whole call, by the size of its prompt. Rollups therefore add up
only calls that no known threshold separates.
"""

from __future__ import annotations

from bisect import bisect_left

# The thresholds of genai-prices 0.2.3, and round numbers that lists are likely to use next.
# Stored with every rollup: a change needs a migration that rolls all events up again.
THRESHOLDS = (
    32_000,
    64_000,
    100_000,
    128_000,
    199_999,
    200_000,
    256_000,
    272_000,
    400_000,
    500_000,
    512_000,
    524_288,
    1_000_000,
)

REPORTED = -1
"""The band of calls whose vendor named the cost itself: no list prices them."""


def band(prompt_tokens: int) -> int:
    """The greatest threshold that is smaller than the prompt, else 0."""
    position = bisect_left(THRESHOLDS, prompt_tokens)
    return THRESHOLDS[position - 1] if position else 0


def typical_prompt(band: int) -> int:
    """A prompt size of that band, in tokens: any stands for all, as far as prices go."""
    return band + 1
