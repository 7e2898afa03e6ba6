"""A small run of `tests.fuzz.agent_secrets`: what was planted stays where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("tracer", ["strace", "audit"])
def test_nothing_planted_is_kept_and_nothing_is_written(tracer: str) -> None:
    """Without strace both look by Python's audit events."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.agent_secrets", "2"],
        cwd=ROOT,
        env={**os.environ, "TRACER": tracer},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "agents.enabled = false: none opened" in done.stdout
