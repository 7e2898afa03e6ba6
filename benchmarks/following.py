"""Measures a server that follows agents' session files: first context, appended lines and memory.

Usage: `python -m benchmarks.following [MEGABYTES]`. CPU time is that of all threads of the server's
process, as Linux reports it. The peer is ccusage's statusline on the same history.
"""

from __future__ import annotations

import os
import re
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.corpus import history
from benchmarks.agents.truth import WORDS
from benchmarks.client import SERVER, StdioClient
from benchmarks.page import figure
from benchmarks.transcripts import peer, peer_cpu, sizes, spread

if TYPE_CHECKING:
    from benchmarks.agents.claude import Transcript
    from benchmarks.agents.truth import Truth

STARTS = 5
MOST_SECONDS = 600.0
APPENDS = 50
CONTENTS = WORDS[3:40].encode()
"""A string that nearly every message of the history contains."""


class Server(StdioClient):
    """A server with one root folder and another home folder."""

    def __init__(self, home: Path, state: Path) -> None:
        env = {**os.environ, "HOME": str(home), "TOKEN_SIDECAR_STATE": str(state)}
        with (state / "log").open("ab") as log:
            super().__init__([*SERVER, "--log-level", "DEBUG"], stderr=log, env=env)
        self.initialize(home / "work" / "0")

    def context(self, tokens: int | None) -> None:
        """Wait for a status whose context has this number of tokens."""
        shown = None
        while shown != tokens:
            params = self.receive().get("params") or {}
            shown = (params.get("context") or {}).get("tokens")

    def peak(self) -> float:
        """Return the largest resident memory so far, in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


class Times(NamedTuple):
    """Median times in seconds and peak memory in megabytes, for one history."""

    first: float
    took: float
    line: float
    status: float
    peak: float


def run() -> None:
    """Print the figures for the largest history, and draw them by size."""
    line = figure("An appended line through the server (CPU)", "MB of session files")
    wall = figure("Following session files (wall)", "MB of session files")
    with tempfile.TemporaryDirectory() as folder:
        binary = peer(Path(folder, "peer"))
        for megabytes in sizes():
            here = Path(folder, str(megabytes))
            times = _measured(here, megabytes, binary)
            line.add("token-sidecar (p50)", megabytes, times.line)
            line.add("ccusage statusline", megabytes, times.status)
            wall.add("first context (p50)", megabytes, times.first)
            wall.add("all read and priced", megabytes, times.took)
            if megabytes == sizes()[0]:
                _show(megabytes, times)
                _check_contents(here / "home", here / "state")


def _measured(here: Path, megabytes: int, binary: Path) -> Times:
    """Create a history and follow it."""
    home, state = here / "home", here / "state"
    state.mkdir(parents=True)
    truths = history(home, megabytes)
    spread(home)
    status = peer_cpu(binary, home, "statusline", "--offline", "--no-cache")
    session = _newest(home)
    firsts = [_first(home, state, session) for _ in range(STARTS)]
    server = Server(home, state)
    took = _read_all(server, state, (*truths, session.home.truth))
    lines = _appended(server, session)
    peak = server.peak()
    server.close()
    return Times(statistics.median(firsts), took, statistics.median(lines), status, peak)


def _show(megabytes: int, times: Times) -> None:
    share = times.status / times.line
    print(f"\nFollowing sessions through the server: {megabytes} MB")
    print(f"  first context after `initialized`, p50 {times.first * 1e3:7.1f} ms")
    print(f"  all of it read and priced       {times.took:9.1f} s wall")
    print(f"  an appended line, CPU p50       {times.line * 1e3:9.2f} ms, 1/{share:,.0f}")
    print(f"    of the peer's status line     {times.status * 1e3:9.1f} ms")
    print(f"  memory at most                  {times.peak:9.1f} MB")


def _first(home: Path, state: Path, session: Transcript) -> float:
    """Return the seconds from `initialized` to the first status with a context."""
    server = Server(home, state)
    start = time.perf_counter()
    server.context(session.home.truth.context[session.id])
    took = time.perf_counter() - start
    server.close()
    return took


def _read_all(server: Server, state: Path, truths: tuple[Truth, ...]) -> float:
    """Return the seconds until the ledger contains all calls with their exact tokens."""
    start, totals = time.perf_counter(), [truth.total for truth in truths]
    server.request("cost/detail", {})
    wanted = (
        sum(len(truth.calls) for truth in truths),
        sum(one.prompt for one in totals),
        sum(one.output for one in totals),
    )
    while (found := _totals(state))[0] < wanted[0]:
        since = time.perf_counter() - start
        assert since < MOST_SECONDS, (found, wanted)
        time.sleep(min(0.5, max(0.01, since / 20)))  # measures with a precision of 5 %
    took = time.perf_counter() - start
    while found != wanted:  # copies and ends of replies may follow the last new call
        assert time.perf_counter() - start < MOST_SECONDS, (found, wanted)
        time.sleep(0.5)
        found = _totals(state)
    return took


def _totals(state: Path) -> tuple[int, int, int]:
    """Return the number of calls in the ledger, their input and their output tokens."""
    with closing(sqlite3.connect(f"file:{state / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        count, prompt, output = ledger.execute(
            "SELECT count(*),"
            " sum(input + cache_read + cache_write_5m + cache_write_1h + cache_write),"
            " sum(output + reasoning) FROM event"
        ).fetchone()
        return int(count), int(prompt or 0), int(output or 0)


def _newest(home: Path) -> Transcript:
    """Create a session in the server's root folder that is less than an hour old."""
    claudes = ClaudeHome(home / ".claude", seed=9)
    claudes.clock.now = datetime.now(UTC) - timedelta(minutes=50)
    session = claudes.session(home / "work" / "0")
    session.user()
    session.reply()
    return session


def _appended(server: Server, session: Transcript) -> list[float]:
    """Append lines, and return the CPU seconds until each correct number is shown."""
    times = []
    for _ in range(APPENDS):
        start = server.cpu()
        session.reply(blocks=1)
        server.context(session.home.truth.context[session.id])
        times.append(server.cpu() - start)
        time.sleep(0.1)
    return times


def _check_contents(home: Path, state: Path) -> None:
    """Check that neither the server's files nor its log contain text from messages."""
    kept = [path for path in state.rglob("*") if path.is_file()]
    bearing = sum(CONTENTS in path.read_bytes() for path in home.rglob("*.jsonl"))
    assert bearing
    found = [path.name for path in kept if CONTENTS in path.read_bytes()]
    print(f"  messages in {bearing} session files, in {len(kept)} files of ours: {len(found)}")
    assert found == []


if __name__ == "__main__":
    run()
