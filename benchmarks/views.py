"""Measures how long each view and report takes to open with a history of 1 GB indexed.

Usage: `python -m benchmarks.views [MEGABYTES]`. The real server runs on the folder of one of 20
projects, and on a folder that contains all of them, so that its lists and reports cover the whole
history. A figure is the wall time from a request to its answer, as an editor waits for it; `CPU` is
the server's mean processor time, which other programs do not change. For Linux.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.corpus import history
from benchmarks.client import SERVER, StdioClient
from benchmarks.page import figure
from benchmarks.transcripts import sizes, spread

RUNS = 15
LONGEST_MS = 200
"""The limit for opening a view, in milliseconds."""
QUIET_SECONDS = 5
"""The history is indexed when the server has been idle for this long."""

VIEWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("context view, newest session", "context/page", {}),
    ("context/usage with contents", "context/usage", {"contents": True}),
    ("context/usage, largest file", "context/usage", {"contents": True, "session": "LARGEST"}),
    ("sessions of the last day", "context/sessions", {}),
    ("all sessions", "context/sessions", {"all": True, "limit": 100}),
    ("all sessions by cost", "context/sessions", {"all": True, "limit": 100, "order": "cost"}),
    (
        "all sessions by context",
        "context/sessions",
        {"all": True, "limit": 100, "order": "context"},
    ),
    ("all sessions, no limit", "context/sessions", {"all": True}),
    ("cost/detail by model", "cost/detail", {"by": ["model"]}),
    ("cost/detail by session", "cost/detail", {"by": ["session"]}),
    ("cost page of a month by model", "cost/page", {"period": "month", "by": "model"}),
    ("cost page of all by model", "cost/page", {"period": "all", "by": "model"}),
    ("cost page of all by session", "cost/page", {"period": "all", "by": "session"}),
    ("cost page of all by agent", "cost/page", {"period": "all", "by": "agent"}),
    ("cost page of all by day", "cost/page", {"period": "all", "by": "day"}),
)


class Timing(NamedTuple):
    """The times of one view, in seconds."""

    wall: list[float]
    cpu: list[float]

    def __str__(self) -> str:
        median, longest = statistics.median(self.wall), max(self.wall)
        return (
            f"{median * 1e3:6.1f} ms, longest {longest * 1e3:6.1f} (at most {LONGEST_MS}), "
            f"CPU {statistics.mean(self.cpu) * 1e3:6.1f}"
        )


def run() -> None:
    """Print the times for the largest history, and draw them by size."""
    drawn = figure("Opening a view in a project (p50)", "MB of session files")
    for megabytes in sizes():
        with tempfile.TemporaryDirectory() as name:
            home = Path(name)
            largest = _write_history(home, megabytes)
            timings = _measure(home, home / "work" / "0", largest)
            for view, timing in timings.items():
                drawn.add(view, megabytes, statistics.median(timing.wall))
            if megabytes == sizes()[0]:
                print(f"\nViews with {megabytes:,} MB indexed, in one of 20 projects")
                _show(timings)
                print(f"Views with {megabytes:,} MB indexed, in the folder of all projects")
                _show(_measure(home, home / "work", largest))


def _show(timings: dict[str, Timing]) -> None:
    for view, timing in timings.items():
        print(f"  {view:<30} {timing}", flush=True)


def _write_history(home: Path, megabytes: int) -> Path:
    """Write session files, including one that is in use, and return the largest file."""
    history(home, megabytes)
    spread(home)
    claude = ClaudeHome(home / ".claude", seed=99)
    claude.clock.now = datetime.now(UTC)
    newest = claude.session(home / "work" / "0")
    newest.user()
    for _ in range(40):
        newest.reply()
        newest.tool_result()
    projects = (home / ".claude" / "projects").glob("*work-0/*.jsonl")
    return max(projects, key=lambda path: path.stat().st_size)


def _measure(home: Path, folder: Path, largest: Path) -> dict[str, Timing]:
    """Return the times of each view in a folder after the whole history is indexed."""
    environment = {**os.environ, "HOME": str(home), "TOKEN_SIDECAR_STATE": str(home / "state")}
    client = StdioClient(SERVER, env=environment)
    client.initialize(folder)
    report = client.request("cost/detail", {"by": ["session"]})  # reads the whole history
    _wait_until_quiet(client)
    print(f"  {len(report['rows']):,} sessions, {report['totals']['calls']:,} calls")
    timings = {view: Timing([], []) for view, _, _ in VIEWS}
    for _ in range(RUNS):
        for view, method, params in VIEWS:
            session = {"session": largest.stem} if params.get("session") else {}
            start, cpu = time.perf_counter(), client.cpu()
            answer = client.request(method, {**params, **session})
            timings[view].wall.append(time.perf_counter() - start)
            timings[view].cpu.append(client.cpu() - cpu)
            assert answer, view
    client.close()
    return timings


def _wait_until_quiet(client: StdioClient) -> None:
    """Wait until the server uses little processor time."""
    before, quiet = client.cpu(), 0
    while quiet < QUIET_SECONDS:
        time.sleep(1)
        used, before = client.cpu() - before, client.cpu()
        quiet = quiet + 1 if used < 0.1 else 0


if __name__ == "__main__":
    run()
