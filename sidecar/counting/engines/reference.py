"""tiktoken, which says what is right: slow, but it lets other threads run while it counts."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from sidecar.counting.engines.vocabularies import VOCABULARIES, Vocabulary, load_ranks
from sidecar.counting.tokenizer import Tokenizer
from sidecar.text.pieces import split

if TYPE_CHECKING:
    import tiktoken

    from sidecar.text.cuts import Cuts

_lock = threading.Lock()
_encodings: dict[str, tiktoken.Encoding] = {}

# Unicode's White_Space without \r and \n, which is what \s means to tiktoken (Python's is wider).
BLANK = "\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
MANY_BLANKS = 100_000
# The look-behind keeps the search linear: it is not tried again inside a run.
LONG_BLANKS = re.compile(rf"(?<![{BLANK}])[{BLANK}]{{{MANY_BLANKS},}}+")


class Reference(Tokenizer):
    """Exact counts by tiktoken from the shipped ranks; never touches the network.

    The first count loads the ranks (0.3 s). Raises DamagedRanksError when they are damaged.
    """

    cuts: Cuts = "lines"

    def __init__(self, name: str) -> None:
        self.name = name
        self._vocabulary = VOCABULARIES[name]

    def count(self, text: str) -> int:
        """Tokens in `text`; special tokens in it are ordinary characters."""
        return sum([self.count_whole(piece) for piece in split(text)])

    def count_whole(self, text: str) -> int:
        """The same without cutting the text first: what cuts are held against."""
        if len(text) < MANY_BLANKS:
            return self._ordinary(text)
        return self._count_long(text)

    def tokens(self, text: str) -> list[int]:
        """The tokens themselves, of a text without very long runs of blanks."""
        # encode_ordinary replaces lone surrogates by U+FFFD itself.
        return self._encoding().encode_ordinary(text)

    def first_bytes(self, text: str, tokens: int) -> bytes:
        """The bytes of the first tokens."""
        return self._encoding().decode_bytes(self.tokens(text)[:tokens])

    def _ordinary(self, text: str) -> int:
        return len(self.tokens(text)) if text else 0

    def _count_long(self, text: str) -> int:
        r"""Counts around long runs of blanks, on which tiktoken's expression engine overflows.

        Such a run, the last of its whitespace, is matched by `\s+(?!\S)`: all of it at the end of
        the text, else all but its last character. That match is a piece of its own, which goes
        straight to the merging; what is before ends there, what is after begins there. At the end
        of a text cl100k's `\s++$` comes first, which may take line feeds before the run too, and
        does not overflow.
        """
        total, start = 0, 0
        for run in LONG_BLANKS.finditer(text):
            if text.startswith(("\r", "\n"), run.end()):
                continue
            last = run.end() == len(text)
            if last and r"\s++$" in self._vocabulary.pattern:
                break
            end = run.end() - (not last)
            total += self._ordinary(text[start : run.start()])
            total += len(self._encoding()._encode_single_piece(run.group()[: end - run.start()]))
            start = end
        return total + self._ordinary(text[start:])

    def _encoding(self) -> tiktoken.Encoding:
        ranks = self._vocabulary.ranks
        encoding = _encodings.get(ranks)
        if encoding is not None:
            return encoding
        with _lock:
            if ranks not in _encodings:
                _encodings[ranks] = _build(self._vocabulary)
            return _encodings[ranks]


def _build(vocabulary: Vocabulary) -> tiktoken.Encoding:
    import tiktoken

    return tiktoken.Encoding(
        vocabulary.ranks,
        pat_str=vocabulary.pattern,
        mergeable_ranks=load_ranks(vocabulary),
        special_tokens={},
    )
