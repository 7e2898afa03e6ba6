"""Runs `tests.fuzz.message_soak` and `tests.fuzz.agent_secrets` briefly.

CONTRIBUTING.md explains how to run them for longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.message_soak import soak


@pytest.mark.parametrize(
    ("messages", "seed", "end"),
    [
        (200, 1, "exit"),
        (200, 2, "oversized"),
        pytest.param(5_000, 3, "exit", marks=pytest.mark.slow),
        pytest.param(5_000, 4, "oversized", marks=pytest.mark.slow),
    ],
)
def test_every_request_is_answered_once(messages: int, seed: int, end: str) -> None:
    soak(messages, seed, end)


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
