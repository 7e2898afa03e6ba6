"""The command line: one file a verb, imported only when that verb runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidecar.cli.group import VERBS, main

__all__ = ["VERBS", "main"]


def __getattr__(name: str) -> Any:
    """What click reads, once someone asks: a plain `check` or `count` does without (20 ms)."""
    if name not in __all__:
        raise AttributeError(name)
    from sidecar.cli import group

    return getattr(group, name)
