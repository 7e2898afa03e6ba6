"""Types of costs that the context's protocol also has.

They are apart from the other params and results, which the first token count does not need.
"""

from __future__ import annotations

from typing import Literal

import msgspec

CacheEnd = Literal["exact", "earliest", "typical"]
"""What is known about the time until which a prompt is cached: when exactly it is deleted, until
when it is kept at least, or until when it is usually kept.
"""


class BranchCost(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The cost of the calls on a git branch."""

    name: str
    calls: int
    sessions: int
    """The number of sessions with calls on the branch."""
    cost_usd: float | None
    """The cost of all calls with a price; null if no call has a price."""
    partial: bool = False
    """Whether `cost_usd` is a lower bound: calls have no price, or the agent's files omit calls."""
