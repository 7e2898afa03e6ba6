"""Runs `token-sidecar serve` for a workspace as an editor does, and records each status."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.client import SERVER, StdioClient

ANSWER_SECONDS = 30


def run_sidecar(root: Path, *arguments: str) -> str:
    """Run a command for a workspace and return its output."""
    command = [sys.executable, "-P", "-m", "sidecar", *arguments, "--workspace", str(root)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    ).stdout


class SidecarClient(StdioClient):
    """An LSP client that reads the server's messages on a separate thread."""

    def __init__(self, root: Path) -> None:
        super().__init__(SERVER, stderr=subprocess.DEVNULL)
        self.root = root
        self.statuses: list[tuple[float, dict[str, Any]]] = []
        self._results: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        folders = [{"uri": root.as_uri(), "name": "root"}]
        params: Any = {"processId": None, "capabilities": {}, "workspaceFolders": folders}
        self.request("initialize", params)
        self.notify("initialized", {})

    def wait(self, number: int) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._results, ANSWER_SECONDS):
                raise TimeoutError(f"no answer to request {number}")
            message = self._results.pop(number)
        if "error" in message:
            raise RuntimeError(message["error"])
        return message["result"]

    def context_shown_at(
        self, is_right: Callable[[int], bool], since: float, seconds: float
    ) -> float | None:
        """Wait for the right context size. Returns the time at which the status first showed it.

        Returns None after a timeout.

        Args:
            is_right: Returns whether a context size, in tokens, is right.
            since: The earliest time that is returned, from `time.monotonic()`.
            seconds: The timeout.
        """

        def shown() -> float | None:
            newest = None
            for at, status in self.statuses:
                tokens = (status.get("context") or {}).get("tokens")
                if tokens is None or not is_right(tokens):
                    newest = None
                elif newest is None:
                    newest = max(at, since)
            return newest

        return self._wait_for(shown, seconds)

    def context_text(self) -> str:
        """Return the text of the latest context in any status, or an empty string."""
        texts = [status["context"]["text"] for _, status in self.statuses if status.get("context")]
        return texts[-1] if texts else ""

    def usage(self) -> Any:
        """Return the displayed session's context usage."""
        return self.request("context/usage", {"workspace": self.root.as_uri()})

    def sessions(self) -> list[Any]:
        """Return all sessions of the workspace."""
        rows: list[Any] = self.request("context/sessions", {"workspace": self.root.as_uri()})
        return rows

    def count_recorded_calls(self) -> int:
        """Return the number of calls in the ledger, without making the server read new ones."""
        path = Path(os.environ["TOKEN_SIDECAR_STATE"]) / "ledger.db"
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as ledger:
            return int(ledger.execute("SELECT count(*) FROM event").fetchone()[0])

    def report_costs(self) -> Any:
        """Return the server's cost report. The server may read the agents' files first."""
        params = {"workspace": self.root.as_uri(), "by": ["model", "category"]}
        return self.request("cost/detail", params)

    def export_calls(self) -> list[dict[str, Any]]:
        """Record new calls from the agents' files, and return all calls in the ledger."""
        printed = run_sidecar(self.root, "cost", "export", "--format", "jsonl")
        return [json.loads(line) for line in printed.splitlines()]

    def stop(self) -> None:
        """Shut down the server as an editor does."""
        self.request("shutdown")
        self.notify("exit")
        self.process.wait(20)
        self._thread.join(20)
        self.end_streams()

    def _read(self) -> None:
        while True:
            try:
                message = self.receive()
            except (EOFError, ValueError, OSError):
                return
            with self._changed:
                if "id" in message and "method" not in message:
                    self._results[message["id"]] = message
                elif message.get("method") == "status/update":
                    self.statuses.append((time.monotonic(), message["params"]))
                self._changed.notify_all()

    def _wait_for(self, result: Callable[[], float | None], seconds: float) -> float | None:
        with self._changed:
            return self._changed.wait_for(result, seconds)
