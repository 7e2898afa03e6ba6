"""Runs a real server while coding agents write their session files."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.agents.truth import Clock
from benchmarks.client import SERVER, StdioClient


class AgentsServer(StdioClient):
    """A server with one root folder. Messages are read until the expected one arrives."""

    def __init__(self, root: Path, command: list[str] = SERVER) -> None:
        super().__init__(command, stderr=subprocess.PIPE)
        self.root = root.as_uri()
        self.initialize(root)

    def heard(self, method: str, matches: Callable[[Any], bool]) -> Any:
        """Return the params of the next matching notification."""
        while True:
            for message in self.notifications:
                if message.get("method") == method and matches(message["params"]):
                    self.notifications.remove(message)
                    return message["params"]
            self.notifications.append(self.receive())

    def context(self, tokens: int | None) -> Any:
        """Return the first status that shows a context of this size."""

        def matches(status: Any) -> bool:
            shown = status["context"]
            return shown is not None and shown["tokens"] == tokens

        return self.heard("status/update", matches)

    def cost(self, *, above: float) -> Any:
        """Return the costs in the next status that shows a cost of more than `above` USD."""

        def matches(status: Any) -> bool:
            return status["cost"] is not None and status["cost"]["costUsd"] > above

        return self.heard("status/update", matches)["cost"]


def begin_now(clock: Clock) -> None:
    """Make an agent's generated session begin 50 minutes ago."""
    clock.now = datetime.now(UTC) - timedelta(minutes=50)
