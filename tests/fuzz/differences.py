"""Finds differences between our engines and tiktoken.

`python -m tests.fuzz.differences` takes five minutes. It compares the tokens of each code point in
many contexts, and of random text with contractions. The exit code is 1 if a difference is not
covered by `sidecar.counting.exact_engines.is_disputed`.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

from sidecar.counting.exact_engines import Reference, is_disputed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Encode = Callable[[str], list[int]]

NAMES = ("o200k_base", "cl100k_base")
CONTEXTS = (
    "a{c}b {c}1{c} {c}{c}A{c}'s {c}\n/",
    "x{c}{c}{c} y",
    "A{c}a{c}A  {c}",
    "{c}",
    "'{c}",
    "a'{c}b 1{c}2 '{c}e 'r{c}",
    "\n{c}\n {c}.{c}",
    # In these contexts, the character's class determines where the text around it is split.
    "{c}'sx 'll{c}'rex",
    "12{c}345{c}6 a\u0301{c}x",
    "{c}\r\n\r\n//{c}/ {c}\n\n  {c}",
)
CONTRACTIONS = "'''’sStTrReEvVmMlLdDſKİıßabA 1\n\t./\u0301\u0e31ǅʰªⅷ²\u00a0\x1c\x85\u200b"


def reference(name: str) -> Encode:
    """Return tiktoken's tokens for the text."""
    return Reference(name).tokens


def fast(engine: str, name: str) -> Encode:
    """Return an engine's tokens for the text, without falling back to tiktoken."""
    encoding: Any
    if engine == "rs-bpe":
        from rs_bpe.bpe import openai  # type: ignore[import-not-found,unused-ignore]

        encoding = openai.o200k_base() if name == "o200k_base" else openai.cl100k_base()
    else:
        from toktok import _encoding  # type: ignore[import-not-found,import-untyped,unused-ignore]

        encoding = _encoding(name)
    return lambda text: list(encoding.encode(text))


def code_points(step: int = 1, start: int = 0) -> Iterator[str]:
    """Yield every `step`th code point, except surrogates."""
    for code in range(start, 0x110000, step):
        if not 0xD800 <= code < 0xE000:
            yield chr(code)


def in_contexts(characters: Iterable[str]) -> Iterator[str]:
    """Yield each character in each context."""
    for character in characters:
        for context in CONTEXTS:
            yield context.replace("{c}", character)


def contractions(rng: random.Random, texts: int) -> Iterator[str]:
    """Yield random text with contractions in upper and lower case."""
    for _ in range(texts):
        yield "".join(rng.choices(CONTRACTIONS, k=rng.randrange(1, 12)))


def differing(texts: Iterable[str], one: Encode, other: Encode) -> Iterator[str]:
    """Return the texts that the two engines tokenize differently."""
    return (text for text in texts if one(text) != other(text))


def main() -> int:
    """Print the differences for each engine and vocabulary."""
    missed = 0
    for name in NAMES:
        for engine in ("rs-bpe", "toktok"):
            ours, truth = fast(engine, name), reference(name)
            found = list(differing(in_contexts(code_points()), ours, truth))
            found += differing(contractions(random.Random(1), 300_000), ours, truth)
            unknown = [text for text in found if not is_disputed(text)]
            missed += len(unknown)
            sys.stdout.write(f"{engine} {name}: {len(found)} texts differ, ")
            sys.stdout.write(f"{len(unknown)} unexpectedly: {unknown[:5]!r}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
