"""Agents' session files beside ccusage's native binary, in one run on one generated history.

    python -m benchmarks.transcripts [MEGABYTES]

CPU seconds; totals must be exact. What is measured is the reading, without the start of a process:
ccusage's own start takes a few milliseconds.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.agents.corpus import history
from sidecar.agents import ingest, live
from sidecar.agents.places import Places
from sidecar.agents.reader import readers_of
from sidecar.agents.roots import Roots
from sidecar.config.settings import Agents

if TYPE_CHECKING:
    from benchmarks.agents.truth import Truth
    from sidecar.agents.values import Call, Mark

MEGABYTES = 1_000
DAYS = 90
APPENDS = 50
_SYSTEMS = {"Linux": "linux", "Darwin": "darwin", "Windows": "win32"}
_MACHINES = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64", "arm64": "arm64"}
PEER = f"ccusage-{_SYSTEMS[platform.system()]}-{_MACHINES[platform.machine()]}"


@dataclass
class Reading:
    """Our side: what the server would keep."""

    home: Path
    marks: dict[str, Mark] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = Agents(sources=("claude-code", "codex"))
        self.readers = readers_of(settings)
        self.places = Places.of(settings, {"HOME": str(self.home)})

    def ingest(self) -> float:
        """CPU seconds of reading what is new."""
        start = time.process_time()
        stores = ingest.plan(self.readers, self.places, self.marks).stores
        for batch in ingest.read(self.readers, stores, self.marks):
            self.marks[batch.mark.path] = batch.mark
            self.calls.update({call.request: call for call in batch.calls})
        return time.process_time() - start

    def check(self, *truths: Truth) -> None:
        """The totals are those of the generator, to the token."""
        usages = [call.usage for call in self.calls.values()]
        totals = [truth.total for truth in truths]
        assert sum(one.prompt_tokens for one in usages) == sum(one.prompt for one in totals)
        assert sum(one.output_tokens for one in usages) == sum(one.output for one in totals)


def run() -> None:
    """Write a history, read it, and print each figure beside the peer's."""
    megabytes = int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdecimal() else MEGABYTES
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        truths = history(home, megabytes)
        spread(home)
        binary = peer(Path(folder, "peer"))
        print(
            f"\nSession files: {megabytes} MB, {len(truths[0].calls) + len(truths[1].calls)} calls"
        )
        _measure(Reading(home), binary, truths)


def _measure(ours: Reading, binary: Path, truths: tuple[Truth, Truth]) -> None:
    peer = peer_cpu(binary, ours.home, "daily", "--offline", "--json")
    cold, unchanged = ours.ingest(), ours.ingest()
    ours.check(*truths)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    first, appended = _live(ours)
    status = peer_cpu(binary, ours.home, "statusline", "--offline", "--no-cache")
    for name, seconds, other in (
        ("cold ingest", cold, peer),
        ("nothing changed", unchanged, peer),
        ("first context number", first, status),
        ("one appended line, p50", appended, status),
    ):
        print(f"  {name:<24} {seconds * 1e3:9.1f} ms   {seconds / other:.5f}x of {other:.2f} s")
    print(f"  resident memory at most  {peak:9.1f} MB, the generator's truth in it")


def _live(ours: Reading) -> tuple[float, float]:
    """CPU seconds to the first context number, and to the next after a line was appended."""
    start = time.process_time()
    roots = Roots.of([ours.home / "work" / "0"])
    day = time.time_ns() - 86_400 * 10**9
    seen = live.look(ours.readers, ours.places, roots, since_ns=day)
    first = time.process_time() - start
    session = next(one for one in seen.sessions if one.source == "claude-code")
    line = Path(session.path).read_bytes().splitlines()[-1]
    times = []
    for number in range(APPENDS):
        with open(session.path, "ab") as file:
            file.write(line.replace(b"msg_", b"msg_%d" % number) + b"\n")
        start = time.process_time()
        seen = live.look_again(ours.readers, ours.places, roots, seen, [session.path])
        found = live.store_at(ours.readers, ours.places, session.path)
        for batch in ingest.read(ours.readers, [found] if found else [], ours.marks):
            ours.marks[batch.mark.path] = batch.mark
        times.append(time.process_time() - start)
    return first, statistics.median(times)


def spread(home: Path) -> None:
    """Give the files the times of three months' work, in the order they were written in."""
    files = sorted(home.rglob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    for index, path in enumerate(files):
        at = time.time() - DAYS * 86_400 * (len(files) - 1 - index) / len(files)
        os.utime(path, (at, at))


def peer(folder: Path) -> Path:
    """ccusage's native binary, installed into `folder`."""
    npm = shutil.which("npm")
    assert npm, "the peer needs npm"
    folder.mkdir()
    subprocess.run([npm, "init", "-y"], cwd=folder, check=True, capture_output=True)
    subprocess.run([npm, "install", "--silent", f"@ccusage/{PEER}@20"], cwd=folder, check=True)
    binary = next((folder / "node_modules" / "@ccusage" / PEER / "bin").iterdir())
    binary.chmod(0o755)
    return binary


def peer_cpu(binary: Path, home: Path, *arguments: str) -> float:
    """CPU seconds of the peer."""
    status = {
        "session_id": "x",
        "transcript_path": str(next((home / ".claude" / "projects").rglob("*.jsonl"))),
        "cwd": str(home),
        "model": {"id": "claude-opus-5", "display_name": "Opus"},
        "workspace": {"current_dir": str(home), "project_dir": str(home)},
        "version": "2.1.240",
        "cost": {"total_cost_usd": 1},
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [str(binary), *arguments],
        env={**os.environ, "HOME": str(home)},
        input=json.dumps(status).encode(),
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    run()
