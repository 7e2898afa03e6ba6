"""Field types and conversions shared by the readers."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from sidecar import typed
from sidecar.agents.file_reading import open_quietly
from sidecar.config import toml
from sidecar.models.catalogue import provider_of as _provider_of

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
_MAX_SETTINGS_BYTES = 1 << 20

TokenCount = Annotated[int, msgspec.Meta(ge=0, le=10**12)] | None
"""Number of tokens; None if missing."""


Number = float | None
"""A number written by JavaScript, which may be a fraction; None if missing."""


def token_count(number: Number) -> int:
    """Return a number of tokens; 0 if it is missing or impossible."""
    return int(number) if number is not None and 0 < number <= 10**12 else 0


def decode_file(path: str, kind: type[T]) -> T:
    """Decode a file that is one JSON document. Raises OSError, also if it is half written."""
    with open_quietly(path) as file:
        return decode_document(file.read(), kind)


def try_decode_file(path: str | Path, kind: type[T]) -> T | None:
    """Decode a JSON file; None if it is missing or unreadable."""
    with suppress(OSError):
        return decode_file(str(path), kind)
    return None


def try_decode_toml(path: Path, kind: type[T]) -> T | None:
    """Return an agent's own TOML settings, or None if they are missing or unreadable."""
    try:
        with open_quietly(str(path)) as file:
            text = file.read(_MAX_SETTINGS_BYTES).decode("utf-8", "replace")
        return typed.convert(toml.parse(text), kind)
    except (OSError, toml.InvalidTomlError, msgspec.ValidationError):
        return None


def decode_document(data: bytes, kind: type[T]) -> T:
    """Decode a JSON document. Raises OSError if it is half written."""
    try:
        return typed.decode(data, kind)
    except msgspec.DecodeError as error:
        raise OSError("not a complete session file") from error


class Record(msgspec.Struct, gc=False):
    """Base of the records in agents' files. Fields that are not declared are never decoded."""


class CamelRecord(Record, rename="camel"):
    """A record with camelCase field names."""


def parse_iso_time(text: str | None) -> datetime | None:
    """Parse an ISO 8601 time, in UTC unless it names a zone; None if it is invalid."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def time_from_ms(milliseconds: float | None) -> datetime | None:
    """Return the time of milliseconds since 1970; None if they are out of range."""
    if not milliseconds or not 0 < milliseconds < 253_402_300_800_000:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def parse_time(stamp: str | float | None) -> datetime | None:
    """Return the time of an ISO 8601 string or of milliseconds since 1970."""
    return parse_iso_time(stamp) if isinstance(stamp, str) else time_from_ms(stamp)


def time_from_ns(nanoseconds: int) -> datetime:
    """Return the time of nanoseconds since 1970, such as a file's modification time."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)


def parse_usd(amount: Number) -> Decimal | None:
    """Return a cost that an agent computed; None for 0, which means that it knows no price."""
    return Decimal(repr(amount)) if amount is not None and 0 < amount < 1e6 else None


def credits_to_usd(credits: float | None) -> Decimal | None:
    """Return the USD of GitHub's AI credits, 0.01 each."""
    return None if credits is None or credits < 0 else Decimal(repr(credits)) / 100


@lru_cache(maxsize=256)
def provider_of(model: str) -> str:
    """Return the provider of a model by its name; "" if unknown."""
    return _provider_of(model)
