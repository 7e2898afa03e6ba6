"""Fitting a text to a number of tokens: its beginning, its end, or both ends (`tokens/fit`).

Whole lines are kept where lines are short; inside a long line the cut falls between two tokens and
never inside a character (nor between one and what combines with it). Counts do not add up at a cut
of one's own choosing, so every result is counted as it is and shortened until it fits.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar.counting.characters import whole_characters
from sidecar.counting.tokenizer import SAMPLED, Tokenizer
from sidecar.text.pieces import split

if TYPE_CHECKING:
    from collections.abc import Iterator

Mode = Literal["start", "middle", "end"]
"""What is kept: the beginning, both ends, the end."""

MARKER = "\n...\n"
UNMEASURED_ERROR_PERCENT = 25.0
"""What an error that nobody measured counts as."""

_PIECE_CHARACTERS = 2_048
_LONGEST_PIECE = 16 * _PIECE_CHARACTERS
"""A stretch without a safe cut is cut here: each step of a search counts a piece, and what it
finds is counted as a whole anyway."""
_LINE_END = re.compile(r"\r\n?|\n")
_TOKEN_WINDOW = 48
"""Characters on either side of a cut that decide whether it falls between two tokens."""

_LONG_LINE_TOKENS = 100
_LONG_LINE_SHARE = 0.05
"""A line with more tokens than both of these (the share is of what an end may keep) may be cut; so
may one that holds more than half of that."""

_ROUNDS = 64


class Fitted(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A text that fits, and what it lost."""

    text: str
    tokens: int
    """Of `text`, the marker included."""
    removed_tokens: int
    """Tokens before less tokens after; at least 0."""
    removed_lines: int
    """Lines of which nothing is left."""
    changed: bool


def mode_of(name: str) -> Mode:
    """A mode by name; raises ValueError for another word."""
    modes: tuple[Mode, ...] = ("start", "middle", "end")
    for mode in modes:
        if mode == name:
            return mode
    raise ValueError(f"mode must be start, middle or end, not {name!r}")


def allowance(max_tokens: int, tokenizer: Tokenizer, sample: str = "") -> int:
    """What to aim at: `max_tokens`, less half of the band where counts are not exact.

    `sample`: how the text begins.
    """
    if tokenizer.method in ("exact", "endpoint"):
        return max(0, max_tokens)
    error = tokenizer.band(max_tokens, sample)
    expected = UNMEASURED_ERROR_PERCENT if error is None else max(0.0, error)
    return max(0, int(max_tokens / (1 + expected / 100)))


def fit(
    text: str,
    max_tokens: int,
    mode: Mode,
    tokenizer: Tokenizer,
    marker: str = MARKER,
) -> Fitted:
    """`text` in at most `max_tokens` tokens by `tokenizer`; unchanged if it fits already.

    `marker` stands for what was left out, in `middle` only, and is counted; where there is no room
    for it the beginning is kept. Never raises; fitting a fitted text changes nothing. Takes about
    two counts of the text. An estimator that is installed and cuts texts itself does so, without
    our marker.
    """
    work = _Work(text, tokenizer)
    limit = allowance(max_tokens, tokenizer, text[:SAMPLED])
    if work.total <= limit:
        return Fitted(
            text=text, tokens=work.total, removed_tokens=0, removed_lines=0, changed=False
        )
    own = tokenizer.basis.truncated(text, tokenizer.unscaled(limit), mode)
    if own is not None and (tokens := tokenizer.count(own)) <= limit:
        return _as_cut(text, own, work.total, tokens)
    while True:
        fitted = _within(work, limit, mode, marker)
        most = allowance(max_tokens, tokenizer, fitted.text[:SAMPLED])
        if fitted.tokens <= most:
            return fitted
        limit = min(most, limit - 1)  # what is left is of a kind with a wider band


def _within(work: _Work, limit: int, mode: Mode, marker: str) -> Fitted:
    if mode == "middle" and limit - work.count(marker) < 2:
        mode = "start"
    return _Fit(work, mode, marker if mode == "middle" else "").within(limit)


def _as_cut(text: str, kept: str, before: int, tokens: int) -> Fitted:
    """What an estimator kept of a text by a cut of its own."""
    lines = len(text.splitlines()) - len(kept.splitlines())
    return Fitted(
        text=kept,
        tokens=tokens,
        removed_tokens=max(0, before - tokens),
        removed_lines=max(0, lines),
        changed=kept != text,
    )


def _pieces(text: str) -> Iterator[str]:
    """Stretches whose counts about add up to the text's, none longer than a search may count."""
    for piece in split(text, _PIECE_CHARACTERS):
        for start in range(0, len(piece), _LONGEST_PIECE):
            yield piece[start : start + _LONGEST_PIECE]


class _Work:
    """A text counted once, piece by piece, so that any part of it can be counted cheaply."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self.text = text
        self.count = tokenizer.count
        pieces = list(_pieces(text))
        self.starts = [0, *accumulate(map(len, pieces))]
        self.sums = [0, *accumulate(map(self.count, pieces))]
        self.line_ends = [match.span() for match in _LINE_END.finditer(text)]
        self.total = self.count(text) if text else 0
        self.exact = tokenizer.method == "exact"  # known when a vocabulary was loaded to count

    def before(self, offset: int) -> int:
        """About how many tokens come before `offset`."""
        piece = bisect_right(self.starts, offset) - 1
        return self.sums[piece] + self.count(self.text[self.starts[piece] : offset])

    def head(self, tokens: int) -> int:
        """The offset that about so many tokens reach to."""
        piece = min(bisect_right(self.sums, tokens), len(self.sums) - 1) - 1
        start, end = self.starts[piece], self.starts[piece + 1]
        low, high = start, end
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.sums[piece] + self.count(self.text[start:middle]) <= tokens
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def tail(self, tokens: int) -> int:
        """The offset from which about so many tokens come."""
        skipped = self.sums[-1] - tokens
        piece = max(bisect_left(self.sums, skipped) - 1, 0)
        start, end = self.starts[piece], self.starts[piece + 1]
        after = self.sums[-1] - self.sums[piece + 1]
        low, high = start, end
        while low < high:
            middle = (low + high) // 2
            fits = after + self.count(self.text[middle:end]) <= tokens
            low, high = (low, middle) if fits else (middle + 1, high)
        return low

    def line(self, offset: int) -> int:
        """The index of the line that `offset` is in; an offset after its end is in the next."""
        return bisect_right(self.line_ends, offset, key=lambda span: span[1])

    def line_start(self, line: int) -> int:
        """Where a line begins."""
        return self.line_ends[line - 1][1] if line else 0

    def line_end(self, line: int) -> int:
        """Where a line ends, its line break not included."""
        return self.line_ends[line][0] if line < len(self.line_ends) else len(self.text)

    def is_long(self, line: int, tokens: int) -> bool:
        """Whether a line may be cut inside, for an allowance of `tokens`."""
        has = self.before(self.line_end(line)) - self.before(self.line_start(line))
        return has > tokens / 2 or has > max(_LONG_LINE_TOKENS, _LONG_LINE_SHARE * tokens)

    def between_tokens(self, offset: int, *, forward: bool = False) -> int:
        """The nearest offset at or before `offset` (or after it) that falls between two tokens."""
        low, high = max(0, offset - _TOKEN_WINDOW), min(len(self.text), offset + _TOKEN_WINDOW)
        if not self.exact or not low < offset < high:
            return offset
        whole = self.count(self.text[low:high])
        cuts = range(offset, high) if forward else range(offset, low, -1)
        for cut in cuts[: _TOKEN_WINDOW // 2]:
            if self.count(self.text[low:cut]) + self.count(self.text[cut:high]) == whole:
                return cut
        return offset


class _Fit:
    """One fitting: where the head ends, where the tail begins, and what stands between."""

    def __init__(self, work: _Work, mode: Mode, marker: str) -> None:
        self.work = work
        self.mode = mode
        self.marker = marker
        self.fixed = work.count(marker)

    def within(self, limit: int) -> Fitted:
        """The result: aimed at, counted, aimed lower while it is over."""
        target = limit - self.fixed
        for _ in range(_ROUNDS):
            head, tail = self._ends(target)
            text = self._join(head, tail)
            tokens = self.work.count(text) if text else 0
            if tokens <= limit:
                return self._fitted(text, tokens, head, tail)
            target -= max(1, tokens - limit)
            if target <= 0:
                break
        return self._fitted("", 0, 0, len(self.work.text))

    def _ends(self, tokens: int) -> tuple[int, int]:
        end = len(self.work.text)
        if tokens <= 0:
            return 0, end
        if self.mode == "start":
            return self._head(tokens), end
        if self.mode == "end":
            return 0, self._tail(tokens)
        head = self._head(tokens - tokens // 2)
        return head, max(head, self._tail(tokens - self.work.before(head)))

    def _head(self, tokens: int) -> int:
        work = self.work
        offset = work.head(tokens)
        line = work.line(offset)
        if offset in (work.line_start(line), work.line_end(line)):
            return self._after_line(line, offset)
        if not work.is_long(line, tokens):
            return self._after_line(line, work.line_start(line))
        safe = whole_characters(work.text, work.between_tokens(offset))
        return max(safe, self._after_line(line, work.line_start(line)))

    def _after_line(self, line: int, offset: int) -> int:
        """Where the head ends: before a line break if the marker begins with one."""
        if self.marker[:1] in ("\n", "\r") and line and offset == self.work.line_start(line):
            return self.work.line_end(line - 1)
        return offset

    def _tail(self, tokens: int) -> int:
        work = self.work
        offset = work.tail(tokens)
        line = work.line(offset)
        start = work.line_start(line)
        if offset == start:
            return offset
        if not work.is_long(line, tokens):
            return work.line_start(line + 1) if line < len(work.line_ends) else len(work.text)
        return whole_characters(work.text, work.between_tokens(offset, forward=True), forward=True)

    def _join(self, head: int, tail: int) -> str:
        text = self.work.text
        if not head and tail == len(text):
            return ""
        return f"{text[:head]}{self.marker}{text[tail:]}"

    def _fitted(self, text: str, tokens: int, head: int, tail: int) -> Fitted:
        work = self.work
        return Fitted(
            text=text,
            tokens=tokens,
            removed_tokens=max(0, work.total - tokens),
            removed_lines=self._removed_lines(head, tail),
            changed=text != work.text,
        )

    def _removed_lines(self, head: int, tail: int) -> int:
        """Lines of which neither end holds a character (its line break counts as one)."""
        work = self.work
        ended = bool(work.line_ends) and work.line_ends[-1][1] == len(work.text)
        lines = len(work.line_ends) + (not ended)
        first = work.line(head - 1) + 1 if head else 0
        last = work.line(tail) if tail < len(work.text) else lines
        return max(0, last - first)
