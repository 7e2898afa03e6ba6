"""Tests the ledger with several processes, and with processes that are killed."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sidecar.cost.ledger import Ledger
from tests.e2e.cost.writer import event

if TYPE_CHECKING:
    from pathlib import Path

WRITES = 1000
KILLS = 12


def start(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.cost.writer", str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def kept(path: Path) -> tuple[list[str], int, int, int]:
    """Return a ledger's request ids, and three sums that must be consistent with them.

    The sums are the total calls in `event_sums`, the total input tokens in `event_sums`, and the
    total input tokens in `event`.
    """
    ledger = Ledger(path)
    with ledger.reader() as connection:
        ids = [row[0] for row in connection.execute("SELECT request FROM event")]
        calls, summed = connection.execute(
            "SELECT sum(calls), sum(input) FROM event_sums"
        ).fetchone()
        (single,) = connection.execute("SELECT sum(input) FROM event").fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    ledger.close()
    return ids, calls, summed, single


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path, seed: int) -> None:
    """Processes that record 1,000 calls are killed at random times and started again."""
    path = tmp_path / "state" / "ledger.db"
    rng = random.Random(seed)
    acknowledged: set[str] = set()
    points = sorted(rng.sample(range(1, WRITES), KILLS))
    exit_codes = set[int]()
    for point in points:
        writer = start(path, "w", WRITES)
        assert writer.stdout is not None
        for _ in range(point):
            acknowledged.add(writer.stdout.readline().strip())
        writer.kill()
        acknowledged.update(line.strip() for line in writer.stdout if line.endswith("\n"))
        exit_codes.add(writer.wait())  # a process may finish before it is killed
        writer.stdout.close()
    assert -9 in exit_codes
    last = start(path, "w", WRITES)
    output, _ = last.communicate()
    acknowledged.update(output.split())
    ids, calls, summed, single = kept(path)
    assert len(ids) == len(set(ids)) == calls == WRITES
    assert acknowledged == set(ids)
    assert summed == single == WRITES * (WRITES + 1) // 2


def test_two_writers_killed_together_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.db"
    rng = random.Random(7)
    acknowledged: set[str] = set()
    for turn in range(KILLS):
        writers = [start(path, f"{name}{turn}", 100 * WRITES) for name in ("a", "b")]
        for writer in writers:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(rng.randrange(1, WRITES // KILLS))]
            acknowledged.update(line.strip() for line in lines)
        for writer in writers:
            writer.kill()
        for writer in writers:
            assert writer.stdout is not None
            acknowledged.update(line.strip() for line in writer.stdout if line.endswith("\n"))
            assert writer.wait() == -9
            writer.stdout.close()
    ids, calls, summed, single = kept(path)
    assert len(ids) == len(set(ids)) == calls
    assert acknowledged <= set(ids)
    assert summed == single


def test_four_processes_write_at_once(tmp_path: Path) -> None:
    """Four processes create the ledger at the same time. Two of them record the same calls."""
    path = tmp_path / "state" / "ledger.db"
    writers = [start(path, name, 300) for name in ("a", "b", "c", "c")]
    outputs = [writer.communicate()[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0]
    assert all(len(output) == 300 for output in outputs)
    ids, calls, summed, single = kept(path)
    assert len(ids) == len(set(ids)) == calls == 900
    assert set(ids) == {one for output in outputs for one in output}
    assert summed == single == 3 * (300 * 301 // 2)


def test_a_long_read_does_not_block_writers(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.db"
    ledger = Ledger(path)
    ledger.record(event("here", 0))
    with ledger.reader() as connection:
        before = connection.execute("SELECT count(*) FROM event").fetchone()
        assert start(path, "there", 50).communicate()[0].count("\n") == 50
        assert connection.execute("SELECT count(*) FROM event").fetchone() == before
    ledger.close()
    assert len(kept(path)[0]) == 51
