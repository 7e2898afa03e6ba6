"""Models whose vocabulary cannot be run here, approximated from one that can.

For each tokenizer generation: the vocabulary to count with, the factor to multiply by, and the
error to expect. `python -m benchmarks.estimates --families DIR` prints the table anew from real
vocabularies; a row whose vocabulary is not to be had has no measured error, and says so.
"""

from __future__ import annotations

import msgspec

from sidecar.counting.count import Method


class Approximation(msgspec.Struct, frozen=True):
    """How a generation is counted without its own vocabulary."""

    basis: str
    """The engine that counts in its place."""
    factor: float
    """Tokens of this generation for each token of the basis."""
    error_percent: float | None
    """Mean absolute error of a document's count, in percent; None where it was not measured."""
    method: Method = "estimate"


_O200K = "o200k_base"

TABLE: dict[str, Approximation] = {
    "claude": Approximation(_O200K, 1.2, None, "calibrated"),
    "claude-4.7": Approximation(_O200K, 1.5, None, "calibrated"),
    "openai-newer": Approximation(_O200K, 1.0, None),
    "p50k_base": Approximation("cl100k_base", 1.2, None),
    "r50k_base": Approximation("cl100k_base", 1.5, None),
    "llama3": Approximation("cl100k_base", 1.0, None),
    "llama4": Approximation(_O200K, 1.0, None),
    "llama2": Approximation(_O200K, 1.2, None),
    "qwen2": Approximation(_O200K, 1.05, None),
    "qwen3.5": Approximation(_O200K, 1.0, None),
    "qwen-newer": Approximation(_O200K, 1.0, None),
    "deepseek": Approximation(_O200K, 1.05, None),
    "deepseek-v2": Approximation(_O200K, 1.1, None),
    "tekken": Approximation(_O200K, 1.1, None),
    "mistral-v3": Approximation(_O200K, 1.2, None),
    "gemma": Approximation(_O200K, 1.1, None),
    "grok": Approximation(_O200K, 1.05, None),
    "kimi": Approximation(_O200K, 1.0, None),
    "glm": Approximation(_O200K, 1.0, None),
    "minimax": Approximation(_O200K, 1.0, None),
    "command": Approximation(_O200K, 1.05, None),
}
