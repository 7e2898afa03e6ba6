"""The vocabulary of a local GGUF model: its header only, never its weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
Byte-level BPE ("gpt2") whose splitting is known can be run, and SentencePiece ("llama": Llama 2,
Mistral, Gemma); what llama.cpp counts for the same file is what is counted.
"""

from __future__ import annotations

import struct
from itertools import count, islice
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from sidecar.counting import patterns
from sidecar.counting.rank_files import (
    Ranked,
    VocabularyError,
    byte_ranks,
    bytes_by_letter,
    rising,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.counting.tokenizer import Tokenizer

_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_LONGEST = 64 * 1024 * 1024
_MOST = 4_000_000

_PATTERNS = {
    "gpt-2": patterns.GPT2,
    "llama-bpe": patterns.LLAMA3,
    "llama3": patterns.LLAMA3,
    "llama-v3": patterns.LLAMA3,
    "qwen2": patterns.QWEN2,
    "qwen35": patterns.QWEN35,
    "deepseek-v3": patterns.DEEPSEEK,
    "gpt-4o": patterns.O200K,
    "tekken": patterns.TEKKEN,
}
"""`tokenizer.ggml.pre` to the pattern that it stands for."""

_IN_TURN = {
    "command-r": (r"\p{N}", patterns.GPT2.expression),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", patterns.GPT2.expression, "[0-9][0-9][0-9]"),
}
"""Splittings by several expressions in turn, which the `tokenizers` library does."""

_NORMAL, _BYTE = 1, 6


def load_gguf(path: Path, name: str) -> Tokenizer:
    """The tokenizer of a GGUF file. Some tenths of a second.

    Raises VocabularyError where its vocabulary cannot be run here, OSError when unreadable.
    """
    with path.open("rb") as file:
        try:
            header = read_header(file)
        except (struct.error, UnicodeDecodeError, RecursionError) as error:
            raise VocabularyError("its GGUF header is damaged") from error
    kind, pre = header.get("tokenizer.ggml.model"), header.get("tokenizer.ggml.pre")
    if kind == "llama":
        return _pieces(header, name)
    if kind == "gpt2" and pre in _IN_TURN:
        return _split_in_turn(header, name, _IN_TURN[str(pre)])
    pattern = _PATTERNS.get(str(pre)) if kind == "gpt2" else None
    if pattern is None:
        raise VocabularyError(
            f"its vocabulary (model {kind}, pre {pre}) cannot be run here: {_why(str(kind))}; "
            "an [[endpoint]] of the server that runs it would count exactly"
        )
    vocabulary = _vocabulary(header)
    return Ranked(name, byte_ranks(vocabulary), msgspec.structs.replace(pattern, nfc=False))


_WHY = {
    "gpt2": "no library splits texts as llama.cpp does for it",
    "bert": "WordPiece is llama.cpp's own here, and no library's",
    "t5": "a GGUF leaves out how Unigram normalises its texts",
    "rwkv": "no library has its tokenizer",
    "no_vocab": "it has none",
}


def _why(kind: str) -> str:
    return _WHY.get(kind, "its kind is not known")


def _pieces(header: dict[str, Any], name: str) -> Tokenizer:
    from sidecar.counting.sentence_piece import of_pieces

    lists = [header.get(f"tokenizer.ggml.{key}") for key in ("tokens", "scores", "token_type")]
    if not all(isinstance(one, list) and one for one in lists):
        raise VocabularyError("its GGUF header holds no vocabulary")
    tokens, scores, types = (one or [] for one in lists)
    before = header.get("tokenizer.ggml.add_space_prefix", True)
    return of_pieces(name, tokens, scores, types, space_before=bool(before))


def _split_in_turn(header: dict[str, Any], name: str, splits: tuple[str, ...]) -> Tokenizer:
    from sidecar.counting.huggingface import HuggingFace

    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        for split in splits
    ]
    flags = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    steps.append({"type": "ByteLevel", **flags})
    vocabulary = _vocabulary(header)
    # Falcon has no tokens for 14 control characters. llama.cpp merges around them and drops them;
    # the library would drop them first and then merge what they stood between.
    letters = bytes_by_letter().items()
    missing = {letter: byte for letter, byte in letters if letter not in vocabulary}
    vocabulary |= dict(zip(missing, count(max(vocabulary.values()) + 1), strict=False))
    model = {"type": "BPE", "vocab": vocabulary, "merges": header["tokenizer.ggml.merges"]}
    spec = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "model": model}
    data = msgspec.json.encode({"version": "1.0", "added_tokens": []} | spec)
    return HuggingFace(name, data, bytes(missing.values()))


def _vocabulary(header: dict[str, Any]) -> dict[str, int]:
    tokens, merges = header.get("tokenizer.ggml.tokens"), header.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        raise VocabularyError("its GGUF header holds no vocabulary")
    everything = {token: rank for rank, token in enumerate(tokens)}
    if not rising(merges, everything):
        raise VocabularyError("its merges are not in the order of its tokens")
    types = header.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    usual = zip(everything.items(), types, strict=False)
    return {token: rank for (token, rank), kind in usual if kind in (_NORMAL, _BYTE)}


def read_header(file: BinaryIO) -> dict[str, Any]:
    """The key-value pairs before the weights.

    Raises VocabularyError for another format, struct.error where the file ends too soon.
    """
    magic, version, _tensors, pairs = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF" or version not in (2, 3) or pairs > _MOST:
        raise VocabularyError("it is not a GGUF file of version 2 or 3")
    header: dict[str, Any] = {}
    for _ in range(pairs):
        key = _string(file)
        header[key] = _value(file, *struct.unpack("<I", file.read(4)))
    return header


def _string(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    data = file.read(length) if length <= _LONGEST else b""
    if len(data) != length:
        raise VocabularyError("its GGUF header is damaged")
    return data.decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        return _array(file)
    if kind not in _NUMBERS:
        raise VocabularyError("its GGUF header holds an unknown type")
    number = struct.Struct(f"<{_NUMBERS[kind]}")
    return number.unpack(file.read(number.size))[0]


def _array(file: BinaryIO) -> list[Any]:
    kind, length = struct.unpack("<IQ", file.read(12))
    if length > _MOST:
        raise VocabularyError("its GGUF header is damaged")
    if kind in _NUMBERS:
        layout = struct.Struct(f"<{length}{_NUMBERS[kind]}")
        return list(layout.unpack(file.read(layout.size)))
    return list(islice(iter(lambda: _value(file, kind), object()), length))
