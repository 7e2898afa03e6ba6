"""Local days and the ends of ranges, with daylight saving."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.cost.days import END_MS, day_name, day_range, since_ms, slot_offsets, until_ms
from sidecar.cost.migrations import QUARTER_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

BERLIN = ZoneInfo("Europe/Berlin")
HOUR_MS = 3_600_000


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine's time zone, for what takes none."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2026-11-21", "2026-11-20T23:00:00+00:00", "2026-11-21T23:00:00+00:00"),
        ("2026-03-29", "2026-03-28T23:00:00+00:00", "2026-03-29T22:00:00+00:00"),
        ("2026-10-25", "2026-10-24T22:00:00+00:00", "2026-10-25T23:00:00+00:00"),
        ("today", "2026-11-20T23:00:00+00:00", "2026-11-21T23:00:00+00:00"),
        (" Yesterday ", "2026-11-19T23:00:00+00:00", "2026-11-20T23:00:00+00:00"),
    ],
)
@pytest.mark.parametrize("zone", [BERLIN, None])
@pytest.mark.usefixtures("in_berlin")
def test_a_bare_date_is_the_whole_local_day(
    text: str, start: str, end: str, zone: ZoneInfo | None
) -> None:
    now = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)  # already the 21st in Berlin
    assert since_ms(text, zone, now) == ms(start)
    assert until_ms(text, zone, now) == ms(end)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-21T10:30:00Z", "2026-11-21T10:30:00+00:00"),
        ("2026-11-21T10:30:00.250+02:00", "2026-11-21T08:30:00.250+00:00"),
        ("2026-11-21T10:30", "2026-11-21T09:30:00+00:00"),
        ("2026-07-01 10:30", "2026-07-01T08:30:00+00:00"),
    ],
)
@pytest.mark.parametrize("zone", [BERLIN, None])
@pytest.mark.usefixtures("in_berlin")
def test_a_time_is_a_moment_and_without_an_offset_local(
    text: str, moment: str, zone: ZoneInfo | None
) -> None:
    assert since_ms(text, zone) == ms(moment)
    assert until_ms(text, zone) == ms(moment) + 1, "the moment itself is in the range"


@pytest.mark.parametrize("zone", [BERLIN, ZoneInfo("Pacific/Kiritimati"), None])
@pytest.mark.parametrize("time_of_day", ["", "T23:59:59", "T00:00:00Z", "T23:59:59.999999-14:00"])
@pytest.mark.usefixtures("in_berlin")
def test_times_outside_the_ledger_mean_its_ends(time_of_day: str, zone: ZoneInfo | None) -> None:
    for text in ("0001-01-01", "1969-12-30", "1970-01-01"):
        assert 0 <= since_ms(text + time_of_day, zone) <= 2 * 24 * HOUR_MS
        assert 0 <= until_ms(text + time_of_day, zone) <= 2 * 24 * HOUR_MS
    for text in ("9999-12-31", "9999-12-30"):
        assert END_MS - 3 * 24 * HOUR_MS <= since_ms(text + time_of_day, zone) <= END_MS
        assert END_MS - 3 * 24 * HOUR_MS <= until_ms(text + time_of_day, zone) <= END_MS


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "21.11.2026", "2026-11-21T25:00"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no time: write 2026-11-21"):
        since_ms(text, BERLIN)


def test_a_day_may_have_23_or_25_hours() -> None:
    lengths = [
        day_range(date(2026, month, day), BERLIN) for month, day in ((3, 28), (3, 29), (10, 25))
    ]
    assert [(end - start) // HOUR_MS for start, end in lengths] == [24, 23, 25]


@given(
    zone=st.sampled_from(["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "UTC"]),
    start=st.integers(1_500_000, 2_100_000),
    length=st.integers(0, 96 * 500),
    inside=st.floats(0, 1),
)
def test_offsets_hold_between_their_changes(
    zone: str, start: int, length: int, inside: float
) -> None:
    known = ZoneInfo(zone)
    offsets = slot_offsets(start, start + length, known)
    slot = start + int(length * inside)
    (_first, offset) = [found for found in offsets if found[0] <= slot][-1]
    actual = datetime.fromtimestamp(slot * QUARTER_MS // 1000, known).utcoffset()
    assert actual is not None
    assert offset == actual / timedelta(milliseconds=QUARTER_MS)


def test_day_names() -> None:
    assert [day_name(0), day_name(20_778)] == ["1970-01-01", "2026-11-21"]
