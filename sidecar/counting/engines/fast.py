"""Engines that count faster than tiktoken, and what they hand back to it.

rs-bpe loads in 50 ms and counts 2 KB in 50 us, but holds the GIL while it does: the choice for
documents that are being edited, whose pieces are small. toktok counts several times faster still
and lets other threads run, but its first count takes 0.4 s with the GIL held: the choice for bulk.

Where an engine is known to differ from tiktoken, the piece goes to tiktoken, so that `exact` is
exact. `tests/fuzz/differences.py` finds the code points by comparing the tokens of every one in
many contexts: rs-bpe 0.1.0 has none, toktok 0.3.0 has those of Unicode 17 (tiktoken 0.14 knows
Unicode 16) and U+017F after an apostrophe. Both hand back all of them: which Unicode version is the
right one is for the reference to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from sidecar.counting.engines.reference import Reference
from sidecar.counting.tokenizer import Tokenizer
from sidecar.text.pieces import PIECE_CHARACTERS, split

if TYPE_CHECKING:
    from sidecar.text.cuts import Cuts

_DISPUTED = re.compile(
    "[\u017f\u088f\u0c5c\u0cdc\u1acf-\u1add\u1ae0-\u1aeb\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1"
    "\U00010940-\U00010959\U00010ec5-\U00010ec7\U00010efa\U00010efb\U00011b60-\U00011b67"
    "\U00011db0-\U00011ddb\U00011de0-\U00011de9\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3"
    "\U00016ff2-\U00016ff6\U000187f8-\U000187ff\U00018d09-\U00018d1e\U00018d80-\U00018df2"
    "\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6f5\U0001e6fe\U0001e6ff"
    "\U0002b73a-\U0002b73f\U0002cea2-\U0002cead\U000323b0-\U00033479]"
)


# How they begin in UTF-8, which is found ten times sooner: most texts have none of these.
_BEGINNINGS = (
    b"\xc5\xbf",
    b"\xe0\xa2\x8f",
    b"\xe0\xb1\x9c",
    b"\xe0\xb3\x9c",
    b"\xe1\xab",
    b"\xea\x9f",
)
_BEGINNINGS_OF_FOUR = tuple(
    b"\xf0" + bytes([byte]) for byte in b"\x90\x91\x96\x98\x9e\xab\xac\xb2\xb3"
)


def disputed(text: str) -> bool:
    """Whether engines are known to disagree about some character of `text`."""
    if text.isascii():
        return False
    data = text.encode("utf-8", "surrogatepass")
    beginnings = _BEGINNINGS + _BEGINNINGS_OF_FOUR if b"\xf0" in data else _BEGINNINGS
    return any(start in data for start in beginnings) and _DISPUTED.search(text) is not None


class Fast(Tokenizer):
    """A fast engine over pieces of a text, with tiktoken for what it is known to get wrong.

    `longest`: pieces of more characters go to tiktoken too, which lets other threads run.
    """

    cuts: Cuts = "lines"

    def __init__(
        self,
        name: str,
        count: Callable[[str], int],
        longest: int | None = None,
        batch: Callable[[Sequence[str]], list[int]] | None = None,
    ) -> None:
        """`batch`: counts many texts at once, where the engine can."""
        self.name = name
        self._batch = batch
        self.reference = Reference(name)
        self._count = count
        self._longest = longest

    def count(self, text: str) -> int:
        """Tokens in `text`; special tokens in it are ordinary characters."""
        if len(text) <= PIECE_CHARACTERS:
            return self._count_piece(text)
        return sum([self._count_piece(piece) for piece in split(text)])

    def slow(self, text: str) -> bool:
        """Whether a piece goes to tiktoken, which may have to be loaded first (0.3 s)."""
        return disputed(text) or (self._longest is not None and len(text) > self._longest)

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text; toktok takes them all at once, and releases the GIL."""
        if self._batch is None:
            return super().count_many(texts)
        try:
            counts = self._batch(texts)
        except UnicodeEncodeError:  # a lone surrogate in one of them
            return super().count_many(texts)
        return [
            self.count(text) if disputed(text) else tokens
            for text, tokens in zip(texts, counts, strict=True)
        ]

    def first_bytes(self, text: str, tokens: int) -> bytes | None:
        """By rs-bpe, which is soon loaded, where it is known to agree with tiktoken."""
        if disputed(text):
            return self.reference.first_bytes(text, tokens)
        try:
            encoding = _rs_bpe(self.name)
        except ImportError:
            return self.reference.first_bytes(text, tokens)
        return bytes(encoding.bpe().decode_tokens(encoding.encode(text)[:tokens]))

    def _count_piece(self, text: str) -> int:
        if self.slow(text):
            return self.reference.count(text)
        try:
            return self._count(text)
        except UnicodeEncodeError:
            return self._count(without_lone_surrogates(text))


def without_lone_surrogates(text: str) -> str:
    """`text` with U+FFFD for each lone surrogate, as tiktoken does before it counts."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def rs_bpe(name: str, longest: int | None = None) -> Fast:
    """The engine for interactive use, its tables (18 MB) read at the first count.

    Raises ImportError where rs-bpe has no wheel.
    """
    from rs_bpe.bpe import openai  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

    loaded = cache(partial(_rs_bpe, name))
    return Fast(name, lambda text: loaded().count(text), longest)


def _rs_bpe(name: str) -> Any:
    from rs_bpe.bpe import openai  # type: ignore[import-not-found,unused-ignore]

    return openai.cl100k_base() if name == "cl100k_base" else openai.o200k_base()


def toktok(name: str) -> Fast:
    """The engine for bulk. Raises ImportError where toktok-rs has no wheel."""
    from toktok import batch_count  # type: ignore[import-not-found,import-untyped,unused-ignore]

    ranks = "cl100k_base" if name == "cl100k_base" else "o200k_base"

    def batch(texts: Sequence[str]) -> list[int]:
        return list(batch_count(list(texts), ranks, threads=1))

    return Fast(name, lambda text: batch([text])[0], batch=batch)
