"""Typed decoding with msgspec. Other modules must use these functions.

msgspec prepares a Struct type on first use, and this is not thread-safe. In version 0.22, the
process can crash if two threads do this at the same time (see tests/unit/test_typed.py).
These functions therefore use a lock.
"""

from __future__ import annotations

import pkgutil
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Json = bytes | bytearray | memoryview | str | msgspec.Raw

_LOCK = threading.Lock()
_NO_JSON = (RecursionError, UnicodeDecodeError)
"""Built-in exceptions that msgspec raises for deeply nested text and for invalid UTF-8."""
_READY: set[Any] = set()


def convert(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Convert built-in types such as dicts and lists to `kind`.

    Raises:
        msgspec.ValidationError: The value does not match the type.
    """
    _prepare(kind)
    return msgspec.convert(value, kind, strict=strict)


def decode(data: Json, kind: type[T]) -> T:
    """Decode JSON to `kind`.

    Raises:
        msgspec.DecodeError: The text is not valid JSON.
        msgspec.ValidationError: The value does not match the type.
    """
    _prepare(kind)
    try:
        return msgspec.json.decode(data, type=kind)
    except _NO_JSON as error:
        raise msgspec.DecodeError(type(error).__name__) from None


def unpack(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode MessagePack to `kind`.

    Raises:
        msgspec.DecodeError: The data is not valid MessagePack, or does not match the type.
    """
    _prepare(kind)
    return msgspec.msgpack.decode(data, type=kind)


def read_table(package: str, file: str, kind: type[T]) -> T:
    """Read a TOML file that is installed with a package, such as `sidecar.models`.

    Raises:
        FileNotFoundError: The package has no such file.
        msgspec.ValidationError: The table does not match the type.
    """
    from tomllib import loads  # imported lazily, because the first token count reads no table

    return convert(loads((pkgutil.get_data(package, file) or b"").decode()), kind)


def decoder(kind: type[T]) -> Callable[[Json], T]:
    """Return a function that decodes JSON to `kind`."""
    with _LOCK:
        known = msgspec.json.Decoder(kind).decode

    def decode_one(data: Json) -> T:
        try:
            return known(data)
        except _NO_JSON as error:
            raise msgspec.DecodeError(type(error).__name__) from None

    return decode_one


def _prepare(kind: Any) -> None:
    if kind not in _READY:
        with _LOCK:
            msgspec.json.Decoder(kind)
        _READY.add(kind)
