"""Measures start-up and requests, beside a minimal pygls server.

CPU time is printed too, because other load affects it less than wall time. Modules are already
compiled, as in an installed package.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.client import SERVER, URI, StdioClient
from benchmarks.corpus import SIZES, source_text
from benchmarks.folder import TTOK
from benchmarks.page import figure

BARE = [sys.executable, "-P", "-m", "benchmarks.bare_server"]
RUNS = 11
DRAWN_RUNS = 3


Took = tuple[float, float]
"""Wall seconds until the response, and CPU seconds of the whole process."""


def to_initialize(command: list[str]) -> Took:
    """Return the time from the start of the process to the response to `initialize`."""
    start, used = time.perf_counter(), children()
    client = StdioClient(command)
    client.initialize()
    took = time.perf_counter() - start
    client.close()
    return took, children() - used


def children() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    import resource

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def to_first_count(size: int = 10_000) -> Took:
    """Return the time from the start of the process to the first exact count of a document."""
    text = source_text(size)
    start, used = time.perf_counter(), children()
    client = StdioClient(SERVER)
    client.initialize()
    client.open(text)
    answer = client.request("tokens/count", {"textDocument": {"uri": URI}})
    took = time.perf_counter() - start
    assert answer["method"] == "exact"
    client.close()
    return took, children() - used


def command_line(path: Path) -> Took:
    """Return the time of `token-sidecar count FILE`."""
    script = Path(sys.executable).with_name("token-sidecar")
    start, used = time.perf_counter(), children()
    subprocess.run([str(script), "count", str(path)], check=True, capture_output=True)
    return time.perf_counter() - start, children() - used


def round_trip(command: list[str], method: str) -> float:
    """Return the median seconds of a trivial custom request."""
    client = StdioClient(command)
    client.initialize()
    client.request(method, {"text": "hello world"})
    times = []
    for _ in range(1_000):
        start = time.perf_counter()
        client.request(method, {"text": "hello world"})
        times.append(time.perf_counter() - start)
    client.close()
    return statistics.median(times)


def medians(times: list[Took]) -> Took:
    """Return the medians of wall and CPU seconds. The first run is ignored: it compiles modules."""
    walls, cpus = zip(*times[1:], strict=True)
    return statistics.median(walls), statistics.median(cpus)


def run() -> None:
    """Print the figures of both servers, measured in turn."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    bare, ours, first, line = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.md"
        path.write_text(source_text(2_000))
        for _ in range(RUNS + 1):
            bare.append(to_initialize(BARE))
            ours.append(to_initialize(SERVER))
            first.append(to_first_count())
            line.append(command_line(path))
    base = medians(bare)
    _draw(base[0])
    print(f"\nStart-up, median of {RUNS}, against a bare pygls server to `initialize`")
    print(f"  bare pygls to initialize     {base[0] * 1e3:7.1f} ms, CPU {base[1] * 1e3:7.1f} ms")
    for name, times in (
        ("initialize", ours),
        ("first exact count of 10 KB", first),
        ("token-sidecar count FILE", line),
    ):
        wall, cpu = medians(times)
        print(
            f"  {name:<28} {wall * 1e3:7.1f} ms, CPU {cpu * 1e3:7.1f} ms, "
            f"{wall / base[0]:.2f}x and {cpu / base[1]:.2f}x"
        )
    pygls, mine = round_trip(BARE, "bench/echo"), round_trip(SERVER, "tokens/count")
    print(f"  round trip: pygls {pygls * 1e3:.3f} ms, sidecar {mine * 1e3:.3f} ms, ", end="")
    print(f"{mine / pygls:.2f}x")


def _draw(bare: float) -> None:
    """Draw the times of the first count and of `count FILE` by size."""
    first = figure(
        "From the start of the server to the first exact count", "characters of the document"
    )
    line = figure("`token-sidecar count FILE`, whole process", "characters of the file")
    for size in SIZES.values():
        times = [to_first_count(size)[0] for _ in range(DRAWN_RUNS)]
        first.add("token-sidecar", size, statistics.median(times))
        first.add("bare pygls to initialize", size, bare)
        ours, theirs = _counted_file(size)
        line.add("token-sidecar count", size, ours)
        line.add("tiktoken", size, theirs)


def _counted_file(size: int) -> tuple[float, float]:
    """Return the median seconds of our command and of a script with tiktoken, measured in turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.py"
        path.write_text(source_text(size), "utf-8")
        ours, theirs = [], []
        for _ in range(DRAWN_RUNS):
            ours.append(command_line(path)[0])
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", TTOK, folder], check=True, capture_output=True)
            theirs.append(time.perf_counter() - start)
    return statistics.median(ours), statistics.median(theirs)
