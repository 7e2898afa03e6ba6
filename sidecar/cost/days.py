"""Times, days and weeks: parses time ranges, and formats them.

The start and the end of a range can be a time, a date such as `2026-11-21`, an age such as `7d`, or
the word `today` or `yesterday`. A call belongs to the local day on which it was recorded. A date
therefore selects the same calls in every time zone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import NamedTuple

from sidecar.errors import BadParamsError

END_MS = 253_402_300_800_000
"""The end of an open-ended time range: the start of the year 10000."""
DAY_MS = 86_400_000
EPOCH = date(1970, 1, 1)
FIRST_DAY = EPOCH.isoformat()
"""The start of a time range that includes all calls."""
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
LAST_DAY = (date.max - EPOCH).days
_AGE = re.compile(r"(\d{1,5})([hdw])", re.ASCII)


class TimeRange(NamedTuple):
    """A range of local days and a range of times. A call must be within both.

    Days are counted from 1970-01-01. `last_day` is inclusive, and `end_ms` is exclusive.
    """

    first_day: int = 0
    last_day: int = LAST_DAY
    start_ms: int = 0
    end_ms: int = END_MS


def time_range(
    since: str | None, until: str | None, zone: tzinfo | None, now: datetime | None = None
) -> TimeRange:
    """Parse a time range. Both `since` and `until` are inclusive.

    Raises:
        BadParamsError: A time is invalid. The message lists the accepted formats.
    """
    found = TimeRange()
    if since is not None:
        start = _parse_time(since, zone, now)
        if isinstance(start, datetime):
            found = found._replace(start_ms=_to_milliseconds(start, zone))
        else:
            found = found._replace(first_day=max(0, (start - EPOCH).days))
    if until is not None:
        end = _parse_time(until, zone, now)
        if isinstance(end, datetime):
            found = found._replace(end_ms=min(_to_milliseconds(end, zone) + 1, END_MS))
        else:
            found = found._replace(last_day=(end - EPOCH).days)
    return found


def range_text(
    since: str | None, until: str | None, zone: tzinfo | None, now: datetime | None = None
) -> str:
    """Return a time range as text, such as `from 2026-11-21 to now`.

    Raises:
        BadParamsError: A time is invalid.
    """
    times = time_range(since, until, zone, now)
    start = day_name(times.first_day) if times.first_day > 0 else since or "the first call"
    end = day_name(times.last_day) if times.last_day < LAST_DAY else until or "now"
    return f"from {start} to {end}"


def milliseconds(at: datetime) -> int:
    """Convert a time to milliseconds since 1970, rounded down. Times without a time zone are in
    UTC.

    Raises:
        BadParamsError: The time is before 1970 or after 9999.
    """
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    since = aware - _BEGIN
    elapsed = since.days * DAY_MS + since.seconds * 1000 + since.microseconds // 1000
    if not 0 <= elapsed < END_MS:
        raise BadParamsError(f"the time {at.isoformat()} is not between 1970 and 9999")
    return elapsed


def local_day(at: datetime, zone: tzinfo | None) -> int:
    """Return the local date as days since 1970. A time without a time zone is taken as UTC."""
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    return aware.astimezone(zone).toordinal() - EPOCH.toordinal()


def day_name(day: int) -> str:
    """Format a day as a date, such as `2026-11-21`."""
    return (EPOCH + timedelta(days=day)).isoformat()


def _week_name(day: int) -> str:
    """Format the ISO week of a day, such as `2026-W47`."""
    year, week, _ = (EPOCH + timedelta(days=day)).isocalendar()
    return f"{year}-W{week:02}"


SPANS: Mapping[str, Callable[[int], str]] = {
    "day": day_name,
    "week": _week_name,
    "month": lambda day: day_name(day)[:7],
}
"""Maps each unit of time to a function that returns the name of the one that contains a day."""


def day_number(name: str) -> int:
    """Return the number of a day that is given as a date. The inverse of `day_name`."""
    return (date.fromisoformat(name) - EPOCH).days


def every_day(names: Iterable[str]) -> range:
    """Return all days from the first to the last of these, which are given as dates."""
    days = [*map(day_number, names)]
    return range(min(days), max(days) + 1)


def _parse_time(text: str, zone: tzinfo | None, now: datetime | None) -> date | datetime:
    word = text.strip().lower()
    word = {"today": "0d", "yesterday": "1d"}.get(word, word)
    if age := _AGE.fullmatch(word):
        moment, number = now or datetime.now(UTC), int(age[1])
        if age[2] == "h":
            return moment - timedelta(hours=number)
        days = timedelta(weeks=number) if age[2] == "w" else timedelta(days=number)
        return moment.astimezone(zone).date() - days
    try:
        if len(word) == len("2026-11-21"):
            return date.fromisoformat(word)
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadParamsError(
            f"{text!r} is not a valid time; use 2026-11-21, 2026-11-21T10:30:00Z, 12h, 7d, 2w, "
            "today or yesterday"
        ) from None


def _to_milliseconds(moment: datetime, zone: tzinfo | None) -> int:
    """Convert a time to milliseconds since 1970, limited to the range from 0 to `END_MS`."""
    if moment.year < EPOCH.year:
        return 0
    if moment.year == date.max.year:
        return END_MS
    if moment.tzinfo is None:
        moment = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
    return milliseconds(max(moment, _BEGIN))
