"""The rule that every spending cap follows.

The hooks of coding agents also use this module. It imports little, because a prompt waits for it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, NamedTuple

from sidecar.text.printable import AT_LEAST, different_usd_texts, percent_text, usd_text

CapSpan = Literal["day", "session", "workspace", "branch"]

_SPANS: dict[CapSpan, str] = {
    "day": "today",
    "session": "in this session",
    "workspace": "in this workspace",
    "branch": "on this branch",
}


class ExceededCap(NamedTuple):
    """A cap that is exceeded."""

    kind: Literal["softCap", "hardCap"]
    message: str
    cap: Decimal
    """The cap in USD, or the share of the usable window."""


def find_exceeded_cap(
    span: CapSpan | Literal["context"],
    soft: Decimal | None,
    hard: Decimal | None,
    value: Decimal,
    estimate: Decimal | None = None,
    *,
    is_partial: bool = False,
) -> ExceededCap | None:
    """Return the exceeded cap, or None if neither is. The hard cap takes precedence.

    Args:
        span: What the caps apply to. If it is a context, all amounts are shares of the usable
            window, and 1 is all of it.
        soft: The soft cap in USD, or None if it is not set.
        hard: The hard cap in USD, or None if it is not set.
        value: The amount already spent, in USD.
        estimate: The cost of a planned call in USD, or None if it is unknown.
        is_partial: Whether `value` is a lower bound.
    """
    planned = value + (estimate or 0)
    if hard is not None and planned > hard:
        name, cap = "hard", hard
    elif soft is not None and planned > soft:
        name, cap = "soft", soft
    else:
        return None
    if span == "context":
        full, limit = (percent_text(float(100 * each)) for each in (value, cap))
        message = f"The context is {full} full, over the {name} cap of {limit}."
        message += " Compact it, or start a new session." if name == "hard" else ""
    else:
        call, shown = "", (usd_text(value), usd_text(cap))
        if estimate:
            call = f" plus up to {usd_text(estimate)} for this call"
        else:
            shown = different_usd_texts(value, cap)
        amount = f"{AT_LEAST if is_partial else ''}{shown[0]}"
        message = f"{amount} spent {_SPANS[span]}{call} exceeds the {name} cap of {shown[1]}."
    return ExceededCap("hardCap" if name == "hard" else "softCap", message, cap)
