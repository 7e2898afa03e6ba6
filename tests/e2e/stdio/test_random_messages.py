"""Runs `tests.fuzz.message_soak` briefly. CONTRIBUTING.md explains how to run it for longer."""

from __future__ import annotations

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
