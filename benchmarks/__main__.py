"""Runs the benchmarks: `python -m benchmarks [PART …] [--html FILE]`.

All parts run by default. Each prints its figures beside those of a peer. `--html` also draws the
figures by size on one page.

Parts: startup, editing, opening, folder, estimates, conversations, occupancy, check, ledger,
transcripts, following, idle, memory, mcp, neovim-chats, neovim-startup. The additional part
`fit-estimates` writes a new table of estimates.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.page import write

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
    "following",
    "idle",
    "memory",
    "mcp",
    "neovim-chats",
    "neovim-startup",
)


def main(arguments: list[str]) -> None:
    """Run the parts that the arguments name, and write the page for `--html`."""
    file: Path | None = None
    if "--html" in arguments[:-1]:
        at = arguments.index("--html")
        file = Path(arguments[at + 1])
        arguments = arguments[:at] + arguments[at + 2 :]
    if unknown := set(arguments) - {*PARTS, "fit-estimates"}:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}\n{__doc__}")
    # Modules are compiled once, as in an installed package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    printed: dict[str, str] = {}
    for name in arguments or PARTS:
        said = io.StringIO()
        with contextlib.redirect_stdout(said) if file else contextlib.nullcontext():
            import_module(f"benchmarks.{name.replace('-', '_')}").run()
        printed[name] = said.getvalue()
        print(printed[name], end="", flush=True)
    if file:
        write(file, printed)


if __name__ == "__main__":
    main(sys.argv[1:])
