"""Runs `tests.fuzz.agent_secrets` briefly. Message text must not leave the agents' files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("tracer", ["strace", pytest.param("audit", marks=pytest.mark.slow)])
def test_no_planted_secret_is_stored_or_printed(tracer: str) -> None:
    """If strace is not available, Python's audit events are used instead."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.agent_secrets", "2"],
        cwd=ROOT,
        env={**os.environ, "TRACER": tracer},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "agents.enabled = false: none opened" in result.stdout
