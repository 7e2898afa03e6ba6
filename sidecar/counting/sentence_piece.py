"""SentencePiece vocabularies: a maker's `.model` file, or the pieces that a GGUF header holds.

The `sentencepiece` library runs them, which llama.cpp's own tokenizer of this kind agrees with; it
is the extra `[sentencepiece]`. Cutting such a text is not exact: it is counted in full.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from sidecar.counting.engines.fast import without_lone_surrogates
from sidecar.counting.rank_files import VocabularyError
from sidecar.counting.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_BPE = 2


class SentencePiece(Tokenizer):
    """A tokenizer run by the `sentencepiece` library. Thread-safe."""

    inline_characters = 1_000
    """What may be counted between two keystrokes: about a millisecond."""

    def __init__(self, name: str, model: bytes) -> None:
        """Raises VocabularyError where the library is missing or cannot read `model`."""
        self.name = name
        self._processor = _processor(model)

    def count(self, text: str) -> int:
        """Tokens in `text`, nothing added before or after it."""
        try:
            return len(self._processor.encode(text))
        except (UnicodeEncodeError, RuntimeError):  # which of them depends on the version
            return len(self._processor.encode(without_lone_surrogates(text)))


def _processor(model: bytes) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise VocabularyError(
            "it needs the sentencepiece library: install token-sidecar[sentencepiece]"
        ) from error
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except Exception as error:  # the library raises RuntimeError, and others for foreign files
        raise VocabularyError(f"the sentencepiece library cannot read it: {error}") from error


def is_model(head: bytes) -> bool:
    """Whether a file begins as SentencePiece's do: with a piece, in protocol buffers."""
    return len(head) > 4 and head[0] == head[2] == 0x0A and head[3] <= head[1] - 2


def load_sentence_piece(path: Path, name: str) -> SentencePiece:
    """The tokenizer of a `.model` file. Raises VocabularyError, OSError."""
    return SentencePiece(name, path.read_bytes())


def of_pieces(
    name: str,
    pieces: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],
    *,
    space_before: bool,
) -> SentencePiece:
    """The tokenizer of pieces with their scores and types, as a GGUF header lists them.

    `space_before`: whether a text counts as if a space stood before it. Raises VocabularyError.
    """
    listed = b"".join(
        _field(1, _field(1, piece.encode()) + _float(2, score) + _number(3, kind))
        for piece, score, kind in zip(pieces, scores, types, strict=False)
    )
    trainer = _number(3, _BPE) + _number(4, len(pieces)) + _number(35, 1)
    normalizer = _field(1, b"identity") + _number(3, space_before) + _number(4, 0) + _number(5, 1)
    return SentencePiece(name, listed + _field(2, trainer) + _field(3, normalizer))


def _field(number: int, body: bytes) -> bytes:
    """A field of bytes in protocol buffers."""
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _float(number: int, value: float) -> bytes:
    return _varint(number << 3 | 5) + struct.pack("<f", value)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(int(value))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
