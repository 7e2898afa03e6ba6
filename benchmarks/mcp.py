"""Compares the MCP server with a minimal one on the same SDK, and measures `context_usage`.

Usage: `python -m benchmarks.mcp [MEGABYTES]`. The figures are the wall time from the start of the
process to the answer of `tools/list`, the resident memory at that moment, and the wall time of
`context_usage` for the newest session after a call was appended.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.corpus import history
from benchmarks.page import figure
from benchmarks.transcripts import sizes, spread

OURS = [str(Path(sys.executable).with_name("token-sidecar")), "mcp"]
BARE = [sys.executable, "-m", "benchmarks.bare_mcp_server"]
RUNS = 9
CALLS = 15
SETTLED_SECONDS = 120.0
"""Seconds to wait until the history is indexed."""


class McpClient:
    """Starts a server, identifies as Claude Code, and sends one request at a time."""

    def __init__(self, command: list[str], folder: Path, home: Path) -> None:
        path = os.pathsep.join((str(Path.cwd()), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "HOME": str(home), "PYTHONPATH": path}
        environment["TOKEN_SIDECAR_STATE"] = str(home / "state")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, cwd=folder, env=environment
        )
        self._in = cast("IO[bytes]", self.process.stdin)
        self._out = cast("IO[bytes]", self.process.stdout)
        self._ids = itertools.count(1)
        self.request(
            "initialize",
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "claude-code", "version": "1"},
            },
        )
        self._send({"method": "notifications/initialized"})

    def _send(self, message: dict[str, Any]) -> None:
        self._in.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._in.flush()

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result."""
        number = next(self._ids)
        self._send({"id": number, "method": method, "params": params})
        while line := self._out.readline():
            message = json.loads(line)
            if message.get("id") == number and "method" not in message:
                return cast("dict[str, Any]", message["result"])
        raise EOFError("the server has exited")

    def context_usage(self) -> dict[str, Any]:
        """Return the data in the answer of the tool `context_usage`."""
        result = self.request("tools/call", {"name": "context_usage", "arguments": {}})
        assert not result.get("isError"), result
        return cast("dict[str, Any]", result["structuredContent"])

    def resident_bytes(self) -> int:
        """Return the process's resident memory. For Linux."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """End the server."""
        self._in.close()
        self._out.close()
        self.process.wait(10)


def run() -> None:
    """Print start-up time and memory of both servers, and the times of `context_usage`."""
    with tempfile.TemporaryDirectory() as name:
        _compare_starts(Path(name))
        drawn = figure("`context_usage` of the MCP server", "MB of session files")
        for megabytes in sizes():
            median, longest = _time_context_usage(Path(name, str(megabytes)), megabytes)
            drawn.add("token-sidecar", megabytes, median)
            print(
                f"  context_usage, {megabytes:5,} MB of sessions: {median * 1e3:6.1f} ms "
                f"(longest {longest * 1e3:.1f}, at most 50)",
                flush=True,
            )


def _compare_starts(folder: Path) -> None:
    ours, bare = [], []
    for _ in range(RUNS + 1):  # the first run writes the bytecode
        bare.append(_start(BARE, folder))
        ours.append(_start(OURS, folder))
    print(f"\nMCP server, median of {RUNS}, against a bare server on the same SDK")
    for title, at, scale, unit in (
        ("start to tools/list", 0, 1e3, "ms"),
        ("memory before the first count", 1, 2**-20, "MB"),
    ):
        mine = statistics.median(run[at] for run in ours[1:])
        theirs = statistics.median(run[at] for run in bare[1:])
        print(
            f"  {title:<30} {mine * scale:7.1f} {unit}, bare {theirs * scale:7.1f} {unit}, "
            f"{mine / theirs:.2f}x (at most 1.3)"
        )


def _start(command: list[str], folder: Path) -> tuple[float, int]:
    start = time.perf_counter()
    client = McpClient(command, folder, folder)
    client.request("tools/list", {})
    took, memory = time.perf_counter() - start, client.resident_bytes()
    client.close()
    return took, memory


def _time_context_usage(home: Path, megabytes: int) -> tuple[float, float]:
    """Return the median and the longest time of a call after the history is indexed."""
    history(home, megabytes)
    spread(home)
    root = home / "work" / "0"
    claude = ClaudeHome(home / ".claude", seed=99)
    claude.clock.now = datetime.now(UTC)
    session = claude.session(root)
    session.user()
    session.reply()
    client = McpClient(OURS, root, home)
    until = time.monotonic() + SETTLED_SECONDS
    while "costUsd" not in client.context_usage() and time.monotonic() < until:
        time.sleep(0.5)
    times = []
    for _ in range(CALLS):
        session.reply()
        start = time.perf_counter()
        usage = client.context_usage()
        times.append(time.perf_counter() - start)
        assert usage["tokens"] == claude.truth.context[session.id]
    client.close()
    return statistics.median(times), max(times)


if __name__ == "__main__":
    run()
