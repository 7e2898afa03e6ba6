"""A short run of `tests.fuzz.message_soak`. CONTRIBUTING.md shows how to start the long one."""

from __future__ import annotations

import pytest

from tests.fuzz.message_soak import soak


@pytest.mark.parametrize(("seed", "end"), [(1, "exit"), (2, "oversized")])
def test_every_request_is_answered_once(seed: int, end: str) -> None:
    soak(1_500, seed, end)
