"""Counts the tokens in parts of a document, and finds where a budget is exceeded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sidecar.counting.exact_engines import without_lone_surrogates
from sidecar.counting.incremental import count_pieces
from sidecar.counting.tokenizer_interface import SAMPLE_CHARACTERS, Tokenizer
from sidecar.text.pieces import Piece, split, split_pieces

if TYPE_CHECKING:
    from sidecar.counting.count import Measure

_ENCODED = 50_000
"""Maximum number of characters to encode at once.

Longer strings can overflow tiktoken's regular expressions.
"""
_FINER = 512
"""Maximum number of characters to decode one token at a time, because this is slow."""


class TextCounter:
    """Counts the tokens in parts of a text.

    Args:
        text: The text.
        tokenizer_for: Returns the tokenizer of a model.
        pieces: An open document's pieces, whose cached counts are reused.
        whole: Known token counts of the whole text, such as counts from an endpoint, keyed by
            model. They take precedence.
    """

    def __init__(
        self,
        text: str,
        tokenizer_for: Callable[[str], Tokenizer],
        pieces: Sequence[Piece] | None = None,
        whole: Mapping[str, Measure] | None = None,
    ) -> None:
        self._text = text
        self._tokenizer_for = tokenizer_for
        self._pieces: dict[tuple[int, int, bool], Sequence[Piece]] = {}
        if pieces is not None:
            self._pieces[0, len(text), True] = pieces
        self._whole = whole or {}

    def measure(self, model: str, start: int, end: int) -> Measure:
        """Count the text between two character offsets."""
        if start == 0 and end == len(self._text) and model in self._whole:
            return self._whole[model]
        tokenizer = self._tokenizer_for(model)
        tokens = count_pieces(self._pieces_between(tokenizer, start, end), tokenizer.base)
        sample = self._text[start : min(end, start + SAMPLE_CHARACTERS)]
        return tokenizer.measure_base(tokens, sample)

    def excess_start(self, model: str, start: int, end: int, allowance: int) -> int:
        """Return the character offset of the first token that exceeds `allowance`."""
        tokenizer = self._tokenizer_for(model)
        return start + excess_start(
            self._pieces_between(tokenizer, start, end), allowance, tokenizer
        )

    def _pieces_between(self, tokenizer: Tokenizer, start: int, end: int) -> Sequence[Piece]:
        can_cut = tokenizer.has_safe_cuts
        key = (start, end, can_cut)
        if key not in self._pieces:
            part = self._text[start:end]
            self._pieces[key] = split_pieces(part) if can_cut else (Piece(part),)
        return self._pieces[key]


def excess_start(pieces: Sequence[Piece], allowance: int, tokenizer: Tokenizer) -> int:
    """Return the number of characters before the first token that exceeds `allowance`.

    If that token starts inside a character, the character is not counted.
    """
    at, left, tokenizer = 0, tokenizer.unscale(allowance), tokenizer.base
    for piece in pieces:
        tokens = count_pieces((piece,), tokenizer)
        if tokens > left:
            return at + _excess_start_in_piece(piece.text, left, tokenizer)
        left -= tokens
        at += len(piece)
    return at


def _excess_start_in_piece(text: str, allowance: int, tokenizer: Tokenizer) -> int:
    at, left = 0, allowance
    for part in split(text, _FINER) if tokenizer.has_safe_cuts else (text,):
        tokens = tokenizer.count(part)
        if tokens > left:
            return at + first_tokens(part, left, tokenizer)
        left -= tokens
        at += len(part)
    return at


def first_tokens(text: str, tokens: int, tokenizer: Tokenizer) -> int:
    """Return the number of complete characters in the first `tokens` tokens of the text.

    If the tokenizer does not expose its tokens, the result is the length of the longest prefix
    that has at most `tokens` tokens.
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
