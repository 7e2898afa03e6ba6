"""Ranges of time as people write them: days, which are local, and moments.

A call's day is the local day on which it was recorded, so that a bare date finds the same calls
wherever and in whichever time zone a report is read.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import NamedTuple

from sidecar.cost.events import milliseconds
from sidecar.errors import BadParamsError

END_MS = 253_402_300_800_000
"""The year 10000: the end of a range without one."""
_EPOCH = date(1970, 1, 1)
LAST_DAY = (date.max - _EPOCH).days


class TimeRange(NamedTuple):
    """The calls of some local days (since 1970, inclusive), and between two moments (half open)."""

    first_day: int = 0
    last_day: int = LAST_DAY
    start_ms: int = 0
    end_ms: int = END_MS


def time_range(
    since: str | None, until: str | None, zone: tzinfo | None, now: datetime | None = None
) -> TimeRange:
    """The range from `since` to `until`: dates, times or words, both inclusive.

    Raises BadParamsError, saying what may stand there.
    """
    found = TimeRange()
    if since is not None:
        start = _parse(since, zone, now)
        if isinstance(start, datetime):
            found = found._replace(start_ms=_moment(start, zone))
        else:
            found = found._replace(first_day=max(0, (start - _EPOCH).days))
    if until is not None:
        end = _parse(until, zone, now)
        if isinstance(end, datetime):
            found = found._replace(end_ms=min(_moment(end, zone) + 1, END_MS))
        else:
            found = found._replace(last_day=(end - _EPOCH).days)
    return found


def local_day(at: datetime, zone: tzinfo | None) -> int:
    """The local day of a time, since 1970. A time without a zone is UTC."""
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    return aware.astimezone(zone).toordinal() - _EPOCH.toordinal()


def day_name(day: int) -> str:
    """`2026-11-21` of a number of days since 1970."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def every_day(known: set[str], most: int) -> list[str]:
    """Every day from the first of these to the last, those between too; at most so many last."""
    first, last = date.fromisoformat(min(known)), date.fromisoformat(max(known))
    first = max(first, last - timedelta(days=most - 1))
    return [(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)]


def _parse(text: str, zone: tzinfo | None, now: datetime | None) -> date | datetime:
    """A local day, or a moment, which is local without an offset."""
    word = text.strip().lower()
    if word in ("today", "yesterday"):
        today = (now or datetime.now(UTC)).astimezone(zone).date()
        return today - timedelta(days=word == "yesterday")
    try:
        if len(word) == len("2026-11-21"):
            return date.fromisoformat(word)
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadParamsError(
            f"{text!r} is no time: write 2026-11-21, 2026-11-21T10:30:00Z, today or yesterday"
        ) from None


def _moment(moment: datetime, zone: tzinfo | None) -> int:
    """Milliseconds since 1970, from 0 to `END_MS`. A time without an offset is in `zone`.

    No call is recorded before 1970 or from 9999 on, and some times there have no UTC.
    """
    if moment.year < _EPOCH.year:
        return 0
    if moment.year == date.max.year:
        return END_MS
    if moment.tzinfo is None:
        moment = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
    return milliseconds(max(moment, datetime(1970, 1, 1, tzinfo=UTC)))
