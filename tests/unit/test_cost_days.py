"""Tests how time ranges are parsed from dates, words and times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from sidecar.config.settings import Team
from sidecar.cost.cost_protocol import CostDetailParams
from sidecar.cost.days import TimeRange, day_name, local_day, time_range
from sidecar.cost.sums import Tallies
from sidecar.cost.team import TeamStore
from tests.cases import read_rows

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set this process's time zone to Berlin."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def day(text: str) -> int:
    return (date.fromisoformat(text) - date(1970, 1, 1)).days


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(("text", "found"), read_rows("cost", "dates"))
@pytest.mark.parametrize("zone", [BERLIN, None])
@pytest.mark.usefixtures("in_berlin")
def test_date_is_a_local_day(text: str, found: str, zone: ZoneInfo | None) -> None:
    now = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)  # in Berlin, it is already the 21st
    assert time_range(text, text, zone, now) == TimeRange(day(found), day(found))


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
    period = time_range(text, text, zone)
    assert period == TimeRange(start_ms=ms(moment), end_ms=ms(moment) + 1)


@pytest.mark.parametrize("zone", [BERLIN, ZoneInfo("Pacific/Kiritimati"), None])
@pytest.mark.parametrize("time_of_day", ["", "T23:59:59", "T00:00:00Z", "T23:59:59.999999-14:00"])
@pytest.mark.usefixtures("in_berlin")
def test_extreme_times_select_all_or_nothing(time_of_day: str, zone: ZoneInfo | None) -> None:
    recorded = day("2026-11-21"), ms("2026-11-21T10:00Z")

    def holds(since: str | None, until: str | None) -> bool:
        period = time_range(since and since + time_of_day, until and until + time_of_day, zone)
        return (
            period.first_day <= recorded[0] <= period.last_day
            and period.start_ms <= recorded[1] < period.end_ms
        )

    for early in ("0001-01-01", "1969-12-30", "1970-01-01"):
        assert holds(early, None)
        assert not holds(None, early)
    for late in ("9999-12-30", "9999-12-31"):
        assert holds(None, late)
        assert not holds(late, None)


@pytest.mark.parametrize("zone", [BERLIN, None])
def test_an_age_in_hours_is_a_time(zone: ZoneInfo | None) -> None:
    now = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)
    start = ms("2026-11-20T11:30Z")
    assert time_range("12h", "12h", zone, now) == TimeRange(start_ms=start, end_ms=start + 1)
    assert time_range("99999w", None, zone, now) == TimeRange()


@pytest.mark.parametrize(
    "text",
    [
        *("", "tomorrow", "2026-13-01", "21.11.2026", "2026-11-21T25:00"),
        *("7", "d", "7 d", "-7d", "7m", "100000d", "\u0667d"),
    ],
)
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid time; use 2026-11-21"):
        time_range(text, None, BERLIN)


@pytest.mark.parametrize(("at", "found"), read_rows("cost", "days_of_moments"))
@pytest.mark.parametrize("zone", [BERLIN, None])
@pytest.mark.usefixtures("in_berlin")
def test_a_day_lasts_from_midnight_to_midnight(at: str, found: str, zone: ZoneInfo | None) -> None:
    assert day_name(local_day(datetime.fromisoformat(at), zone)) == found


def test_today_is_a_utc_day_in_a_teams_report(monkeypatch: pytest.MonkeyPatch) -> None:
    is_late = datetime.now(UTC).hour >= 12
    monkeypatch.setenv("TZ", "LATER-13" if is_late else "EARLIER+13")  # another day than in UTC
    time.tzset()
    asked: list[TimeRange] = []

    def tallies(_store: TeamStore, times: TimeRange, *_: object, **__: object) -> Tallies:
        asked.append(times)
        return {}

    monkeypatch.setattr(TeamStore, "tallies", tallies)
    monkeypatch.setattr(TeamStore, "missing_note", lambda _: "")
    try:
        with TeamStore(Team(store="http://127.0.0.1:9")) as store:
            store.report(CostDetailParams(scope="team", since="today", until="today"))
    finally:
        monkeypatch.undo()
        time.tzset()
    today = local_day(datetime.now(UTC), UTC)
    assert asked == [TimeRange(today, today)]
