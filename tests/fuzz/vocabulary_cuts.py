"""Tests safe split points with real vocabularies: `python -m tests.fuzz.vocabulary_cuts [N]`.

Random text is split wherever `sidecar.text.document` permits. The counts of the parts must add up to
the count of the whole. The vocabularies come from splintr and from GGUF files, which
`python -m tests.e2e.llama.vocabularies` downloads.
"""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Callable
from functools import partial

from sidecar.counting import exact_engines
from sidecar.counting.vocabulary_files import BytePairTokenizer, load
from sidecar.text.document import split
from tests.e2e.llama.vocabularies import FOLDER
from tests.fuzz.edits import STOCK

BETWEEN = ["\n", "\n  ", "\t", "/", "'s", " ", "\r\n", "1", "é", "\u0301", "。", "x", "\x1f", "ſ"]


def tokenizers() -> dict[str, Callable[[str], int]]:
    """Return the counts without splitting, by the name of each tokenizer with safe cuts."""
    found: dict[str, Callable[[str], int]] = {}
    for generation, vocabulary in exact_engines.bundled().items():
        if vocabulary.has_safe_cuts:
            tokenizer = exact_engines.splintr_tokenizer(vocabulary.splintr)
            found[generation] = partial(_length, tokenizer.encode_ordinary)
    for file in sorted(FOLDER.glob("ggml-vocab-*.gguf")):
        try:
            loaded = load(file, file.name)
        except ValueError:  # SentencePiece models in GGUF files have no safe split points.
            continue
        if isinstance(loaded, BytePairTokenizer) and loaded.has_safe_cuts:
            found[file.name] = loaded.count_whole
    return found


def _length(encode: Callable[[str], list[int]], text: str) -> int:
    return len(encode(text))


def random_text(source: random.Random, stock: str) -> str:
    """Return random text with characters that add and remove split points."""
    parts = []
    for _ in range(source.randrange(1, 12)):
        start = source.randrange(len(stock))
        parts += [stock[start : start + source.randrange(1, 25)], source.choice(["", *BETWEEN])]
    return "".join(parts)


def main(rounds: int = 6_000, seed: int = 0) -> None:
    """Split and count random text, and print the number of split points."""
    source, stock, cuts = random.Random(seed), "".join(STOCK), 0
    found = tokenizers()
    for number in range(rounds):
        # Some vocabularies normalize text to NFC before they split it, so normalize it before
        # splitting here, too.
        text = unicodedata.normalize("NFC", random_text(source, stock))
        parts = list(split(text, 1))
        for name, count in found.items():
            cuts += len(parts) - 1
            apart, whole = sum(map(count, parts)), count(text)
            assert apart == whole, f"seed {seed}, text {number}: {name} {apart} {whole}"
    print(f"{cuts:,} cuts, all safe: {', '.join(found)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
