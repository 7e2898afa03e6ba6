"""Tests that an unusable ledger is reported, and that no calls are lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sidecar.cost import ledger as ledger_file
from sidecar.cost.ledger import Ledger, LedgerError
from sidecar.cost.ledger_events import LedgerEvent
from tests.unit.cost_calls import call_of

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "state" / "ledger.db")
    yield made
    made.close()


def call(number: int) -> LedgerEvent:
    return call_of(
        at=datetime(2026, 11, 20, 10, tzinfo=UTC),
        tokens=number,
        session=f"a session with a long name {number}" * 5,
        request_id=f"request-{number}",
    )


def calls(ledger: Ledger) -> int:
    with ledger.reader() as connection:
        (found,) = connection.execute("SELECT count(*) FROM event").fetchone()
    return int(found)


def record(ledger: Ledger, numbers: range) -> int:
    """Record calls until the ledger fails, and return how many were recorded."""
    for done, number in enumerate(numbers):
        try:
            ledger.record(call(number))
        except LedgerError:
            return done
    return len(numbers)


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9])
def test_a_truncated_file(ledger: Ledger, left: float) -> None:
    assert record(ledger, range(200)) == 200
    ledger.close()
    os.truncate(ledger.path, int(ledger.path.stat().st_size * left))
    before = record(ledger, range(1000, 1200))
    assert before < 200
    with pytest.raises(LedgerError, match=r"damaged|cannot be used"):
        ledger.record(call(1000 + before))


def test_a_file_that_another_process_locks(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.record(call(1))
    ledger.close()
    monkeypatch.setattr(ledger_file, "BUSY_SECONDS", 0.2)
    command = [sys.executable, "-c", HOLD, str(ledger.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LedgerError, match="locked"):
            ledger.record(call(2))
        holder.communicate(b"")
    ledger.record(call(2))
    assert calls(ledger) == 2


def test_a_full_disk(ledger: Ledger) -> None:
    """Earlier calls are kept while the disk is full, and recording continues once there is space."""
    resource = pytest.importorskip("resource", reason="Windows has no limits of this kind")
    kept = record(ledger, range(50))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in ledger.path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 300_000, hard))
    try:
        more = record(ledger, range(50, 5_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert 0 < more < 4_950
    assert calls(ledger) == kept + more
    ledger.record(call(10_000))
    assert calls(ledger) == kept + more + 1
