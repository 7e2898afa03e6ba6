"""The vocabulary of a local GGUF model: its header only, never its weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
Only byte-level BPE ("gpt2") whose splitting is known can be run; what llama.cpp would count for the
same file is what is counted.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from sidecar.counting import patterns
from sidecar.counting.rank_files import Ranked, VocabularyError, byte_ranks, rising

if TYPE_CHECKING:
    from pathlib import Path

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

_NORMAL, _BYTE = 1, 6


def load_gguf(path: Path, name: str) -> Ranked:
    """The tokenizer of a GGUF file. Some tenths of a second.

    Raises VocabularyError where its vocabulary cannot be run here, OSError when unreadable.
    """
    with path.open("rb") as file:
        try:
            header = read_header(file)
        except (struct.error, UnicodeDecodeError, RecursionError) as error:
            raise VocabularyError("its GGUF header is damaged") from error
    kind, pre = header.get("tokenizer.ggml.model"), header.get("tokenizer.ggml.pre")
    pattern = _PATTERNS.get(str(pre)) if kind == "gpt2" else None
    if pattern is None:
        raise VocabularyError(
            f"its vocabulary (model {kind}, pre {pre}) cannot be run here; "
            "an [[endpoint]] of the server that runs it would count exactly"
        )
    vocabulary = _vocabulary(header)
    return Ranked(name, byte_ranks(vocabulary), msgspec.structs.replace(pattern, nfc=False))


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
