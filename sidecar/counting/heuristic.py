"""The default estimate: what a text costs by its scripts, words, numbers, marks and white space."""

from __future__ import annotations

import re

_PIECES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d{1,3}|[^\w\s]+|\n\s*|[^\x00-\x7f]")


def heuristic_units(text: str) -> int:
    """Thousandths of tokens in `text`."""
    return 1000 * len(_PIECES.findall(text))
