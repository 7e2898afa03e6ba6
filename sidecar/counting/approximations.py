"""Models whose vocabulary cannot be run here, approximated from one that can.

For each tokenizer generation: the vocabulary to count with, the factor to multiply by, and the
error to expect. `python -m benchmarks families` prints factors and errors anew from real
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
    # Measured, by `python -m benchmarks families`; Claude against ctok's reconstruction of its
    # count endpoint.
    "claude": Approximation(_O200K, 1.24, 8.4, "calibrated"),
    "claude-4.7": Approximation(_O200K, 1.5, 12.3, "calibrated"),
    "llama3": Approximation(_O200K, 1.0, 2.3),
    "qwen2": Approximation(_O200K, 1.01, 7.4),
    "qwen3.5": Approximation(_O200K, 1.08, 12.0),
    "deepseek": Approximation(_O200K, 1.05, 6.7),
    "tekken": Approximation(_O200K, 1.06, 6.4),
    "llama2": Approximation(_O200K, 1.29, 11.2),
    "r50k_base": Approximation(_O200K, 1.53, 23.4),
    # Not measured: their vocabularies are not to be had here.
    "openai-newer": Approximation(_O200K, 1.0, None),
    "p50k_base": Approximation(_O200K, 1.3, None),
    "llama4": Approximation(_O200K, 1.0, None),
    "qwen-newer": Approximation(_O200K, 1.08, None),
    "deepseek-v2": Approximation(_O200K, 1.1, None),
    "mistral-v3": Approximation(_O200K, 1.25, None),
    "gemma": Approximation(_O200K, 1.1, None),
    "grok": Approximation(_O200K, 1.05, None),
    "kimi": Approximation(_O200K, 1.0, None),
    "glm": Approximation(_O200K, 1.0, None),
    "minimax": Approximation(_O200K, 1.0, None),
    "command": Approximation(_O200K, 1.05, None),
}
