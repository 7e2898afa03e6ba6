"""Local days and the ends of a time range, in a time zone with its daylight saving.

Times before 1970 and from the year 9999 on stand for the beginning and the end of all time: no call
can be recorded there, and some of them cannot be converted to UTC.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo

from sidecar.cost.events import milliseconds
from sidecar.cost.migrations import QUARTER_MS
from sidecar.errors import BadParamsError

SLOTS_A_DAY = 96
"""Quarter-hours: every offset from UTC in use since 1972 is a whole number of them."""

END_MS = 253_402_300_800_000
"""The year 10000: the end of a range without one."""

_EPOCH = date(1970, 1, 1)


def day_range(day: date, zone: tzinfo | None) -> tuple[int, int]:
    """First millisecond of a local day, and of the day after (23 or 25 hours later at times)."""
    after = day + timedelta(days=1) if day < date.max else day
    return _midnight(day, zone), _midnight(after, zone)


def since_ms(text: str, zone: tzinfo | None, now: datetime | None = None) -> int:
    """The first millisecond of a range that begins at `text`: a date, a time, or a word.

    Raises BadParamsError, saying what may stand there.
    """
    found = _parse(text, zone, now)
    return _moment(found, zone) if isinstance(found, datetime) else day_range(found, zone)[0]


def until_ms(text: str, zone: tzinfo | None, now: datetime | None = None) -> int:
    """The first millisecond after a range that ends with `text`: both ends are inclusive."""
    found = _parse(text, zone, now)
    if isinstance(found, datetime):
        return min(_moment(found, zone) + 1, END_MS)
    return day_range(found, zone)[1]


def slot_offsets(first: int, last: int, zone: tzinfo | None) -> list[tuple[int, int]]:
    """The zone's offsets from UTC over a range of quarter-hours: (first slot, offset in slots)."""
    offsets = [(first, _offset(first, zone))]
    for slot in (*range(first + SLOTS_A_DAY, last, SLOTS_A_DAY), last):
        if slot > first and _offset(slot, zone) != offsets[-1][1]:
            offsets.append(_change(slot - SLOTS_A_DAY, slot, zone))
    return offsets


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


def _midnight(day: date, zone: tzinfo | None) -> int:
    return _moment(datetime.combine(day, time.min), zone)


def _moment(moment: datetime, zone: tzinfo | None) -> int:
    """Milliseconds since 1970, from 0 to `END_MS`. A time without an offset is in `zone`."""
    if moment.year < _EPOCH.year:
        return 0
    if moment.year == date.max.year:
        return END_MS
    if moment.tzinfo is None:
        moment = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
    return milliseconds(max(moment, datetime(1970, 1, 1, tzinfo=UTC)))


def _offset(slot: int, zone: tzinfo | None) -> int:
    moment = datetime.fromtimestamp(slot * QUARTER_MS // 1000, UTC).astimezone(zone)
    return (moment.utcoffset() or timedelta()) // timedelta(milliseconds=QUARTER_MS)


def _change(before: int, after: int, zone: tzinfo | None) -> tuple[int, int]:
    """The first slot in (before, after] that has the offset of `after`."""
    target = _offset(after, zone)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(middle, zone) == target:
            after = middle
        else:
            before = middle
    return after, target
