"""Measures how long `count` takes for a folder, beside tiktoken on each whole file, as in ttok."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from benchmarks.page import figure

MEGABYTES = (1, 10, 40)
TTOK = """
import sys, pathlib
from tests.truth import encoding
encode = encoding("o200k_base").encode_ordinary
print(sum(len(encode(p.read_bytes().decode("utf-8", "replace")))
      for p in pathlib.Path(sys.argv[1]).rglob("*.py")))
"""


def run() -> None:
    """Print the times for the largest folder, and draw them by size."""
    drawn = figure("Counting a folder, whole process", "MB of source files")
    for megabytes in MEGABYTES:
        files, size, ours, theirs = _measured(megabytes * 1_000_000)
        drawn.add("token-sidecar count", size / 1e6, ours)
        drawn.add("tiktoken", size / 1e6, theirs)
    print(f"\nA folder of {files} files, {size / 1e6:.1f} MB, whole process")
    print(f"  sidecar {ours:.2f} s, tiktoken {theirs:.2f} s, {theirs / ours:.1f}x")


def _measured(most: int) -> tuple[int, int, float, float]:
    """Return the number of files, their size, and the seconds that both programs took."""
    with tempfile.TemporaryDirectory() as folder:
        size = _copy_sources(Path(folder), most)
        script = str(Path(sys.executable).with_name("token-sidecar"))
        ours, mine = _time([script, "count", "--json", folder])
        theirs, peer = _time([sys.executable, "-c", TTOK, folder])
    total = json.loads(mine)["total"]
    assert total["tokens"] == int(peer)
    return total["files"], size, ours, theirs


def _copy_sources(folder: Path, most: int) -> int:
    size = 0
    for number, path in enumerate(sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))):
        data = path.read_bytes()
        (folder / f"{number}.py").write_bytes(data)
        size += len(data)
        if size > most:
            break
    return size


def _time(command: list[str]) -> tuple[float, str]:
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - start, done.stdout
