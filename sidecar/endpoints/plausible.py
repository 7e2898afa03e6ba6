"""Counters that lie: constants, and numbers that no tokenizer can give."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.endpoints.outcome import Fault

TEXTS = (
    "hello world",
    "The quick brown fox jumps over the lazy dog, 24 times in 2048 steps;\n"
    "def answer(question: str) -> int:\n    return 42 if question else 0\n",
)
"""Two texts of which every tokenizer makes clearly different numbers of tokens."""

_SPECIALS = 4  # what a server may put around a text
_BYTES_PER_TOKEN = 512  # longer tokens than in any vocabulary: runs of blanks reach some 128


def check_texts(counts: Sequence[int], server: str) -> None:
    """Raise a Fault unless these can be counts of TEXTS."""
    for text, tokens in zip(TEXTS, counts, strict=True):
        if not possible(text, tokens):
            raise Fault("lying", f"{server} counts {tokens} tokens in {len(text)} characters")
    check_chats(counts, server)


def possible(text: str, tokens: int) -> bool:
    """Whether a tokenizer can make so many tokens of a text: at most one a byte."""
    size = len(text.encode("utf-8", "surrogatepass"))
    return size // _BYTES_PER_TOKEN <= tokens <= size + _SPECIALS


def check_chats(counts: Sequence[int], server: str) -> None:
    """Raise a Fault unless these can be counts of TEXTS, each as the only message of a chat."""
    short, long = counts
    if long < short + 8:
        raise Fault("lying", f"{server} counts {short} and {long} tokens in very different texts")
