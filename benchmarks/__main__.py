"""Measures every figure beside its peer: `python -m benchmarks [--write] [PART …]`.

Without parts, all are measured, and the results are written to docs/explanation/performance.md after
each part. With parts, only these are measured; `--write` writes their results too.

docs/explanation/performance.md describes the parts. The additional part `fit-estimates` writes a new
table of estimates.
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
    """Keeps what is printed, and prints it."""

    def __init__(self, shown: TextIO) -> None:
        super().__init__()
        self._shown = shown

    def write(self, text: str) -> int:
        self._shown.write(text)
        self._shown.flush()
        return super().write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
