"""Tests a context's limit, usable window and percentage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.conversations.context_rows import context_rows, short_text
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import context_usage
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages.messages import Turn
from sidecar.messages.vendor_usage import Usage
from sidecar.models.window import Limit, Window, resolve_limit, usable
from tests.cases import read_rows

tokens = st.integers(0, 10**7)
limits = st.integers(1, 10**7)


@pytest.mark.parametrize(("limit", "reserve", "expected"), read_rows("context", "usable"))
def test_usable(limit: int, reserve: int, expected: int) -> None:
    assert usable(limit, reserve) == expected


@given(tokens, limits, st.integers(0, 10**6))
def test_percent_rounds_down_and_ends_at_100(used: int, limit: int, reserve: int) -> None:
    room = usable(limit, reserve)
    shown = Window(Limit(limit, "catalogue"), reserve).percent(used)
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


@pytest.mark.parametrize(
    ("limit", "reported", "is_known"),
    [
        (resolve_limit(), 27_076, False),
        (resolve_limit(), 16_384, True),
        (resolve_limit(setting=16_384), 27_076, True),
    ],
)
def test_a_report_larger_than_an_assumed_window_makes_the_window_unknown(
    limit: Limit, reported: int, is_known: bool
) -> None:
    session = Conversation("s", Counter("house-1", Tokenizers().for_model("house-1")))
    session.append(
        [Turn(role="user", content="hello"), Turn(role="assistant", content="hi")],
        Usage(input_tokens=reported, prompt_tokens=reported),
    )
    usage = context_usage(session, Window(limit))
    rows = {row.label: row.value for row in context_rows(usage)}
    numbers = (usage.limit, usage.usable, usage.available, usage.percent, usage.over)
    assert [number is not None for number in numbers] == [is_known] * 5
    assert ("%" in short_text(usage, "percent")) is is_known
    assert (rows["Window"] != "?") is is_known
    assert ("Over by" in rows) is is_known
    assert usage.severity == ("error" if is_known else "ok")


def test_an_estimate_larger_than_an_assumed_window_exceeds_it() -> None:
    session = Conversation("s", Counter("house-1", Tokenizers().for_model("house-1")))
    session.append([Turn(role="user", content="hello " * 20_000)])
    assert context_usage(session, Window(resolve_limit())).over
