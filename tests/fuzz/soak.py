"""Tests many random edits: `python -m tests.fuzz.soak --edits 100000`.

After each edit, the document's text must equal the reference model's text. After most edits, the
document is also counted incrementally. The count with each exact vocabulary must equal tiktoken's
count of the whole text. The incremental estimate for another model must equal the estimate of the
whole text.

One third of the documents are longer than 20 KB. If anything differs, the exit code is 1 and the
seed is printed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from sidecar.counting.exact_engines import Reference, engine
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.text.document import Encoding, TextDocument
from tests.document_counts import document_tokens
from tests.fuzz import edits, oracle

EDITS_PER_DOCUMENT = 100
ESTIMATED = ("claude-sonnet-4-5", "claude-opus-4-7", "gemini-2.5-pro", "gpt2", "my-own-model")
"""Models with calibrated or estimated counts. Each document uses one of them."""
ENCODINGS: tuple[Encoding, ...] = ("utf-8", "utf-16", "utf-32")


def soak_document(seed: int, wanted: int, names: tuple[str, ...]) -> int:
    """Make `wanted` random edits to a random document, and return its final length.

    Raises:
        AssertionError: A count differs from the reference count.
    """
    rng = random.Random(seed)
    size = rng.randrange(20_500, 60_000) if seed % 3 == 0 else rng.randrange(1, 4_000)
    piece = rng.choice((64, 256, 2_048, 16_384))
    doc = TextDocument(
        "untitled:soak",
        edits.document_text(rng, size),
        encoding=rng.choice(ENCODINGS),
        piece_characters=piece,
        spare_pieces=rng.choice((4, 64)),
    )
    text, model = doc.text, ESTIMATED[seed % len(ESTIMATED)]
    estimate = Tokenizers().for_model(model).base
    for number in range(wanted):
        span, new = edits.edit(rng, doc)
        text = oracle.edited(text, span, new, doc.encoding)
        doc.apply(span, new)
        assert doc.text == text, f"seed {seed}, edit {number}: the texts differ"
        if rng.random() < 0.2:
            continue  # The next count includes both edits.
        for name in names:
            tokens = document_tokens(doc, engine(name))
            full = Reference(name).count_whole(text)
            assert tokens == full, f"seed {seed}, edit {number}, {name}: {tokens}, not {full}"
        tokens, full = document_tokens(doc, estimate), estimate.count(text)
        assert tokens == full, f"seed {seed}, edit {number}, {model}: {tokens}, not {full}"
    return len(text)


def main() -> int:
    """Edit documents until enough edits have been made, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocabulary", action="append", choices=("o200k_base", "cl100k_base"))
    args = parser.parse_args()
    names = tuple(args.vocabulary or ("o200k_base", "cl100k_base"))
    began, done, documents, long, seed = time.monotonic(), 0, 0, 0, args.seed
    while done < args.edits:
        wanted = min(EDITS_PER_DOCUMENT, args.edits - done)
        try:
            long += soak_document(seed, wanted, names) > 20_000
        except AssertionError as error:
            sys.stderr.write(f"DIFFERENT: {error}\n")
            return 1
        done, documents, seed = done + wanted, documents + 1, seed + 1
        if documents % 100 == 0:
            sys.stderr.write(f"{done} edits: no difference\n")
    sys.stdout.write(
        f"{done} edits of {documents} documents ({long} over 20 KB), {' and '.join(names)}: "
        f"all counts equal to tiktoken's, all estimates equal to those of the whole texts, "
        f"{time.monotonic() - began:.0f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
