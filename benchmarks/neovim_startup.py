"""Measures our share of Neovim's start-up time, with three chat plugins and lualine.

Usage: `python -m benchmarks.neovim_startup [--runs 21]`. Neovim's own clock (`--startuptime`)
reports the time for the files in our folder. The benchmark prints its median beside the median of
the whole start, and fails above 1 ms.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.neovim.chat_plugins import ALL
from tests.e2e.neovim.harness import NVIM, SHIM, environment
from tests.e2e.neovim.plugins import folder, on_path

MOST_MS = 1.0
LUALINE = "require('lualine').setup({ sections = { lualine_x = { 'token_sidecar' } } })"
OURS = rf"{re.escape(str(SHIM))}|require\('(?:lualine\.components\.)?token_sidecar"
SOURCED = re.compile(rf"(\d+\.\d+)  (\d+\.\d+)(?:  \d+\.\d+)?: .*(?:{OURS})")
"""A line of the log with the time for a file, including the files that it loads."""


def start(init: Path, log: Path, state: Path) -> tuple[float, float]:
    """Start Neovim, and return the milliseconds for our files and for the whole start."""
    log.unlink(missing_ok=True)
    command = [
        str(NVIM),
        "--headless",
        "--clean",
        "-u",
        str(init),
        "--startuptime",
        str(log),
        "+qa",
    ]
    subprocess.run(command, env=environment(state), capture_output=True, check=True)
    lines = log.read_text("utf-8").splitlines()
    ours = sum(float(found[2]) for line in lines if (found := SOURCED.match(line)))
    return ours, max(float(line.split()[0]) for line in lines if re.match(r"\d", line))


def run(runs: int = 21) -> int:
    """Print our share of the start. The exit code is 1 if it is too large."""
    if folder() is None:
        print("\nNeovim's start: the chat plugins are not installed")
        return 0
    with tempfile.TemporaryDirectory() as kept:
        here = Path(kept)
        init = here / "init.lua"
        lua = [f"vim.opt.runtimepath:prepend('{SHIM}')", *(each.lua for each in ALL)]
        init.write_text("\n".join([*lua, on_path("lualine.nvim"), LUALINE]), "utf-8")
        made = [start(init, here / "log", here) for _ in range(runs)]
    ours, whole = (statistics.median(column) for column in zip(*made, strict=True))
    share = 100 * ours / whole
    print(
        f"\nNeovim's start, median of {runs}: ours {ours:.2f} ms of {whole:.1f} ms, {share:.1f} %"
    )
    return int(ours > MOST_MS)


def main() -> int:
    """Run only this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=21)
    return run(parser.parse_args().runs)


if __name__ == "__main__":
    sys.exit(main())
