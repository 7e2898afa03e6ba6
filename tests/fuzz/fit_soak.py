"""Shortens 10,000 random strings to random lengths: `python -m tests.fuzz.fit_soak [N] [SEED]`.

Each result must be within the limit, contain no split characters, and not change when it is
shortened again. If no line takes more than a twentieth of the limit, at least 95 % of the limit
must be used.
"""

from __future__ import annotations

import random
import sys
import unicodedata
from typing import TYPE_CHECKING

from sidecar.counting.fitting import MARKER, FittedText, fit
from sidecar.counting.model_tokenizers import Tokenizers

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation

MODELS = ("gpt-5", "gpt-4", "claude-opus-4-7", "no-such-model")
MODES: tuple[Truncation, ...] = ("start", "middle", "end")
WORDS = [
    *(
        "the",
        "quick",
        "brown",
        "fox",
        "def",
        "return",
        "self.value",
        "=",
        "None",
        "日本語",
        "テスト",
    ),
    *(
        "한국어",
        "😀",
        "👩\u200d👩\u200d👧",
        "e\u0301",
        "👍🏽",
        "🇩🇪🇫🇷",
        "\t",
        "\r\n",
        "\n\n",
        "12345",
    ),
    *('{"a":', "[1,2]}", "aGVsbG8gd29ybGQ=", "internationalization", "//", "<|endoftext|>"),
]
RANGES = [
    *((32, 127), (0x4E00, 0x4F00), (0x1F1E6, 0x1F200), (0x200C, 0x200E), (0x300, 0x310), (10, 14)),
    *((0x1F3FB, 0x1F400), (0xD800, 0xE000), (0x1F600, 0x1F640), (0x80, 0x3000)),
]
JOINERS = "\u200d\u200c"


def random_text(source: random.Random) -> str:
    """Return up to several thousand characters of words, numbered lines or arbitrary code
    points.
    """
    length = source.choice((0, 1, 3, 20, 100, 600, 2000))
    kind = source.random()
    if kind < 0.5:
        between = source.choice((" ", "\n", "", "\r\n"))
        return "".join(source.choice(WORDS) + between for _ in range(length))
    if kind < 0.8:
        lines = (f"line {n} {source.choice(WORDS)}" for n in range(length))
        return "\n".join(lines) + source.choice(("", "\n"))
    return "".join(map(chr, (_code_point(source) for _ in range(length))))


def _code_point(source: random.Random) -> int:
    return source.randrange(*source.choice(RANGES))


def torn(text: str, cut: int) -> bool:
    """Return whether a cut splits a surrogate pair, a combining sequence or an emoji sequence."""
    if not 0 < cut < len(text):
        return False
    before, after = text[cut - 1], text[cut]
    if before in "\r\n" or after in "\r\n":
        return before == "\r" and after == "\n"
    stack = text[max(0, cut - 64) : cut + 64]
    if all(unicodedata.category(c)[0] == "M" or c in JOINERS for c in stack[1:]):
        return False  # No language uses this many combining marks per character.
    return (
        ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
        or unicodedata.category(after) in ("Mn", "Me", "Mc")
        or JOINERS[0] in (before, after)
    )


def cuts(text: str, fitted: FittedText, mode: Truncation) -> list[int]:
    """Return the offsets at which `text` was cut."""
    if mode == "end":
        return [len(text) - len(fitted.text)]
    if mode == "start" or MARKER not in fitted.text or MARKER in text:
        return [len(fitted.text)] if text.startswith(fitted.text) else []
    head, tail = fitted.text.split(MARKER)
    return [len(head), len(text) - len(tail)]


def check(
    text: str, tokens: int, mode: Truncation, model: str, tokenizers: Tokenizers
) -> float | None:
    """Check a result, and return the fraction of the limit that the result uses.

    Return None if a small fraction is acceptable, for example because the text has long lines.
    """
    tokenizer = tokenizers.for_model(model)
    fitted = fit(text, tokens, mode, tokenizer)
    assert tokenizer.count(fitted.text) == fitted.tokens <= tokens
    assert not fit(fitted.text, tokens, mode, tokenizer).changed
    assert not any(torn(text, cut) for cut in cuts(text, fitted, mode))
    longest = max(map(tokenizer.count, text.splitlines()), default=0)
    if not fitted.changed or not tokens or tokenizer.method != "exact" or longest > tokens / 20:
        return None
    return fitted.tokens / tokens


def main(rounds: int = 10_000, seed: int = 0) -> None:
    """Shorten and check all texts, and print the smallest fraction of the limit that was used."""
    source, tokenizers = random.Random(seed), Tokenizers()
    shares = []
    for number in range(rounds):
        text, model = random_text(source), source.choice(MODELS)
        total = tokenizers.for_model(model).count(text)
        tokens = source.choice((0, 1, 2, source.randrange(total + 3), source.randrange(total + 3)))
        mode = source.choice(MODES)
        try:
            share = check(text, tokens, mode, model, tokenizers)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, text {number}: {model} {mode} {tokens}") from error
        shares += [share] if share is not None else []
    assert min(shares) >= 0.95
    print(
        f"{rounds} texts shortened, all within the limit; {len(shares)} texts with short lines "
        f"used at least {100 * min(shares):.1f} % of it"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
