"""Rejects settings that a repository must not change, because they could harm the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from sidecar.config.options import Layer, Problem

TRUSTED_KEYS = frozenset(
    {"endpoint", "tokenize", "tokenizer", "price", "cost", "agents", "ledger", "team"}
)
"""Keys that are ignored in a project's file.

These settings could make the program contact servers, read other files or spend money.
"""
_MESSAGE = (
    "ignored, because it can be set only in your own settings; move it to the file that "
    "`token-sidecar config init --user` creates"
)


def remove_trusted_keys(layer: Layer) -> tuple[Layer, list[Problem]]:
    """Return the layer without keys that a project must not set, and a warning for each of them."""
    refused = sorted(TRUSTED_KEYS & layer.values.keys()) if layer.source == "project" else []
    kept = {key: value for key, value in layer.values.items() if key not in refused}
    problems = [layer.problem((key,), _MESSAGE, "warning", at_key=True) for key in refused]
    return msgspec.structs.replace(layer, values=kept), problems
