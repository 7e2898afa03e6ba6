"""Vocabulary files of every kind that can be run, recognised by their name and first bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.counting.rank_files import VocabularyError, load_rank_file, load_tekken
from sidecar.counting.sentence_piece import is_model

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.counting.tokenizer import Tokenizer

MAX_BYTES = 256 * 1024 * 1024
"""Of a vocabulary: the largest known are under 40 MB. A GGUF's weights are not read."""


def load(file: Path, name: str) -> Tokenizer:
    """The tokenizer in a file. Blocking: some tenths of a second.

    Raises:
        VocabularyError: It cannot be run here; the message says why, and what would help.
        OSError: It is missing or unreadable.
    """
    with file.open("rb") as opened:
        head = opened.read(64)
    if head[:4] == b"GGUF":
        from sidecar.counting.gguf import load_gguf

        return load_gguf(file, name)
    if file.stat().st_size > MAX_BYTES:
        raise VocabularyError("it is too large for a vocabulary (over 256 MB)")
    if is_model(head):
        from sidecar.counting.sentence_piece import load_sentence_piece

        return load_sentence_piece(file, name)
    if head.lstrip()[:1] != b"{":
        return load_rank_file(file, name)
    if "tekken" in file.name:
        return load_tekken(file, name)
    from sidecar.counting.huggingface import load_tokenizer_json

    return load_tokenizer_json(file, name)
