"""`tokenizer.json` files: in tiktoken where that is the same, else by the `tokenizers` library.

Byte-level BPE whose splitting is known (Llama-3, Qwen, DeepSeek, GPT-2, …) runs in tiktoken, some
ten times faster and with proven cuts. Anything else (SentencePiece, Unigram, WordPiece) needs the
extra `[huggingface]` and is counted in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import typed
from sidecar.counting import patterns
from sidecar.counting.engines.fast import without_lone_surrogates
from sidecar.counting.rank_files import Ranked, VocabularyError, byte_ranks, rising
from sidecar.counting.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.counting.patterns import Pattern


class HuggingFace(Tokenizer):
    """A tokenizer run by the `tokenizers` library. Thread-safe; special tokens count as text."""

    inline_characters = 1_000
    """What may be counted between two keystrokes: about a millisecond."""

    def __init__(self, name: str, data: bytes, dropped: bytes = b"") -> None:
        """Raises VocabularyError where the library is missing or cannot read `data`.

        Args:
            name: what counts made by it are labelled with.
            data: the `tokenizer.json`.
            dropped: bytes that the model drops, each a token in `data` that is not counted.
        """
        self.name = name
        self._dropped = dropped
        self._tokenizer = _library_tokenizer(data)

    def count(self, text: str) -> int:
        """Tokens in `text`, nothing added before or after it."""
        try:
            return self._encode(text)
        except (UnicodeEncodeError, TypeError):  # which of them depends on the version
            return self._encode(without_lone_surrogates(text))

    def _encode(self, text: str) -> int:
        # The batch call lets other threads run, and works out no offsets.
        tokens = len(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])
        if not self._dropped:
            return tokens
        encoded = text.encode()
        return tokens - sum([encoded.count(byte) for byte in self._dropped])


def _library_tokenizer(data: bytes) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise VocabularyError(
            "it needs the tokenizers library: install token-sidecar[huggingface]"
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exception
        raise VocabularyError(f"the tokenizers library cannot read it: {error}") from error
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def load_tokenizer_json(path: Path, name: str) -> Ranked | HuggingFace:
    """A tokenizer from a `tokenizer.json`. Some tenths of a second for a big vocabulary.

    Raises VocabularyError where it cannot be run here, OSError when unreadable.
    """
    data = path.read_bytes()
    try:
        spec = typed.decode(data, dict[str, Any])
    except msgspec.DecodeError as error:
        raise VocabularyError("it is not a tokenizer.json") from error
    return ranked(spec, name) or HuggingFace(name, data)


def ranked(spec: dict[str, Any], name: str) -> Ranked | None:
    """The same tokenizer for tiktoken, or None where it would not be the same."""
    model, pattern = _table(spec.get("model")), _pattern(spec)
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if pattern is None or model.get("type") != "BPE":
        return None
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        return None
    if model.get("byte_fallback") or model.get("dropout") or not rising(merges, vocabulary):
        return None
    made = _usable(vocabulary, spec)
    return Ranked(name, byte_ranks(made), pattern)


def _usable(vocabulary: dict[str, int], spec: dict[str, Any]) -> dict[str, int]:
    """The vocabulary without special tokens, which text never becomes."""
    special = {_table(token).get("content") for token in spec.get("added_tokens") or ()}
    return {token: rank for token, rank in vocabulary.items() if token not in special}


def _pattern(spec: dict[str, Any]) -> Pattern | None:
    """The known pattern that `pre_tokenizer` and `normalizer` amount to, else None."""
    steps = _steps(spec.get("pre_tokenizer"), "pretokenizers")
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    splits = tuple(_expression(step) for step in steps[:-1])
    if steps[-1].get("use_regex", True):
        pattern = patterns.GPT2 if not splits else None
    else:
        pattern = None if None in splits else patterns.by_splits(tuple(map(str, splits)))
    if pattern is None:
        return None
    normalizers = _steps(spec.get("normalizer"), "normalizers")
    if [step.get("type") for step in normalizers] == ["NFC"]:
        return msgspec.structs.replace(pattern, nfc=True)
    return None if normalizers else msgspec.structs.replace(pattern, nfc=False)


def _expression(step: dict[str, Any]) -> str | None:
    isolated = step.get("type") == "Split" and step.get("behavior") == "Isolated"
    if not isolated or step.get("invert"):
        return None
    found = _table(step.get("pattern")).get("Regex")
    return found if isinstance(found, str) else None


def _steps(node: object, key: str) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer or normalizer, a sequence or a single one."""
    if node is None:
        return []
    table = _table(node)
    inside = table.get(key)
    return [_table(step) for step in inside] if isinstance(inside, list) else [table]


def _table(node: object) -> dict[str, Any]:
    return node if isinstance(node, dict) else {}
