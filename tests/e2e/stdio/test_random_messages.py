"""A short run of `tests.fuzz.message_soak`: the long one is a command (see CONTRIBUTING.md)."""

from __future__ import annotations

import pytest

from tests.fuzz.message_soak import soak


@pytest.mark.parametrize(("seed", "end"), [(1, "exit"), (2, "oversized")])
def test_every_request_is_answered_once_and_only_exit_or_a_huge_frame_ends_it(
    seed: int, end: str
) -> None:
    soak(1_500, seed, end)
