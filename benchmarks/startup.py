"""Start-up and round trips, against a bare pygls server on pygls' own stdio loop."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.client import SERVER, URI, StdioClient
from benchmarks.corpus import source_text

BARE = [sys.executable, "-P", "-m", "benchmarks.bare_server"]
RUNS = 11


def to_initialize(command: list[str]) -> float:
    """Seconds from the start of the process to the answer of `initialize`."""
    start = time.perf_counter()
    client = StdioClient(command)
    client.initialize()
    took = time.perf_counter() - start
    client.close()
    return took


def to_first_count() -> float:
    """Seconds from the start of the process to the first exact count of a 10 KB document."""
    text = source_text(10_000)
    start = time.perf_counter()
    client = StdioClient(SERVER)
    client.initialize()
    client.open(text)
    answer = client.request("tokens/count", {"textDocument": {"uri": URI}})
    took = time.perf_counter() - start
    assert answer["method"] == "exact"
    client.close()
    return took


def command_line(path: Path) -> float:
    """Seconds of `token-sidecar count FILE`, start to end."""
    script = Path(sys.executable).with_name("token-sidecar")
    start = time.perf_counter()
    subprocess.run([str(script), "count", str(path)], check=True, capture_output=True)
    return time.perf_counter() - start


def round_trip(command: list[str], method: str) -> float:
    """Median seconds of a trivial custom request."""
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


def run() -> None:
    """Print each figure beside the bare server's, measured in turn."""
    bare, ours, first, line = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.md"
        path.write_text(source_text(2_000))
        for _ in range(RUNS):
            bare.append(to_initialize(BARE))
            ours.append(to_initialize(SERVER))
            first.append(to_first_count())
            line.append(command_line(path))
    base = statistics.median(bare)
    print(f"\nStart-up, median of {RUNS}, against a bare pygls server to `initialize`")
    print(f"  bare pygls to initialize     {base * 1e3:7.1f} ms")
    for name, times in (
        ("initialize", ours),
        ("first exact count of 10 KB", first),
        ("token-sidecar count FILE", line),
    ):
        median = statistics.median(times)
        print(f"  {name:<28} {median * 1e3:7.1f} ms   {median / base:.2f}x")
    pygls, mine = round_trip(BARE, "bench/echo"), round_trip(SERVER, "tokens/count")
    print(f"  round trip: pygls {pygls * 1e3:.3f} ms, sidecar {mine * 1e3:.3f} ms, ", end="")
    print(f"{mine / pygls:.2f}x")
