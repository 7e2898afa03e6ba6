"""Budgets over several files: the other files' tokens, of open buffers and of files on disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cachetools import LRUCache, TTLCache

from sidecar.budget.evaluate import Together
from sidecar.counting.incremental import count_text
from sidecar.text.outline_marks import WORD, ignores_file
from sidecar.workspace.files import File, Text, find, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sidecar.budget.rules import Rule, Rules
    from sidecar.counting.count import Tokenizer
    from sidecar.counting.tokenizers import Tokenizers
    from sidecar.text.pieces import Piece

LISTING_SECONDS = 10.0
"""How long a folder's listing is believed: a new file counts after that at the latest."""


class SumCounts:
    """Tokens of the files that share a budget. Blocking: only for worker threads, one at a time."""

    def __init__(self) -> None:
        self._listing: TTLCache[str, list[str]] = TTLCache(16, LISTING_SECONDS)
        self._counts: LRUCache[tuple[str, str, int, int], int | None] = LRUCache(10_000)

    def together(
        self,
        rules: Rules,
        mine: tuple[Rule, ...],
        name: str,
        root: Path,
        buffers: Mapping[str, Sequence[Piece]],
        tokenizers: Tokenizers,
        model: str,
    ) -> dict[str, Together]:
        """What the other files of each sum rule hold, by the rule's key.

        `name` is the document's own relative path; `buffers` are the open documents' pieces by
        theirs, which stand for what is on disk.
        """
        found: dict[str, Together] = {}
        for rule in mine:
            if rule.budget.sum:
                tokenizer = tokenizers.for_model(rule.budget.model or model)
                files = self._files(root)
                others = [one for one in files if one != name and rules.means(rule, one)]
                counts = [self._tokens(root, other, buffers, tokenizer) for other in others]
                counted = [tokens for tokens in counts if tokens is not None]
                found[rule.key] = Together(sum(counted), len(counted) + 1)
        return found

    def _files(self, root: Path) -> list[str]:
        key = str(root)
        if key not in self._listing:
            self._listing[key] = [
                os.path.relpath(file.path, key).replace(os.sep, "/")
                for file in find([key])
                if isinstance(file, File)
            ]
        return self._listing[key]

    def _tokens(
        self, root: Path, name: str, buffers: Mapping[str, Sequence[Piece]], tokenizer: Tokenizer
    ) -> int | None:
        """None for a file that takes no part: gone, binary, or marked to be ignored."""
        if name in buffers:
            return _part("".join([piece.text for piece in buffers[name]]), tokenizer)
        path = root / name
        try:
            stat = path.stat()
        except OSError:
            return None  # gone since the listing
        key = (str(path), tokenizer.name, stat.st_mtime_ns, stat.st_size)
        if key not in self._counts:
            text = read(File(str(path), stat.st_size, named=False))
            self._counts[key] = _part(text.text, tokenizer) if isinstance(text, Text) else None
        return self._counts[key]


def _part(text: str, tokenizer: Tokenizer) -> int | None:
    return None if WORD in text and ignores_file(text) else count_text(text, tokenizer)
