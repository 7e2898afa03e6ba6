"""Exact engines for the vocabularies that are shipped, each a `Tokenizer`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

from sidecar.counting.engines.vocabularies import VOCABULARIES, DamagedRanksError

if TYPE_CHECKING:
    from sidecar.counting.engines.fast import Fast
    from sidecar.counting.engines.reference import Reference

__all__ = ["DamagedRanksError", "Purpose", "engine", "names"]

Purpose = Literal["interactive", "bulk", "reference"]
"""`interactive`: soon ready, small pieces. `bulk`: many large texts, several threads, no server.
`reference`: tiktoken, which all others are held against."""

INTERACTIVE_CHARACTERS = 65_536
"""Longer pieces (a stretch without a safe cut) are counted by tiktoken, which releases the GIL."""

_lock = threading.Lock()
_made: dict[tuple[str, Purpose], Fast | Reference] = {}


def names() -> list[str]:
    """The vocabularies that can be counted exactly without anything from outside."""
    return list(VOCABULARIES)


def engine(name: str, purpose: Purpose = "interactive") -> Fast | Reference:
    """The engine for a vocabulary, made once; it is loaded by its first count (50 ms or more).

    Raises KeyError for a vocabulary that is not shipped (see `names`).
    """
    with _lock:
        key = (VOCABULARIES[name].name, purpose)
        if key not in _made:
            _made[key] = _make(name, purpose)
        return _made[key]


def _make(name: str, purpose: Purpose) -> Fast | Reference:
    from sidecar.counting.engines import fast, reference

    if purpose == "reference":
        return reference.Reference(name)
    try:
        if purpose == "bulk":
            return fast.toktok(name)
        return fast.rs_bpe(name, INTERACTIVE_CHARACTERS)
    except ImportError:
        return reference.Reference(name) if purpose == "interactive" else _make(name, "interactive")
