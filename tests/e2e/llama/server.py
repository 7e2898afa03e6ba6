"""Starts and stops real llama.cpp servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
START = [sys.executable, "-m", "tests.e2e.llama.child"]


@contextmanager
def llama(model: Path, *options: str, port: int = 0) -> Iterator[str]:
    """Run a llama.cpp server with this model, and yield its address. See `child` for the
    options.
    """
    process = subprocess.Popen(
        [*START, str(model), str(port), *options],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http"), f"llama.cpp did not start ({process.poll()})"
        yield url
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def port_of(url: str) -> int:
    """Return a URL's port."""
    return int(url.rpartition(":")[2])
