"""Shortens text to a token limit by keeping its beginning, its end or both (`tokens/fit`).

Short lines are kept or removed as a whole. A long line is cut between two tokens, but never inside
a character or between a character and its combining marks. The counts of two parts only add up at
safe split points, so each result is counted again and shortened until it fits.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from sidecar.counting.tokenizer_interface import SAMPLE_CHARACTERS, Tokenizer
from sidecar.text.document import split

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation

_JOINER = "\u200d"
_MAX_CHARACTER = 64
"""Maximum number of code points in a character, including its combining marks. Longer sequences may
be split.
"""


def character_boundary(text: str, offset: int, *, forward: bool = False) -> int:
    """Return the nearest offset in one direction that does not split a character.

    Surrogate pairs, combining marks, joined emoji, flags, and CR with LF are kept together.
    """
    if offset <= 0 or offset >= len(text):
        return max(0, min(offset, len(text)))
    step = 1 if forward else -1
    stop = min(len(text), offset + _MAX_CHARACTER) if forward else max(0, offset - _MAX_CHARACTER)
    cut = offset
    while cut != stop and not _is_boundary(text, cut):
        cut += step
    if cut != stop or cut in (0, len(text)):
        return cut
    return offset + step if _is_pair(text, offset) else offset


def _is_pair(text: str, cut: int) -> bool:
    return "\ud800" <= text[cut - 1] <= "\udbff" and "\udc00" <= text[cut] <= "\udfff"


def _is_boundary(text: str, cut: int) -> bool:
    before, after = text[cut - 1], text[cut]
    if before.isascii() and after.isascii():
        return before != "\r" or after != "\n"
    if before == _JOINER or _is_pair(text, cut) or _extends_previous(after):
        return False
    return not (_is_flag(before) and _is_flag(after) and _count_flags_before(text, cut) % 2)


def _extends_previous(character: str) -> bool:
    if unicodedata.category(character) in ("Mn", "Me", "Mc") or character in (_JOINER, "\u200c"):
        return True
    return (
        "\U0001f3fb" <= character <= "\U0001f3ff"
        or "\U000e0020" <= character <= "\U000e007f"
        or "\u1160" <= character <= "\u11ff"
    )


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _count_flags_before(text: str, cut: int) -> int:
    count = 0
    while count < cut and _is_flag(text[cut - 1 - count]):
        count += 1
    return count


MARKER = "\n...\n"
UNMEASURED_ERROR_PERCENT = 25.0
"""Error band for tokenizers whose error was not measured."""

_PIECE_CHARACTERS = 2_048
_MAX_PIECE = 16 * _PIECE_CHARACTERS
"""Maximum number of characters in a piece. A longer piece without a safe split point is split at
arbitrary points. The search would otherwise be too slow, because each step may count a whole piece.
"""
_LINE_END = re.compile(r"\r\n?|\n")
_TOKEN_WINDOW = 48
"""Number of characters to tokenize on each side of a cut, to check that it splits no token."""

_LONG_LINE_TOKENS = 100
_LONG_LINE_SHARE = 0.05
"""A line is long if it contains more than this fraction of the tokens to keep."""

_ROUNDS = 64


class FittedText(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Shortened text, and how much was removed from it."""

    text: str
    tokens: int
    """The number of tokens in `text`, including the marker."""
    removed_tokens: int
    """The number of tokens that shortening removed; at least 0."""
    removed_lines: int
    """The number of lines that were removed entirely."""
    changed: bool


def allowance(max_tokens: int, tokenizer: Tokenizer, sample: str = "") -> int:
    """Return the largest count for which the true number of tokens is still within a limit.

    Args:
        max_tokens: The limit.
        tokenizer: Counts the text. If its counts are inexact, their error band is subtracted.
        sample: The beginning of the text, which determines the error band.
    """
    if tokenizer.method in ("exact", "endpoint"):
        return max(0, max_tokens)
    error = tokenizer.band(max_tokens, sample)
    expected = UNMEASURED_ERROR_PERCENT if error is None else max(0.0, error)
    return max(0, int(max_tokens / (1 + expected / 100)))


def fit(
    text: str,
    max_tokens: int,
    mode: Truncation,
    tokenizer: Tokenizer,
    marker: str = MARKER,
) -> FittedText:
    """Shorten text to at most `max_tokens` tokens. Never raises.

    Text that fits is returned unchanged. Shortening text takes about as long as counting it twice.
    An estimator plug-in may shorten text in its own way, without the marker.

    Args:
        text: The text.
        max_tokens: The limit.
        mode: The part of the text to keep: its beginning, both ends (`middle`) or its end.
        tokenizer: Counts the text.
        marker: The text that replaces the removed part in mode `middle`, with the text's own line
            endings. The result includes its tokens. If the marker does not fit, only the beginning
            of the text is kept.
    """
    marker = _with_line_ends_of(text, marker)
    work = _CountedText(text, tokenizer)
    limit = allowance(max_tokens, tokenizer, text[:SAMPLE_CHARACTERS])
    if work.total <= limit:
        return FittedText(
            text=text, tokens=work.total, removed_tokens=0, removed_lines=0, changed=False
        )
    cut = tokenizer.base.truncate(text, tokenizer.unscale(limit), mode)
    if cut is not None and (tokens := tokenizer.count(cut)) <= limit:
        return FittedText(
            text=cut,
            tokens=tokens,
            removed_tokens=max(0, work.total - tokens),
            removed_lines=max(0, len(text.splitlines()) - len(cut.splitlines())),
            changed=cut != text,
        )
    while True:
        fitted = _fit_within(work, limit, mode, marker)
        allowed = allowance(max_tokens, tokenizer, fitted.text[:SAMPLE_CHARACTERS])
        if fitted.tokens <= allowed:
            return fitted
        # The shortened text is of another kind, which has a wider error band.
        limit = min(allowed, limit - 1)


def _with_line_ends_of(text: str, marker: str) -> str:
    found = _LINE_END.search(text)
    return marker if found is None else _LINE_END.sub(found[0], marker)


def _fit_within(work: _CountedText, limit: int, mode: Truncation, marker: str) -> FittedText:
    if mode == "middle" and limit - work.count(marker) < 2:
        mode = "start"
    return _FitSearch(work, mode, marker if mode == "middle" else "").run(limit)


def _pieces(text: str) -> Iterator[str]:
    for piece in split(text, _PIECE_CHARACTERS):
        for start in range(0, len(piece), _MAX_PIECE):
            yield piece[start : start + _MAX_PIECE]


class _CountedText:
    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self.text = text
        self.count = tokenizer.count
        pieces = list(_pieces(text))
        self.starts = [0, *accumulate(map(len, pieces))]
        self.sums = [0, *accumulate(map(self.count, pieces))]
        self.line_ends = [match.span() for match in _LINE_END.finditer(text)]
        self.total = self.count(text) if text else 0
        # The first count loads the vocabulary, which may change the method.
        self.is_exact = tokenizer.method == "exact"

    def tokens_before(self, offset: int) -> int:
        """Return the approximate number of tokens before an offset."""
        piece = bisect_right(self.starts, offset) - 1
        return self.sums[piece] + self.count(self.text[self.starts[piece] : offset])

    def head_end(self, tokens: int) -> int:
        """Return the approximate offset where the first `tokens` tokens end."""
        piece = min(bisect_right(self.sums, tokens), len(self.sums) - 1) - 1
        start, end = self.starts[piece], self.starts[piece + 1]
        left = tokens - self.sums[piece]
        ends = range(start + 1, end + 1)
        return start + bisect_right(ends, left, key=lambda at: self.count(self.text[start:at]))

    def tail_start(self, tokens: int) -> int:
        """Return the approximate offset where the last `tokens` tokens start."""
        skipped = self.sums[-1] - tokens
        piece = max(bisect_left(self.sums, skipped) - 1, 0)
        start, end = self.starts[piece], self.starts[piece + 1]
        left = tokens - (self.sums[-1] - self.sums[piece + 1])
        starts = range(start, end)
        return start + bisect_left(
            starts, True, key=lambda at: self.count(self.text[at:end]) <= left
        )

    def line_at(self, offset: int) -> int:
        return bisect_right(self.line_ends, offset, key=lambda span: span[1])

    def line_start(self, line: int) -> int:
        return self.line_ends[line - 1][1] if line else 0

    def line_end(self, line: int) -> int:
        """Return a line's end offset, before its line break."""
        return self.line_ends[line][0] if line < len(self.line_ends) else len(self.text)

    def is_long(self, line: int, tokens: int) -> bool:
        """Return whether a line is long enough to be cut, not just kept or removed whole."""
        length = self.tokens_before(self.line_end(line)) - self.tokens_before(self.line_start(line))
        return length > tokens / 2 or length > max(_LONG_LINE_TOKENS, _LONG_LINE_SHARE * tokens)

    def token_boundary(self, offset: int, *, forward: bool = False) -> int:
        """Return the nearest offset, in the given direction, that does not split a token."""
        low, high = max(0, offset - _TOKEN_WINDOW), min(len(self.text), offset + _TOKEN_WINDOW)
        if not self.is_exact or not low < offset < high:
            return offset
        expected = self.count(self.text[low:high])
        cuts = range(offset, high) if forward else range(offset, low, -1)
        for cut in cuts[: _TOKEN_WINDOW // 2]:
            if self.count(self.text[low:cut]) + self.count(self.text[cut:high]) == expected:
                return cut
        return offset


class _FitSearch:
    def __init__(self, work: _CountedText, mode: Truncation, marker: str) -> None:
        self.work = work
        self.mode = mode
        self.marker = marker
        self.marker_tokens = work.count(marker)

    def run(self, limit: int) -> FittedText:
        target = limit - self.marker_tokens
        for _ in range(_ROUNDS):
            head, tail = self._find_ends(target)
            text = self._join(head, tail)
            tokens = self.work.count(text) if text else 0
            if tokens <= limit:
                return self._make_result(text, tokens, head, tail)
            target -= max(1, tokens - limit)
            if target <= 0:
                break
        return self._make_result("", 0, 0, len(self.work.text))

    def _find_ends(self, tokens: int) -> tuple[int, int]:
        end = len(self.work.text)
        if tokens <= 0:
            return 0, end
        if self.mode == "start":
            return self._find_head(tokens), end
        if self.mode == "end":
            return 0, self._find_tail(tokens)
        head = self._find_head(tokens - tokens // 2)
        return head, max(head, self._find_tail(tokens - self.work.tokens_before(head)))

    def _find_head(self, tokens: int) -> int:
        work = self.work
        offset = work.head_end(tokens)
        line = work.line_at(offset)
        if offset in (work.line_start(line), work.line_end(line)):
            return self._move_before_marker(line, offset)
        if not work.is_long(line, tokens):
            return self._move_before_marker(line, work.line_start(line))
        safe = character_boundary(work.text, work.token_boundary(offset))
        return max(safe, self._move_before_marker(line, work.line_start(line)))

    def _move_before_marker(self, line: int, offset: int) -> int:
        if self.marker[:1] in ("\n", "\r") and line and offset == self.work.line_start(line):
            return self.work.line_end(line - 1)
        return offset

    def _find_tail(self, tokens: int) -> int:
        work = self.work
        offset = work.tail_start(tokens)
        line = work.line_at(offset)
        start = work.line_start(line)
        if offset == start:
            return offset
        if not work.is_long(line, tokens):
            return work.line_start(line + 1) if line < len(work.line_ends) else len(work.text)
        return character_boundary(
            work.text, work.token_boundary(offset, forward=True), forward=True
        )

    def _join(self, head: int, tail: int) -> str:
        text = self.work.text
        if not head and tail == len(text):
            return ""
        return f"{text[:head]}{self.marker}{text[tail:]}"

    def _make_result(self, text: str, tokens: int, head: int, tail: int) -> FittedText:
        work = self.work
        return FittedText(
            text=text,
            tokens=tokens,
            removed_tokens=max(0, work.total - tokens),
            removed_lines=self._count_removed_lines(head, tail),
            changed=text != work.text,
        )

    def _count_removed_lines(self, head: int, tail: int) -> int:
        work = self.work
        ended = bool(work.line_ends) and work.line_ends[-1][1] == len(work.text)
        lines = len(work.line_ends) + (not ended)
        first = work.line_at(head - 1) + 1 if head else 0
        last = work.line_at(tail) if tail < len(work.text) else lines
        return max(0, last - first)
