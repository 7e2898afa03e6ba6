"""Runs benchmarks beside their peers: `python -m benchmarks [--write] [PART …]`.

By default, all parts run, and each writes its results to docs/explanation/performance.md, which
describes the parts. If parts are named, only these run, and write results only with `--write`. The
additional part `fit-estimates` writes a new table of estimates.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from importlib import import_module
from typing import TextIO

from benchmarks import page

PARTS = (
    "startup",
    "editing",
    "opening",
    "folder",
    "estimates",
    "conversations",
    "occupancy",
    "check",
    "ledger",
    "transcripts",
    "views",
    "following",
    "idle",
    "memory",
    "mcp",
    "neovim-chats",
    "neovim-startup",
)
REFIT = "fit-estimates"


def main(arguments: list[str]) -> None:
    """Run parts, print their results, and write them to the page."""
    names = [name for name in arguments if name != "--write"]
    if unknown := set(names) - {*PARTS, REFIT}:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; parts: {', '.join(PARTS)}, {REFIT}")
    # Modules are compiled once, as in an installed package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in names or PARTS:
        before = len(page.FIGURES)
        with contextlib.redirect_stdout(_Tee(sys.stdout)) as printed:
            import_module(f"benchmarks.{name.replace('-', '_')}").run()
        if not names or "--write" in arguments:
            page.write(name, printed.getvalue(), page.FIGURES[before:])


class _Tee(io.StringIO):
    """A stream that prints its text and also keeps it."""

    def __init__(self, shown: TextIO) -> None:
        super().__init__()
        self._shown = shown

    def write(self, text: str) -> int:
        self._shown.write(text)
        self._shown.flush()
        return super().write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
