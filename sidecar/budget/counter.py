"""Counts of a text's parts, and the character at which a budget is used up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sidecar.counting.engines.fast import without_lone_surrogates
from sidecar.counting.incremental import count_pieces
from sidecar.counting.tokenizer import SAMPLED, Tokenizer
from sidecar.text.pieces import Piece, pieces_of, split, word_pieces

if TYPE_CHECKING:
    from sidecar.counting.count import Measure

_ENCODED = 50_000
"""Characters: on longer texts (which have no safe cut) tiktoken may overflow."""
_FINER = 512
"""Characters of the pieces that are taken apart into tokens: few, for it is slow."""


class TextCounter:
    """Counts parts of one text; every part is counted once for each tokenizer.

    `pieces`, the snapshot of an open document, brings along what is counted already; `whole`
    gives whole-text counts by model that were made elsewhere (by an endpoint), which then stand.
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
            self._pieces[0, len(text), False] = pieces
        self._whole = whole or {}

    def measure(self, model: str, start: int, end: int) -> Measure:
        """The tokens of a part, counted as a text of its own; an empty one is 0, exact.

        Offsets are characters.
        """
        if start == 0 and end == len(self._text) and model in self._whole:
            return self._whole[model]
        tokenizer = self._tokenizer_for(model)
        tokens = total(self._units(tokenizer, start, end), tokenizer)
        return tokenizer.measure(tokens, self._text[start : min(end, start + SAMPLED)])

    def seam(self, model: str, start: int, end: int, allowance: int) -> int:
        """The offset of the first token past `allowance` in a part, rounded to a character."""
        tokenizer = self._tokenizer_for(model)
        return start + seam(self._units(tokenizer, start, end), allowance, tokenizer)

    def _units(self, tokenizer: Tokenizer, start: int, end: int) -> Sequence[Piece]:
        """The part cut where the tokenizer allows it; made once, for pieces remember counts."""
        cuts = tokenizer.cuts
        key = (start, end, cuts == "none")
        if key not in self._pieces:
            part = self._text[start:end]
            self._pieces[key] = (Piece(part),) if cuts == "none" else pieces_of(part)
        pieces = self._pieces[key]
        return word_pieces(pieces) if cuts == "words" else pieces


def total(pieces: Sequence[Piece], tokenizer: Tokenizer) -> int:
    """Tokens of all pieces; what scales another tokenizer's counts is scaled once, at the end."""
    return tokenizer.scale(count_pieces(pieces, tokenizer.basis))


def seam(pieces: Sequence[Piece], allowance: int, tokenizer: Tokenizer) -> int:
    """Characters before the first token past `allowance`; all of them when nothing is past it.

    Costs what the counts of the pieces cost that are not counted yet, and then one piece's tokens.
    A token that begins inside a character counts with that character.
    """
    at, left, tokenizer = 0, tokenizer.unscaled(allowance), tokenizer.basis
    for piece in pieces:
        tokens = count_pieces((piece,), tokenizer)
        if tokens > left:
            return at + _within_piece(piece.text, left, tokenizer)
        left -= tokens
        at += len(piece)
    return at


def _within_piece(text: str, allowance: int, tokenizer: Tokenizer) -> int:
    """The same inside one piece that has more tokens than allowed: its lines first."""
    at, left = 0, allowance
    for part in split(text, _FINER) if tokenizer.cuts == "lines" else (text,):
        tokens = tokenizer.count(part)
        if tokens > left:
            return at + first_tokens(part, left, tokenizer)
        left -= tokens
        at += len(part)
    return at


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
