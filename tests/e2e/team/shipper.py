"""Ships the calls of several users, one user at a time, until all queues are empty.

Run it as `python -m tests.e2e.team.shipper FOLDER...`. Each folder contains the state and
configuration of a user.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from sidecar.config.load import load
from sidecar.config.paths import state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.shipping import CollectorError, Shipped, open_collector, open_queue, ship

BATCH = 200


def become(user: Path) -> None:
    """Switch to a user's configuration, state and salt."""
    os.environ["TOKEN_SIDECAR_CONFIG"] = str(user / "config.toml")
    os.environ["TOKEN_SIDECAR_STATE"] = str(user / "state")


async def ship_once(user: Path) -> Shipped:
    become(user)
    settings = load(None).settings
    book = CostBook(state_dir())
    try:
        queue = open_queue(book, settings)
        assert queue is not None
        async with open_collector(queue, settings.ledger.otel_endpoint or "") as collector:
            return await ship(queue, collector, limit=BATCH)
    finally:
        book.close()


async def main(users: list[Path]) -> None:
    while users:
        left = []
        for user in users:
            try:
                if (await ship_once(user)).busy:
                    left.append(user)
            except CollectorError:
                left.append(user)
                await asyncio.sleep(0.1)
        users = left


if __name__ == "__main__":
    asyncio.run(main([Path(name) for name in sys.argv[1:]]))
