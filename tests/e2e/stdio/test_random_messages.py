"""Runs `tests.fuzz.message_soak` briefly. CONTRIBUTING.md explains how to run it for longer."""

from __future__ import annotations

import pytest

from tests.fuzz.message_soak import soak


@pytest.mark.parametrize(("seed", "end"), [(1, "exit"), (2, "oversized")])
def test_every_request_is_answered_once(seed: int, end: str) -> None:
    soak(1_500, seed, end)
