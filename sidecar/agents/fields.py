"""Pieces that the readers' typed decoders share."""

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
_LARGEST_SETTINGS = 1 << 20

TokenCount = Annotated[int, msgspec.Meta(ge=0, le=10**12)] | None
"""Tokens; null where an agent leaves them out."""


Number = float | None
"""A number of a program whose numbers may be fractions; null where it is left out."""


def token_count(number: Number) -> int:
    """Tokens; 0 where a number is none, and stands for "not reported"."""
    return int(number) if number is not None and 0 < number <= 10**12 else 0


def decode_file(path: str, kind: type[T]) -> T:
    """A file that is one JSON document. Raises OSError where it is half written too."""
    with open_quietly(path) as file:
        return decode_document(file.read(), kind)


def try_decode_file(path: str | Path, kind: type[T]) -> T | None:
    """What another file than the store says; None where there is none that can be read."""
    with suppress(OSError):
        return decode_file(str(path), kind)
    return None


def try_decode_toml(path: Path, kind: type[T]) -> T | None:
    """Return an agent's own TOML settings, or None if they are missing or unreadable."""
    try:
        with open_quietly(str(path)) as file:
            text = file.read(_LARGEST_SETTINGS).decode("utf-8", "replace")
        return typed.convert(toml.parse(text), kind)
    except (OSError, toml.InvalidTomlError, msgspec.ValidationError):
        return None


def decode_document(data: bytes, kind: type[T]) -> T:
    """A store that is one JSON document. Raises OSError where it is half written."""
    try:
        return typed.decode(data, kind)
    except msgspec.DecodeError as error:
        raise OSError("not a complete session file") from error


class Record(msgspec.Struct, gc=False):
    """A record of which only the named fields are decoded: no message's content ever is."""


class CamelRecord(Record, rename="camel"):
    """A record with its names in camelCase."""


def parse_iso_time(text: str | None) -> datetime | None:
    """A time in ISO 8601 (UTC where it names no zone); None where it is no time."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def time_from_ms(milliseconds: float | None) -> datetime | None:
    """A time from milliseconds since 1970; None where it is no time."""
    if not milliseconds or not 0 < milliseconds < 253_402_300_800_000:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def parse_time(stamp: str | float | None) -> datetime | None:
    """A time in either form."""
    return parse_iso_time(stamp) if isinstance(stamp, str) else time_from_ms(stamp)


def time_from_ns(nanoseconds: int) -> datetime:
    """A time from nanoseconds since 1970, such as a file's."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)


def parse_usd(amount: Number) -> Decimal | None:
    """An agent's own figure; None for 0, which stands for a model without a price."""
    return Decimal(repr(amount)) if amount is not None and 0 < amount < 1e6 else None


def credits_to_usd(credits: float | None) -> Decimal | None:
    """USD of GitHub's AI credits: 0.01 each."""
    return None if credits is None or credits < 0 else Decimal(repr(credits)) / 100


@lru_cache(maxsize=256)
def provider_of(model: str) -> str:
    """Who serves a model by its name; "" where the name does not show it."""
    return _provider_of(model)
