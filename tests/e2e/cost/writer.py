"""A process that records calls in a ledger: `python -m tests.e2e.cost.writer LEDGER NAME COUNT`.

It prints the request id of each recorded call on its own line.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sidecar.cost.ledger import Ledger
from sidecar.cost.ledger_events import Buckets, LedgerEvent

START = datetime(2026, 11, 20, 10, tzinfo=UTC)


def event(name: str, number: int) -> LedgerEvent:
    """Return the call with the given number. It is identical in all processes."""
    return LedgerEvent(
        at=START + timedelta(seconds=number),
        model="gpt-5",
        provider="openai",
        buckets=Buckets(input=number + 1, output=1),
        session=name,
        request_id=f"{name}-{number}",
    )


def main() -> None:
    """Record calls, and print their request ids."""
    path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    ledger = Ledger(path)
    for number in range(count):
        recorded = ledger.record(event(name, number))
        sys.stdout.write(recorded.id + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
