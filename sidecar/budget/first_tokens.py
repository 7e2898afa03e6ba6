"""How many characters the first tokens of a text hold: what counts alone cannot tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.counting.engines.fast import Fast, disputed, without_lone_surrogates
from sidecar.counting.engines.reference import Reference
from sidecar.counting.tokenizers import Lazy

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.counting.count import Tokenizer

_ENCODED = 50_000
"""Characters: on longer texts (which have no safe cut) tiktoken may overflow."""


def first_tokens(text: str, tokens: int, tokenizer: Tokenizer) -> int:
    """Characters of the first `tokens` tokens of a text that is not cut further.

    A character that a later token goes on with does not belong to them. Where no engine shows its
    tokens, the most characters that have no more tokens than that.
    """
    loaded = tokenizer.load() if isinstance(tokenizer, Lazy) else tokenizer
    plain = without_lone_surrogates(text)
    known = len(plain) == len(text) <= _ENCODED
    found = _bytes(plain, tokens, loaded) if known else None
    if found is None:
        return _longest_prefix(text, tokens, tokenizer.count)
    return len(found.decode("utf-8", "ignore"))


def _bytes(text: str, tokens: int, tokenizer: Tokenizer) -> bytes | None:
    """The bytes of the first tokens, from an engine that shows them."""
    reference = getattr(tokenizer, "reference", tokenizer)
    if isinstance(tokenizer, Fast) and not disputed(text):
        try:
            return _by_rs_bpe(text, tokens, tokenizer.name)
        except ImportError:
            pass
    if not isinstance(reference, Reference):
        return None
    encoding = reference._encoding()
    return encoding.decode_bytes(encoding.encode_ordinary(text)[:tokens])


def _by_rs_bpe(text: str, tokens: int, name: str) -> bytes:
    """Soon loaded, where tiktoken takes its time. Raises ImportError where it has no wheel."""
    from rs_bpe.bpe import openai  # type: ignore[import-not-found,unused-ignore]

    encoding = openai.cl100k_base() if name == "cl100k_base" else openai.o200k_base()
    found: bytes = encoding.bpe().decode_tokens(encoding.encode(text)[:tokens])
    return bytes(found)


def _longest_prefix(text: str, tokens: int, count: Callable[[str], int]) -> int:
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if count(text[:middle]) <= tokens:
            low = middle
        else:
            high = middle
    return low
