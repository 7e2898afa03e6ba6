"""Measures `check` on a large folder, cold (on one core and on all cores) and warm, beside repomix.

Usage: `python -m benchmarks.check [FILES]`. By default, the folder has 20,000 files of 10 KB of
real code, with a .gitignore, budgets, sections and a group. repomix is installed from npm. Its
security check is switched off and its output discarded, because only its token count is compared.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.corpus import source_text
from benchmarks.page import figure, installed
from benchmarks.startup import Took, children

REPOMIX = "repomix@1.14.0"
FILES = 20_000
MEAN_BYTES = 10_000
RUNS = 3

CONFIGURATION = """\
[[budget]]
files = "*"
max-tokens = 5600
warn-at = 1.0
[[budget]]
files = "*.md"
max-tokens = 1000000000
sum = true
sections = { "Section 3" = 900 }
"""
IGNORED = "*.log\n*.pyc\n__pycache__/\nnode_modules/\n/dist/\nbuild/\n.venv/\n!keep.log\n"


class Times(NamedTuple):
    """The times for one folder: ours on a cold and a warm run, and repomix's."""

    size: int
    cold: Took
    warm: Took
    theirs: float
    said: str


def run(files: int = FILES) -> None:
    """Print the times of cold runs, warm runs and repomix, and draw them by size."""
    drawn = figure("`check` of a tree, whole process", "files of 10 KB")
    with tempfile.TemporaryDirectory() as folder:
        peer = _repomix(Path(folder))
        for fewer in dict.fromkeys(max(1, files // share) for share in (100, 10, 1)):
            here = Path(folder) / str(fewer)
            times = _measured(here, fewer, peer)
            drawn.add("check, cold", fewer, times.cold[0])
            drawn.add("check, warm", fewer, times.warm[0])
            drawn.add("repomix", fewer, times.theirs)
        cores = _cores(here, here / "tree")
    size, cold, warm, theirs, said = times
    print(f"\ncheck on {files:,} files, {size / 1e6:.0f} MB, whole process ({said})")
    print(f"  cold {cold[0]:.2f} s, repomix {theirs:.2f} s: {cold[0] / theirs:.3f} of it")
    print(
        f"  warm {warm[0]:.3f} s (best of {RUNS}): 1/{cold[0] / warm[0]:.0f} of cold, "
        f"CPU 1/{cold[1] / warm[1]:.0f}"
    )
    print(cores)


def _measured(folder: Path, files: int, peer: list[str]) -> Times:
    """Create a folder with its own state folder, and measure it."""
    tree = folder / "tree"
    size = make_tree(tree, files)
    time.sleep(2.5)  # the cache ignores files that have just been written
    cold, said = _check(folder, tree)
    warm = min(_check(folder, tree)[0] for _ in range(RUNS))
    return Times(size, cold, warm, _seconds([*peer, str(tree)], folder), said)


def make_tree(tree: Path, files: int) -> int:
    """Create the same files in 20 x 20 folders each time, and return their size in bytes."""
    chance = random.Random(1)
    lines = source_text(8_000_000).split("\n")
    size = 0
    for number in range(files):
        path = tree / f"d{number % 20}" / f"e{number // 20 % 20}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        markdown = number % 4 == 0
        data = _text(chance, lines, markdown).encode()
        path.with_suffix(".md" if markdown else ".py").write_bytes(data)
        size += len(data)
    (tree / ".gitignore").write_text(IGNORED)
    (tree / ".token-sidecar.toml").write_text(CONFIGURATION)
    return size


def _text(chance: random.Random, lines: list[str], markdown: bool) -> str:
    """Return consecutive lines with 50 % to 150 % of the mean size."""
    at = chance.randrange(len(lines) - 5_000)
    wanted = chance.randrange(MEAN_BYTES // 2, MEAN_BYTES * 3 // 2)
    made: list[str] = []
    size = 0
    while size < wanted:
        if markdown and len(made) % 60 == 0:
            made.append(f"## Section {len(made) // 60}")
        made.append(lines[at])
        size += len(lines[at]) + 1
        at = (at + 1) % len(lines)
    return "\n".join(made)


def _check(folder: Path, tree: Path, *options: str, cores: int | None = None) -> tuple[Took, str]:
    """Return the time of a complete run, and the last line that it prints."""
    command = [sys.executable, "-P", "-m", "sidecar", "check", str(tree), *options]
    # The user's own settings are ignored.
    env = {key: value for key, value in os.environ.items() if not key.startswith("TOKEN_SIDECAR_")}
    env["TOKEN_SIDECAR_STATE"] = str(folder / "state")

    def confine() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    start, used = time.perf_counter(), children()
    done = subprocess.run(
        command,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=confine if cores else None,
    )
    took = time.perf_counter() - start, children() - used
    assert done.returncode in (0, 1), done.stderr
    return took, done.stdout.splitlines()[-1]


def _cores(folder: Path, tree: Path) -> str:
    """Return the times of cold runs on one core and on all available cores, measured in turn."""
    if not hasattr(os, "sched_setaffinity"):
        return "  one core against all: not on this system"
    ours = len(os.sched_getaffinity(0))
    one, every = [], []
    for _ in range(RUNS):
        one.append(_check(folder, tree, "--no-cache", cores=1)[0])
        every.append(_check(folder, tree, "--no-cache", cores=ours)[0])
    (alone, _), (together, used) = min(one), min(every)
    return (
        f"  cold on one core {alone:.2f} s, on {ours} {together:.2f} s (best of {RUNS}, in turn): "
        f"{alone / together:.2f}x, {used / together:.2f} cores busy"
    )


def _repomix(folder: Path) -> list[str]:
    """Install repomix, and return the command that runs it."""
    npm = shutil.which("npm")
    assert npm, "the peer needs npm"
    subprocess.run([npm, "init", "-y"], cwd=folder, check=True, capture_output=True)
    subprocess.run([npm, "install", "--silent", REPOMIX], cwd=folder, check=True)
    installed(folder / "node_modules" / "repomix")
    binary = folder / "node_modules" / ".bin" / "repomix"
    return [str(binary), "--quiet", "--no-security-check", "-o", os.devnull]


def _seconds(command: list[str], folder: Path) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    run(*(int(argument) for argument in sys.argv[1:]))
