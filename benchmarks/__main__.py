"""`python -m benchmarks [PART …] [--html FILE]`: every figure beside its peer, in one run.

All parts by default; `--html` draws what is measured over size, log-log, on one page.

Parts: startup, editing, opening, folder, estimates, conversations, occupancy, check, ledger,
transcripts, following, idle, memory, mcp, neovim-chats, neovim-startup. Beside these `fit-estimates`, which
writes the table of estimates anew.
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
    """Run parts; with `--html` their figures are drawn on one page too."""
    file: Path | None = None
    if "--html" in arguments[:-1]:
        at = arguments.index("--html")
        file = Path(arguments[at + 1])
        arguments = arguments[:at] + arguments[at + 2 :]
    if unknown := set(arguments) - {*PARTS, "fit-estimates"}:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}\n{__doc__}")
    # As installed: modules are compiled once, not at every start.
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
