"""The limit, the usable window and the percentage of a context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.context.usable_window import Limit, Window, percent, resolve_limit, usable

tokens = st.integers(0, 10**7)
limits = st.integers(1, 10**7)


@pytest.mark.parametrize(
    ("limit", "reserve", "expected"),
    [
        (16_384, 500, 15_884),
        (1_000, 500, 750),  # at most a quarter is reserved
        (2_000, 500, 1_500),
        (4, 500, 3),
        (3, 500, 3),
        (1, 500, 1),
        (100, 0, 100),
    ],
)
def test_usable(limit: int, reserve: int, expected: int) -> None:
    assert usable(limit, reserve) == expected


@given(tokens, limits, st.integers(0, 10**6))
def test_percent_rounds_down_and_ends_at_100(used: int, limit: int, reserve: int) -> None:
    room = usable(limit, reserve)
    shown = percent(used, limit, reserve)
    assert 1 <= room <= limit
    assert shown == 100 or shown * room <= 100 * used < (shown + 1) * room
    assert (shown == 100) == (used >= room)


@given(tokens, limits)
def test_over_means_negative_available_tokens(used: int, limit: int) -> None:
    window = Window(Limit(limit, "catalogue"))
    assert window.over(used) == (window.available(used) < 0)


def test_first_known_limit_is_used() -> None:
    known = {"request": 1, "transcript": 2, "endpoint": 3, "catalogue": 4}
    for source in ("request", "transcript", "endpoint", "catalogue"):
        assert resolve_limit(**known) == Limit(known.pop(source), source)
    assert resolve_limit() == Limit(16_384, "default")


def test_setting_limits_and_replaces_unknown_limits() -> None:
    assert resolve_limit(endpoint=8_000, setting=4_000) == Limit(4_000, "settings")
    assert resolve_limit(request=8_000, setting=4_000) == Limit(4_000, "settings")
    assert resolve_limit(endpoint=8_000, setting=8_000) == Limit(8_000, "endpoint")
    assert resolve_limit(endpoint=8_000, setting=9_000) == Limit(8_000, "endpoint")
    assert resolve_limit(setting=40_000) == Limit(40_000, "settings")
