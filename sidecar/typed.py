"""Values as types of ours: the only door to what msgspec reads by a type.

msgspec works a Struct out when it is first used, and not safely: of two threads that use one for
the first time, either may crash the process (0.22, reproduced by tests/unit/test_typed.py). So a
type is worked out under a lock before anybody uses it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Json = bytes | bytearray | memoryview | str | msgspec.Raw

_LOCK = threading.Lock()
_NO_JSON = (RecursionError, UnicodeDecodeError)
"""What msgspec raises besides for a text that is nested too deep, or is not UTF-8."""
_READY: set[Any] = set()


def convert(value: object, kind: type[T], *, strict: bool = True) -> T:
    """A builtin value as a `kind`.

    Raises:
        msgspec.ValidationError: it is none.
    """
    _prepare(kind)
    return msgspec.convert(value, kind, strict=strict)


def decode(data: Json, kind: type[T]) -> T:
    """The `kind` that a JSON text holds.

    Raises:
        msgspec.DecodeError: it holds none (`msgspec.ValidationError`), or is no JSON.
    """
    _prepare(kind)
    try:
        return msgspec.json.decode(data, type=kind)
    except _NO_JSON as error:
        raise msgspec.DecodeError(type(error).__name__) from None


def unpack(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Return the `kind` that MessagePack bytes hold.

    Raises:
        msgspec.DecodeError: They hold none.
    """
    _prepare(kind)
    return msgspec.msgpack.decode(data, type=kind)


def decoder(kind: type[T]) -> Callable[[Json], T]:
    """`decode` for many texts of one kind."""
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
