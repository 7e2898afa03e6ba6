"""Finds differences between splintr and another tokenizer of the same vocabulary.

`python -m tests.fuzz.differences` takes ten minutes. It compares the tokens of each code point in
many contexts, and of random text with contractions, with tiktoken's. With a file and the name of a
vocabulary in splintr (`… tokenizer.json llama3`), the file's tokens are the truth: a
`tokenizer.json`, a SentencePiece model or a rank file. More arguments name folders whose files are
compared too. The exit code is 1 if any text has other tokens.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from sidecar.counting.exact_engines import Reference, splintr_tokenizer

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


def fast(name: str) -> Encode:
    """Return splintr's tokens for the text, with special tokens as ordinary characters."""
    return splintr_tokenizer(name).encode_ordinary


def of_file(path: Path) -> Encode:
    """Return the tokens of a vocabulary file, from its own library."""
    if path.suffix == ".json":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.encode_special_tokens = True
        return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)
    from sidecar.counting.vocabulary_files import BytePairTokenizer, load

    loaded = load(path, path.name)
    if isinstance(loaded, BytePairTokenizer):
        return loaded.tokens
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda text: list(processor.encode(text))


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


def documents(folders: Iterable[Path]) -> Iterator[str]:
    """Yield the text of each file in the folders that is UTF-8 and has at most 100 KB."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_size <= 100_000:
                try:
                    yield path.read_text("utf-8")
                except UnicodeDecodeError:
                    continue


def differing(texts: Iterable[str], one: Encode, other: Encode) -> Iterator[str]:
    """Return the texts that the two tokenizers tokenize differently."""
    return (text for text in texts if one(text) != other(text))


def main(arguments: list[str]) -> int:
    """Print the differences for each vocabulary."""
    file, name, *folders = arguments or ("", "")
    pairs = [(name, of_file(Path(file)))] if file else [(each, reference(each)) for each in NAMES]
    has_differences = False
    for each, truth in pairs:
        texts = [
            ("documents", documents(map(Path, folders))),
            ("texts with contractions", contractions(random.Random(1), 300_000)),
            ("code points in contexts", in_contexts(code_points())),
        ]
        for kind, some in texts:
            found = list(islice(differing(some, fast(each), truth), 1_000))
            has_differences = has_differences or bool(found)
            sys.stdout.write(f"{each}, {kind}: {len(found)} differ: {found[:5]!r}\n")
    return int(has_differences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
