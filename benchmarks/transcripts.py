"""Compares the reading of agents' session files with ccusage's native binary.

Usage: `python -m benchmarks.transcripts [MEGABYTES]`. Both read the same generated history, which
contains all known traps. Every call and every context must be exact. Figures are CPU seconds. Our
process start is not included; ccusage starts in a few milliseconds. We also read the sessions of VS
Code and Gemini CLI, 4 % of the bytes. `cold reading` does what ccusage does. `cold ingest` also
stores all calls and sessions in the ledger.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.agents.corpus import SOURCES, history
from benchmarks.agents.truth import Tokens
from benchmarks.page import figure, installed
from benchmarks.startup import children
from sidecar.agents.folders import Places, Roots
from sidecar.agents.reader_registry import Sources, readers_of
from sidecar.agents.session_index import SessionIndex
from sidecar.config.settings import Agents
from sidecar.cost.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.agents.truth import Truth
    from sidecar.agents.session_events import Store, StoredSession

MEGABYTES = 1_000
DAYS = 90
APPENDS = 50
READING = ("cold reading", "cold ingest", "nothing changed")
"""The figures for which the peer reads the whole history."""
_SYSTEMS = {"Linux": "linux", "Darwin": "darwin", "Windows": "win32"}
_MACHINES = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64", "arm64": "arm64"}
PEER = f"ccusage-{_SYSTEMS[platform.system()]}-{_MACHINES[platform.machine()]}"


class Reading:
    """A home folder's session files and their index, as in the server."""

    def __init__(self, home: Path, state: str = "state") -> None:
        self.home = home
        settings = Agents(sources=SOURCES)
        self.places = Places.of(settings, {"HOME": str(home)})
        self.readers = readers_of(settings)
        self.ledger = Ledger(home / state / "ledger.db")
        self.index = SessionIndex(self.ledger)

    def decode(self) -> float:
        """Return the CPU seconds of reading everything without storing it."""
        start = time.process_time()
        for reader in self.readers:
            for store in reader.find(self.places):
                read = reader.read(store)
                while not read.is_complete:
                    read = reader.read(store, read.state)
        return time.process_time() - start

    def ingest(self) -> float:
        """Return the CPU seconds of reading everything that is new."""
        start = time.process_time()
        self.read(one for reader in self.readers for one in reader.find(self.places))
        return time.process_time() - start

    def read(self, stores: Iterable[Store]) -> None:
        """Read everything that is new in these stores."""
        self.index.read(self.readers, self.index.unread(stores))

    def sessions(self, root: Path) -> list[StoredSession]:
        """Return the sessions of a root, newest first."""
        return self.index.sessions(Sources(self.readers, self.places, Roots.of([root])))

    def check(self, *truths: Truth) -> None:
        """Check that every call and every session's context equals that of the generator."""
        assert recorded(self.ledger) == {
            name: call for truth in truths for name, call in truth.calls.items()
        }
        shown: dict[str, int | None] = {}
        for root in sorted((self.home / "work").iterdir()):
            shown |= {one.id: one.tokens for one in self.sessions(root)}
        assert shown == {name: size for truth in truths for name, size in truth.context.items()}


def recorded(ledger: Ledger) -> dict[str, tuple[str, Tokens]]:
    """Return the session and the tokens of each call in a ledger, by its id."""
    with ledger.reader() as connection:
        rows = connection.execute(
            "SELECT request, session.name, input, cache_read,"
            " cache_write_5m + cache_write_1h + cache_write, cache_write_1h,"
            " output + reasoning, reasoning"
            " FROM event JOIN session ON session.id = event.session"
        )
        return {row[0]: (row[1], Tokens(*row[2:])) for row in rows}


def run() -> None:
    """Print the figures for the largest history, and draw them by size."""
    all_of_it = figure("Reading session files (CPU)", "MB of session files")
    status = figure("A context number from session files (CPU)", "MB of session files")
    with tempfile.TemporaryDirectory() as folder:
        binary = peer(Path(folder, "peer"))
        for megabytes in sizes():
            home = Path(folder, str(megabytes))
            truths = history(home, megabytes)
            spread(home)
            times, peak = _measured(Reading(home), binary, truths)
            for name, seconds, other in times:
                drawn, against = (all_of_it, "daily") if name in READING else (status, "statusline")
                drawn.add(name, megabytes, seconds)
                drawn.add(f"ccusage {against}", megabytes, other)
            if megabytes == sizes()[0]:
                _show(megabytes, sum(len(truth.calls) for truth in truths), times, peak)


def sizes() -> tuple[int, ...]:
    """Return the sizes of the histories in megabytes. The first one is printed."""
    whole = int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdecimal() else MEGABYTES
    return tuple(dict.fromkeys(max(1, whole // share) for share in (1, 10, 100)))


def _measured(
    ours: Reading, binary: Path, truths: tuple[Truth, ...]
) -> tuple[list[tuple[str, float, float]], float]:
    """Return each figure's name with our CPU seconds and the peer's, and the largest memory."""
    import resource

    peer = peer_cpu(binary, ours.home, "daily", "--offline", "--json")
    decoding, cold, unchanged = ours.decode(), ours.ingest(), ours.ingest()
    ours.check(*truths)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    first, appended = _live(ours)
    status = peer_cpu(binary, ours.home, "statusline", "--offline", "--no-cache")
    times = [
        ("cold reading", decoding, peer),
        ("cold ingest", cold, peer),
        ("nothing changed", unchanged, peer),
        ("first context number", first, status),
        ("one appended line, p50", appended, status),
    ]
    return times, peak


def _show(megabytes: int, calls: int, times: list[tuple[str, float, float]], peak: float) -> None:
    print(f"\nSession files: {megabytes} MB, {calls} calls")
    for name, seconds, other in times:
        print(f"  {name:<24} {seconds * 1e3:9.1f} ms   {seconds / other:.5f}x of {other:.2f} s")
    print("  every call and the context of every session are exact")
    print(f"  resident memory at most  {peak:9.1f} MB, the generator's truth in it")


def _live(ours: Reading) -> tuple[float, float]:
    """Return the CPU seconds for the first context, and for a new one after an appended line."""
    first = _first(ours)
    (session,) = [
        one for one in ours.sessions(ours.home / "work" / "0") if one.source == "claude-code"
    ][:1]
    (reader,) = (one for one in ours.readers if one.agent == "claude-code")
    line = Path(session.path).read_bytes().splitlines()[-1]
    times = []
    for number in range(APPENDS):
        with open(session.path, "ab") as file:
            file.write(line.replace(b"msg_", b"msg_%d" % number) + b"\n")
        start = time.process_time()
        store = reader.store_at(ours.places, session.path)
        ours.read([store] if store else [])
        ours.sessions(ours.home / "work" / "0")
        times.append(time.process_time() - start)
    return first, statistics.median(times)


def _first(ours: Reading) -> float:
    """Return the CPU seconds for the first context with an empty ledger."""
    fresh = Reading(ours.home, "fresh")
    start = time.process_time()
    roots = Roots.of([ours.home / "work" / "0"])
    stores = [one for reader in ours.readers for one in reader.find(ours.places, roots) if one.live]
    for store in sorted(stores, key=lambda one: -one.mtime_ns):
        fresh.read([store])
        if fresh.sessions(ours.home / "work" / "0"):
            break
    took = time.process_time() - start
    fresh.ledger.close()
    return took


def spread(home: Path) -> None:
    """Spread the files' modification times over the last three months, in the same order."""
    files = [path for path in home.rglob("*") if path.is_file()]
    files.sort(key=lambda path: path.stat().st_mtime_ns)
    end = time.time() - 3_600
    for index, path in enumerate(files):
        at = end - DAYS * 86_400 * (len(files) - 1 - index) / len(files)
        os.utime(path, (at, at))


def peer(folder: Path) -> Path:
    """Install ccusage's native binary into `folder`, and return its path."""
    npm = shutil.which("npm")
    assert npm, "the peer needs npm"
    folder.mkdir()
    subprocess.run([npm, "init", "-y"], cwd=folder, check=True, capture_output=True)
    subprocess.run([npm, "install", "--silent", f"@ccusage/{PEER}@20"], cwd=folder, check=True)
    package = folder / "node_modules" / "@ccusage" / PEER
    installed(package)
    binary = next((package / "bin").iterdir())
    binary.chmod(0o755)
    return binary


def peer_cpu(binary: Path, home: Path, *arguments: str) -> float:
    """Return the CPU seconds of the peer."""
    status = {
        "session_id": "x",
        "transcript_path": str(next((home / ".claude" / "projects").rglob("*.jsonl"))),
        "cwd": str(home),
        "model": {"id": "claude-opus-5", "display_name": "Opus"},
        "workspace": {"current_dir": str(home), "project_dir": str(home)},
        "version": "2.1.240",
        "cost": {"total_cost_usd": 1},
    }
    before = children()
    subprocess.run(
        [str(binary), *arguments],
        env={**os.environ, "HOME": str(home)},
        input=json.dumps(status).encode(),
        check=True,
        capture_output=True,
    )
    return children() - before


if __name__ == "__main__":
    run()
