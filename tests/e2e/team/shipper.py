"""Ships users' calls in separate processes.

The processes start within milliseconds, because they are forked from a server that has already
imported everything. They spend most of their time sending calls, so killing a process usually
interrupts a transfer.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from click.testing import CliRunner

from sidecar.cli.cost import cost
from sidecar.config.load import load
from sidecar.config.paths import state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.shipping import CollectorError, Shipped, open_collector, open_queue, ship

BATCH = 200
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.e2e.team.warm_imports"])


def become(user: Path) -> None:
    """Make this process use a user's own configuration and state."""
    os.environ["TOKEN_SIDECAR_CONFIG"] = str(user / "config.toml")
    os.environ["TOKEN_SIDECAR_STATE"] = str(user / "state")


async def ship_once(user: Path) -> Shipped:
    become(user)
    settings = load(None).settings
    book = CostBook(state_dir())
    try:
        queue = open_queue(book, settings)
        assert queue is not None
        async with open_collector(queue.identity.resource(), settings) as collector:
            return await ship(queue, collector, limit=BATCH)
    finally:
        book.close()


def ship_all(users: Sequence[Path], secrets: Mapping[str, str]) -> None:
    """Ship the calls of several users, one after the other, until all queues are empty."""
    os.environ.update(secrets)

    async def work(waiting: Sequence[Path]) -> None:
        while waiting:
            left = []
            for user in waiting:
                try:
                    if (await ship_once(user)).busy:
                        left.append(user)
                except CollectorError:
                    left.append(user)
                    await asyncio.sleep(0.1)
            waiting = left

    asyncio.run(work(users))


def report(user: Path, secrets: Mapping[str, str], since: str | None) -> None:
    """Run `cost ship` for a user as on the next day, with or without `--since`."""
    os.environ.update(secrets)
    become(user)
    with closing(sqlite3.connect(user / "state/ledger.db")) as connection, connection:
        connection.execute("UPDATE file_report SET day = day - 1")
    again = ["--since", since] if since else []
    done = CliRunner().invoke(cost, ["ship", *again])
    assert done.exit_code == 0, done.output
