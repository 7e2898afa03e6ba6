"""Byte-level BPE vocabularies from files, run in tiktoken: rank files, tekken, `tokenizer.json`.

A vocabulary whose token ids rise in the order of its merges *is* a list of ranks, whatever file
holds it. tiktoken runs it some ten times faster than the `tokenizers` library, and nothing but
tiktoken need be installed for it.
"""

from __future__ import annotations

import base64
import threading
import unicodedata
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import typed
from sidecar.counting import patterns
from sidecar.counting.engines.reference import Reference
from sidecar.counting.engines.vocabularies import Vocabulary
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from pathlib import Path

    import tiktoken

    from sidecar.counting.patterns import Pattern

Ranks = dict[bytes, int]


class VocabularyError(SidecarError, ValueError):
    """A vocabulary file that is missing, unreadable, or not of a kind that can be run."""

    kind = "config"


class Ranked(Reference):
    """A byte-level BPE vocabulary, exact. Thread-safe; the encoding is built at the first count."""

    def __init__(self, name: str, ranks: Ranks, pattern: Pattern) -> None:
        super().__init__("o200k_base")
        self.name = name
        self.cuts = pattern.cuts
        self._vocabulary = Vocabulary(name, name, "", pattern.expression)
        self._ranks = ranks
        self._nfc = pattern.nfc
        self._own: tiktoken.Encoding | None = None
        self._lock = threading.Lock()

    def count(self, text: str) -> int:
        """Tokens in `text`; special tokens in it are ordinary characters."""
        if self._nfc and not unicodedata.is_normalized("NFC", text):
            text = unicodedata.normalize("NFC", text)
        if self.cuts == "lines":
            return super().count(text)
        return self.count_whole(text)

    def _encoding(self) -> tiktoken.Encoding:
        with self._lock:
            if self._own is None:
                self._own = _encoding(self._vocabulary, self._ranks)
                self._ranks = {}
            return self._own


def _encoding(vocabulary: Vocabulary, ranks: Ranks) -> tiktoken.Encoding:
    import tiktoken

    try:
        return tiktoken.Encoding(
            vocabulary.name,
            pat_str=vocabulary.pattern,
            mergeable_ranks=ranks,
            special_tokens={},
        )
    except (ValueError, AssertionError) as error:
        raise VocabularyError(f"tiktoken cannot use it: {error}") from error


def read_ranks(data: bytes) -> Ranks:
    """The ranks of a `.tiktoken` file (also Llama-3's `tokenizer.model`): base64 and rank a line.

    Raises VocabularyError where a line is anything else.
    """
    try:
        pairs = (line.split() for line in data.splitlines() if line)
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError as error:
        raise VocabularyError("it is not a rank file (base64 and rank on each line)") from error


def load_rank_file(path: Path, name: str) -> Ranked:
    """A tokenizer from a rank file; the way it splits text is known by how many ranks it has.

    Raises VocabularyError for a vocabulary whose splitting is not known, OSError when unreadable.
    """
    ranks = read_ranks(path.read_bytes())
    pattern = patterns.by_rank_count(len(ranks))
    if pattern is None:
        raise VocabularyError(
            f"a rank file of {len(ranks)} ranks is not known; name its tokenizer.json instead"
        )
    return Ranked(name, ranks, pattern)


class _TekkenConfig(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _TekkenToken(msgspec.Struct):
    rank: int
    token_bytes: str


class _Tekken(msgspec.Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]


def load_tekken(path: Path, name: str) -> Ranked:
    """A tokenizer from one of Mistral's `tekken` files, which hold more tokens than are in use.

    Raises VocabularyError where the file is not one, OSError when unreadable.
    """
    try:
        tekken = typed.decode(path.read_bytes(), _Tekken)
    except msgspec.DecodeError as error:
        raise VocabularyError("it is not a tekken file") from error
    config = tekken.config
    used = config.default_vocab_size - config.default_num_special_tokens
    ranks = {base64.b64decode(token.token_bytes): token.rank for token in tekken.vocab[:used]}
    known = patterns.by_splits((config.pattern,))
    pattern = known or patterns.Pattern("tekken", config.pattern, "none")
    return Ranked(name, ranks, pattern)


def byte_ranks(vocabulary: dict[str, int]) -> Ranks:
    """Ranks from a byte-level vocabulary, whose tokens are written in GPT-2's printable letters.

    Raises VocabularyError for a token that holds anything else (the vocabulary is of another kind).
    """
    letters = bytes_by_letter()
    try:
        return {bytes([letters[c] for c in token]): rank for token, rank in vocabulary.items()}
    except KeyError as error:
        raise VocabularyError("it is not a byte-level vocabulary") from error


def bytes_by_letter() -> dict[str, int]:
    """The letters that stand for bytes in byte-level vocabularies, with their bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


def rising(merges: list[Any], vocabulary: dict[str, int]) -> bool:
    """Whether token ids rise with the merges that make them, so that ids can serve as ranks.

    `merges` are `"a b"` strings or `[a, b]` pairs, as `tokenizer.json` holds them; Llama-3's lists
    every way to make a token, so ids may repeat.
    """
    parts = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
    made = [vocabulary.get("".join(part), -1) for part in parts]
    return -1 not in made and all(before <= after for before, after in pairwise(made))
