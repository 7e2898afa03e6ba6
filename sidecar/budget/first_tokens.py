"""How many characters the first tokens of a text hold: what counts alone do not show."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sidecar.counting.engines.fast import without_lone_surrogates

if TYPE_CHECKING:
    from sidecar.counting.tokenizer import Tokenizer

_ENCODED = 50_000
"""Characters: on longer texts (which have no safe cut) tiktoken may overflow."""


def first_tokens(text: str, tokens: int, tokenizer: Tokenizer) -> int:
    """Characters of the first `tokens` tokens of a text that is not cut further.

    A character that a later token goes on with does not belong to them. Where no engine shows its
    tokens, the most characters that have no more tokens than that.
    """
    plain = without_lone_surrogates(text)
    known = len(plain) == len(text) <= _ENCODED
    found = tokenizer.first_bytes(plain, tokens) if known else None
    if found is None:
        return _longest_prefix(text, tokens, tokenizer.count)
    return len(found.decode("utf-8", "ignore"))


def _longest_prefix(text: str, tokens: int, count: Callable[[str], int]) -> int:
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if count(text[:middle]) <= tokens:
            low = middle
        else:
            high = middle
    return low
