"""Which tokenizer counts for a model in a run of `check`, and by what name its counts are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.cli.checking.cache import Way, file_stamps
from sidecar.counting.engines import engine, names
from sidecar.counting.engines.fast import Fast, disputed
from sidecar.counting.tokenizers import Approximate, Tokenizers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.config.settings import Settings
    from sidecar.counting.count import Tokenizer

BULK_BYTES = 4_000_000
"""From so much text on, the bulk engine's half second of loading is made up for."""


class Ways:
    """The loaded tokenizers of one run, by model, for so many bytes of text."""

    def __init__(self, settings: Settings, ways: dict[str, Way], size: int) -> None:
        self._tokenizers = Tokenizers(settings.tokenizers, settings.tokenize.estimator)
        self._stamps = file_stamps(settings)
        self._ways = ways
        self._bulk = size >= BULK_BYTES
        self._made: dict[str, Tokenizer] = {}

    def tokenizer(self, model: str) -> Tokenizer:
        """The tokenizer; how it counts goes into the ways that are remembered."""
        if model not in self._made:
            chosen = self._tokenizers.for_model(model)
            made = _for_bulk(chosen) if self._bulk else chosen
            made.count("a")
            identity = made.name if made.name in names() else f"{made.name}{self._stamps}"
            self._ways[model] = Way(identity, made.name, made.method, made.error_percent)
            self._made[model] = made
        return self._made[model]


def count_many(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Each text's tokens. toktok takes them all at once, and lets other threads run meanwhile."""
    if isinstance(tokenizer, Approximate):
        return [tokenizer.scale(tokens) for tokens in count_many(texts, tokenizer.basis)]
    if not isinstance(tokenizer, Fast) or tokenizer.engine != "toktok":
        return [tokenizer.count(text) for text in texts]
    from toktok import batch_count  # type: ignore[import-not-found,import-untyped,unused-ignore]

    ranks = "cl100k_base" if tokenizer.name == "cl100k_base" else "o200k_base"
    try:
        counts: list[int] = batch_count(list(texts), ranks, threads=1)
    except UnicodeEncodeError:  # a lone surrogate in one of them
        return [tokenizer.count(text) for text in texts]
    return [
        tokenizer.count(text) if disputed(text) else tokens
        for text, tokens in zip(texts, counts, strict=True)
    ]


def _for_bulk(tokenizer: Tokenizer) -> Tokenizer:
    """The same counts, from the engine that is fastest for much text on several threads."""
    if isinstance(tokenizer, Approximate):
        made = Approximate(tokenizer.name, _for_bulk(tokenizer.basis), tokenizer.factor)
        made.method, made.error_percent = tokenizer.method, tokenizer.error_percent
        return made
    return engine(tokenizer.name, "bulk") if tokenizer.name in names() else tokenizer
