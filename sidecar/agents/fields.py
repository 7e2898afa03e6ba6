"""Field types and conversions for session readers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from sidecar import typed
from sidecar.agents.file_reading import cached_until_changed, open_quietly
from sidecar.config import toml
from sidecar.messages.vendor_usage import Usage, usage_from_parts, usage_from_prompt
from sidecar.models.catalogue import provider_of as _provider_of

T = TypeVar("T")
_MAX_SETTINGS_BYTES = 1 << 20

TokenCount = Annotated[int, msgspec.Meta(ge=0, le=10**12)] | None


Number = float | None
"""A JavaScript number, which may have a fractional part. None means that the number is missing."""


def json_digest(*values: msgspec.Raw) -> str | None:
    """Return a digest of JSON values, or None if all of them are missing."""
    found = [bytes(value) for value in values]
    return blake2b(b"\0".join(found), digest_size=8).hexdigest() if any(found) else None


def token_count(number: object) -> int:
    """Convert a number, or a string with one, to a token count.

    The result is 0 if the number is missing or implausible.
    """
    try:
        value = 0.0 if isinstance(number, bool) else float(number)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0
    return int(value) if 0 < value <= 10**12 else 0


def reported_usage(
    prompt: object,
    output: object,
    read: object = None,
    written: object = None,
    reasoning: object = None,
    *,
    written_1h: object = None,
    includes_cached: bool = True,
) -> Usage:
    """Build a call's usage from numbers that may be missing or implausible.

    Args:
        prompt: The number of prompt tokens.
        output: The number of output tokens, including reasoning.
        read: The number of tokens read from the cache.
        written: The number of tokens written to the cache.
        reasoning: The number of reasoning tokens.
        written_1h: The part of `written` that is cached for an hour.
        includes_cached: Whether `prompt` includes the tokens read from and written to the cache.
    """
    convert = usage_from_prompt if includes_cached else usage_from_parts
    return convert(*map(token_count, (prompt, read, written, written_1h, output, reasoning)))


def decode_file(path: str, kind: type[T]) -> T:
    """Decode a JSON file.

    Raises:
        OSError: The file is missing, or it does not contain valid JSON for `kind`.
    """
    with open_quietly(path) as file:
        return decode_document(file.read(), kind)


def try_decode_file(path: str | Path, kind: type[T]) -> T | None:
    """Decode a JSON file, or return None if it is missing or invalid."""
    with suppress(OSError):
        return decode_file(str(path), kind)
    return None


def try_decode_settings(path: str | Path, kind: type[T]) -> T | None:
    """Decode settings in JSON, TOML or YAML, or return None if the file is missing or invalid.

    The file may contain comments. YAML is read as by `read_nested_yaml`.
    """
    value = _read_settings(path)
    with suppress(msgspec.DecodeError):
        return None if value is None else typed.decode_leniently(msgspec.json.encode(value), kind)
    return None


@cached_until_changed
def _read_settings(path: str) -> object:
    with open_quietly(path) as file:
        text = file.read(_MAX_SETTINGS_BYTES).decode("utf-8-sig", "replace")
    if path.endswith(".toml"):
        with suppress(toml.InvalidTomlError):
            return toml.parse(text)
        return None
    if path.endswith((".yml", ".yaml")) and not text.lstrip().startswith("{"):
        # Imported here, because few agents have such settings, and its patterns take 10 ms.
        from sidecar.text.prompt_markdown import read_nested_yaml

        return read_nested_yaml(text)
    with suppress(ValueError, msgspec.DecodeError):
        return typed.decode(without_comments(text), object)
    return None


_COMMENTS = re.compile(
    r'("(?:[^"\\]|\\.)*+")|//[^\n]*|/\*.*?\*/|,(?=(?:\s|//[^\n]*|/\*.*?\*/)*+[}\]])', re.DOTALL
)


def without_comments(text: str) -> str:
    """Remove the comments and trailing commas from JSON."""
    return _COMMENTS.sub(lambda found: found[1] or "", text)


def read_setting(path: str | Path, names: Sequence[str]) -> object:
    """Return the value of a setting in a JSON, TOML or YAML file, or None if it is not set.

    Args:
        path: The file, which may be missing or malformed.
        names: The setting's name on each level. A list on the way stands for its last item that has
            the value.
    """
    return _value_in(_read_settings(path), names)


def _value_in(value: object, names: Sequence[str]) -> object:
    if isinstance(value, list):
        found = (_value_in(one, names) for one in reversed(value))
        return next((one for one in found if one is not None), None)
    if not names:
        return value
    return _value_in(value.get(names[0]), names[1:]) if isinstance(value, dict) else None


def decode_document(data: bytes, kind: type[T]) -> T:
    """Decode a JSON document.

    Raises:
        OSError: The data is not valid JSON for `kind`.
    """
    try:
        return typed.decode_leniently(data, kind)
    except msgspec.DecodeError as error:
        raise OSError("not a complete session file") from error


class Record(msgspec.Struct, gc=False):
    """Base class for records in agents' files. Undeclared fields are ignored."""


class CamelRecord(Record, rename="camel"):
    """A record with camelCase field names."""


def parse_iso_time(text: str | None) -> datetime | None:
    """Parse an ISO 8601 time, or return None if it is invalid. The default time zone is UTC.

    The text may also be a number of milliseconds since 1970.
    """
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return time_from_ms(float(text)) if text.isdecimal() else None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def time_from_ms(milliseconds: float | None) -> datetime | None:
    """Convert milliseconds since 1970 to a time, or return None if the value is out of range."""
    if not milliseconds or not 0 < milliseconds < 253_402_300_800_000:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def parse_time(stamp: object) -> datetime | None:
    """Parse an ISO 8601 time, or a number of seconds or milliseconds since 1970.

    Returns None if the value is invalid.
    """
    if isinstance(stamp, int | float):
        return time_from_ms(stamp if stamp > 1e11 else stamp * 1000)
    return parse_iso_time(stamp if isinstance(stamp, str) else None)


def time_from_ns(nanoseconds: int) -> datetime:
    """Convert nanoseconds since 1970 to a time."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)


def parse_usd(amount: Number) -> Decimal | None:
    """Convert a cost in USD that an agent reported.

    Returns None if the cost is missing, implausible or 0. Agents report 0 for unknown prices.
    """
    return Decimal(repr(amount)) if amount is not None and 0 < amount < 1e6 else None


def credits_to_usd(credits: float | None) -> Decimal | None:
    """Convert GitHub AI credits to USD. A credit is worth $0.01. None and 0 are unknown."""
    return Decimal(repr(credits)) / 100 if credits and credits > 0 else None


def nano_credits_to_usd(number: float | str | None) -> Decimal | None:
    """Convert billionths of GitHub AI credits to USD."""
    return credits_to_usd(float(number) / 10**9) if number else None


@lru_cache(maxsize=256)
def provider_of(model: str) -> str:
    """Return the provider that a model's name implies, or an empty string if it is unknown."""
    return _provider_of(model)
