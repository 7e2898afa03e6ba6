"""Escapes untrusted text, so no terminal, log, CI system or editor interprets it.

File names, TOML keys, model ids and session ids may come from a repository, an endpoint or a
client. They are escaped before they are displayed. Data for programs, such as JSON values, is not
escaped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Context, Decimal
from functools import cache

_ACTIVE = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1, which terminals interpret
    # characters that change the order of text or are invisible
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
    "\u2028\u2029"  # line separators
    "\ud800-\udfff"  # surrogates, which cannot be encoded
)
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

# GitHub interprets `::name::` at the start of a line, and `##[name]` anywhere. Azure Pipelines and
# TeamCity interpret `##vso[name]` and `##teamcity[name]`.
_COMMAND = re.compile(r"(?m)^([^\S\n]*)::|##(?=\w*\[)")

# Inline syntax of CommonMark and GitHub, including bare links, and VS Code's `$(icon)`.
# An underscore inside a word has no special meaning, nor has the sign of an estimate (`~12`).
_MARKUP = re.compile(
    r"[\\`*\[\]<>|&@]|~(?!\$?\d)|(?<=[^\s(])~|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.|\$(?=\()",
    re.IGNORECASE,
)
_GENERATED_ID = re.compile(r"(?i)[\da-f]{8}[\da-f-]*")
_LINK = re.compile(r"\](?=\()")

_LONGEST_ERROR = 501
"""Maximum number of characters in an error message."""

HOW_RECORDED = "Start a coding agent or a chat plugin, and its calls appear here."
"""Explains how calls are recorded. Displayed if there are no calls."""


def printable(text: str) -> str:
    """Return text as one line, with control characters, invisible characters and line endings
    escaped.
    """
    if text.isascii() and text.isprintable() and ":" not in text and "#" not in text:
        return text
    return _COMMAND.sub(_escape_command, _unprintable().sub(_escape_character, text))


def printable_lines(text: str) -> str:
    """Escape text as `printable` does, but keep its line feeds."""
    return _COMMAND.sub(_escape_command, _unprintable_in_lines().sub(_escape_character, text))


def markdown(text: str) -> str:
    """Escape text for a line of Markdown, so it cannot create links, images, table cells, HTML or
    emphasis.
    """
    return _MARKUP.sub(r"\\\g<0>", printable(text))


def json_text(value: object) -> str:
    """Return a value as one line of ASCII JSON that no CI system interprets."""
    import msgspec  # imported here, because a prompt waits for the hooks, which do not need it

    written = json.dumps(msgspec.to_builtins(value), separators=(",", ":"), allow_nan=False)
    return written.replace("##", r"#\u0023")


def message(text: str) -> str:
    """Escape text for an editor's message. Without this, `[label](command:…)` would become a
    link.
    """
    return _LINK.sub("] ", printable_lines(text))


def counted(number: int, noun: str) -> str:
    """Format a number with a noun, such as `1 file` or `2,431 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten(text: str, most: int) -> str:
    """Return text with at most this many characters. Shortened text ends with `…`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shorten_error(text: str) -> str:
    """Return an error message without its middle if it is long.

    Messages quote names and values that users write, which may have any length. The start of a
    message says what is wrong, and its end what to do.
    """
    half = _LONGEST_ERROR // 2
    return text if len(text) <= _LONGEST_ERROR else f"{text[:half]}…{text[-half:]}"


def first_names(names: Sequence[str]) -> str:
    """Format a list of names, such as `amp, cline, codex and 11 more`.

    A list of up to four names is not shortened.
    """
    if len(names) <= 4:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3} more"


def local_time_text(at: datetime, now: datetime | None = None) -> str:
    """Format a time as local time, such as `14:02`, or `26 Nov 14:02` if it is not today."""
    at, today = at.astimezone(), (now.astimezone() if now else datetime.now()).date()  # noqa: DTZ005
    return f"{at:%H:%M}" if at.date() == today else f"{at:%d %b %H:%M}"


def is_generated_id(text: str) -> bool:
    """Return whether an id, such as a UUID, was generated rather than chosen by a person."""
    return _GENERATED_ID.fullmatch(text) is not None


def compact_number(number: int) -> str:
    """Format a number for a narrow column: `812`, `54.1k`, `1.24M`."""
    for scale, unit in ((10**9, "B"), (10**6, "M"), (1_000, "k")):
        if number >= scale * 0.9995:
            return f"{number / scale:.3g}{unit}"
    return str(number)


def duration_text(length: timedelta) -> str:
    """Format a duration such as `14 min`, `2 h 14 min`, `2 days 23 h` or `9 days`."""
    minutes = max(0, int(length.total_seconds()) // 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return days_text(length)


def days_text(length: timedelta) -> str:
    """Format a duration of at least two days. In the first week, hours are shown, too."""
    days, hours = divmod(round(length / timedelta(hours=1)), 24)
    if days < 7:
        return f"{days} days {hours} h" if hours else f"{days} days"
    return f"{round(length / timedelta(days=1))} days"


def percent_text(share: float) -> str:
    """Format a percentage such as `13 %`. It is rounded down, so 99.9 is formatted as `99 %`."""
    # The addend compensates for floating-point errors.
    return f"{math.floor(share + 1e-9)} %"


def whole_percents(parts: Sequence[int], total: int = 100) -> list[int]:
    """Divide `total` percent among parts in proportion to their sizes.

    Returns whole numbers that add up to `total`, or zeros if all parts are 0.
    """
    whole = sum(parts)
    if not whole:
        return [0] * len(parts)
    shares = [total * part // whole for part in parts]
    largest = sorted(range(len(parts)), key=lambda index: -(total * parts[index] % whole))
    for index in largest[: total - sum(shares)]:
        shares[index] += 1
    return shares


@cache
def _unprintable() -> re.Pattern[str]:
    return re.compile(f"[{_ACTIVE}]")


@cache
def _unprintable_in_lines() -> re.Pattern[str]:
    return re.compile(f"(?!\n)[{_ACTIVE}]")


def _escape_character(match: re.Match[str]) -> str:
    character = match[0]
    number = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _escape_command(match: re.Match[str]) -> str:
    mark = match[0].lstrip()
    return f"{match[1] or ''}\\x{ord(mark[0]):02x}{mark[1:]}"


def usd_text(amount: float | Decimal) -> str:
    """Format an amount in USD, for example as `$8.27`, `$0.022` or `<$0.001`.

    Amounts below one dollar are shown with two significant digits. Halves are rounded to even.
    """
    usd = Decimal(str(amount))  # the float 0.00975 is slightly less than that
    sign, size = "-" if usd < 0 else "", abs(usd)
    if size >= _ALMOST_ONE or not size:
        return f"{sign}${size:,.2f}"
    if 0 < usd < _SMALLEST:
        return "<$0.001"
    return f"{sign}${size:.{1 - _TWO_DIGITS.plus(size).adjusted()}f}"


_ALMOST_ONE, _SMALLEST, _TWO_DIGITS = Decimal("0.995"), Decimal("0.001"), Context(prec=2)
_MOST_DECIMALS = 12


def different_usd_texts(first: Decimal, second: Decimal) -> tuple[str, str]:
    """Format two amounts in USD with as many decimals as are needed to tell them apart."""
    texts = usd_text(first), usd_text(second)
    for digits in range(3, _MOST_DECIMALS + 1):
        if texts[0] != texts[1] or first == second:
            break
        texts = f"${first:,.{digits}f}", f"${second:,.{digits}f}"
    return texts


AT_LEAST = "≥"
"""Prefix for a cost that is a lower bound."""


def cost_text(usd: float | Decimal | None, *, is_partial: bool, is_estimate: bool = False) -> str:
    """Format a cost: `$8.27`, `≥$8.27` if it is a lower bound, or `unpriced` if it is unknown.

    Otherwise, the cost of an estimated number of tokens is formatted as `~$8.27`.
    """
    if usd is None:
        return "unpriced"
    text = usd_text(usd)
    if is_partial:
        return f"{AT_LEAST}{text}"
    return f"~{text}" if is_estimate and text[:1] == "$" else text
