"""Typed decoding with msgspec. Other modules must use these functions.

msgspec prepares a Struct type on first use, and this is not thread-safe. In version 0.22, the
process can crash if two threads do this at the same time (see tests/unit/test_typed.py).
These functions therefore use a lock.

Other programs write JSON that msgspec rejects: half a surrogate pair (`"\\ud82d"`), which is what
`JSON.stringify` makes of a cut emoji, Python's `NaN`, invalid UTF-8, or a byte order mark. Such
JSON is repaired and decoded again. Files of coding agents also have members of unexpected types.
`decoder` and `decode_leniently` leave out such a member instead of rejecting the whole record.
"""

from __future__ import annotations

import codecs
import math
import pkgutil
import re
import threading
from contextlib import suppress
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

K = TypeVar("K")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Json = bytes | bytearray | memoryview | str | msgspec.Raw

_LOCK = threading.Lock()
_NO_JSON = (RecursionError, UnicodeError)
"""Built-in exceptions that msgspec raises for deeply nested text and for invalid Unicode."""
_READY: set[Any] = set()
_ESCAPES = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""Matches half a surrogate pair. A whole pair, or an escaped backslash, is the first group."""
_CONSTANTS = re.compile(rb'("(?:[^"\\]++|\\.)*+")|-?(?:NaN|Infinity)', re.DOTALL)
CONTROLS = bytes.maketrans(bytes(range(32)), b"?" + b" " * 31)
"""Replaces control characters in strings. A NUL byte stays invalid between strings."""
_BYTE = re.compile(r"\(byte (\d+)\)$")


class _Object(msgspec.Struct):
    pass


class Decoder(Protocol[T_co]):
    """Decodes JSON, and calls `on_loss` once if it left out a member."""

    def __call__(self, data: Json, on_loss: Callable[[], None] | None = None, /) -> T_co: ...


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
    return _decode_or_repair(data, lambda data: msgspec.json.decode(data, type=kind))


def decode_leniently(data: Json, kind: type[T], on_loss: Callable[[], None] | None = None) -> T:
    """Decode JSON to `kind`, and leave out members and items that do not match their type.

    A whole number may also be written as `10.0` or `"10"`, and a string as a number.

    Args:
        data: The JSON text.
        kind: The type of the result.
        on_loss: Called once if anything was left out.

    Raises:
        msgspec.DecodeError: The text is not valid JSON.
        msgspec.ValidationError: The value as a whole does not match the type.
    """
    _prepare(kind)
    lost: list[object] = []
    value: T = _decode_or_repair(data, lambda data: _decode_valid(data, kind, lost))
    if lost and on_loss is not None:
        on_loss()
    return value


def repair(data: Json) -> bytes:
    """Return JSON in a form that msgspec accepts, if its only flaws are those named above."""
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    text = text.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").encode()
    text = _ESCAPES.sub(lambda found: found[1] or rb"\ufffd", text.translate(CONTROLS))
    if b"NaN" in text or b"Infinity" in text:
        text = _CONSTANTS.sub(lambda found: found[1] or b"null", text)
    return text


class Span(NamedTuple):
    """How far a text is JSON."""

    is_whole: bool
    """Whether the text starts with a whole object."""
    end: int
    """The end of this object, or where the text stops being JSON."""


def object_span(data: memoryview) -> Span:
    """Return how far a text is a JSON object, without building the object.

    Raises:
        RecursionError: The object is nested too deeply.
    """
    _prepare(_Object)
    try:
        msgspec.json.decode(data, type=_Object)
    except msgspec.ValidationError:
        return Span(is_whole=False, end=0)
    except msgspec.DecodeError as error:
        reason = str(error)
        found = _BYTE.search(reason)
        position = int(found[1]) if found else len(data)
        is_whole = "trailing characters" in reason
        return Span(is_whole, position - is_whole)
    return Span(is_whole=True, end=len(data))


def unpack(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode MessagePack to `kind`.

    Raises:
        msgspec.DecodeError: The data is not valid MessagePack, or does not match the type.
    """
    _prepare(kind)
    return msgspec.msgpack.decode(data, type=kind)


def read_text(package: str, file: str) -> str:
    """Read a text file that is installed with a package, such as `sidecar.models`.

    Raises:
        FileNotFoundError: The package has no such file.
    """
    return (pkgutil.get_data(package, file) or b"").decode()


def read_table(package: str, file: str, kind: type[T]) -> T:
    """Read a TOML or JSON file that is installed with a package, such as `sidecar.models`.

    What the first token count needs is in JSON, because importing tomllib takes 2 ms.

    Raises:
        FileNotFoundError: The package has no such file.
        msgspec.ValidationError: The table does not match the type.
    """
    text = read_text(package, file)
    if file.endswith(".json"):
        return decode(text, kind)
    from tomllib import loads

    return convert(loads(text), kind)


def decoder(kind: type[T]) -> Decoder[T]:
    """Return a function that decodes JSON to `kind`, as `decode_leniently` does."""
    with _LOCK:
        known = msgspec.json.Decoder(kind).decode

    def decode_one(data: Json, on_loss: Callable[[], None] | None = None, /) -> T:
        try:
            return known(data)
        except (msgspec.DecodeError, *_NO_JSON):
            return decode_leniently(data, kind, on_loss)

    return decode_one


def _prepare(kind: Any) -> None:
    if kind not in _READY:
        with _LOCK:
            msgspec.json.Decoder(kind)
        _READY.add(kind)


def _decode_or_repair(data: Json, decode: Callable[[Json], T]) -> T:
    try:
        return decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, *_NO_JSON):
        repaired = repair(data)
    try:
        return decode(repaired)
    except _NO_JSON as error:
        raise msgspec.DecodeError(type(error).__name__) from None


def _decode_valid(data: Json, kind: Any, lost: list[object]) -> Any:
    """Decode JSON, and add the names of the members that were left out to `lost`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        shape, inner = get_origin(kind), get_args(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return _decode_struct(data, kind, lost)
        if shape is list:
            items = msgspec.json.decode(data, type=list[msgspec.Raw])
            valid, has_nulls = (
                _decode_each(enumerate(items), inner[0], lost),
                NoneType in get_args(inner[0]),
            )
            return [valid.get(index) for index in range(len(items)) if has_nulls or index in valid]
        if shape is dict:
            members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            return _decode_each(members.items(), inner[1], lost)
        if shape in (Union, UnionType):
            for one in inner:
                with suppress(msgspec.ValidationError):
                    return _decode_valid(data, one, lost)
        if shape is Annotated:
            return msgspec.convert(_decode_valid(data, inner[0], lost), kind)
        if kind in (int, float, str):
            return _decode_scalar(data, kind)
        raise


def _decode_struct(data: Json, kind: type[msgspec.Struct], lost: list[object]) -> msgspec.Struct:
    members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    values: dict[str, Any] = {}
    for name, encoded_name, member_kind in _fields_of(kind):
        if encoded_name in members:
            values |= _decode_each([(name, members[encoded_name])], member_kind, lost)
    try:
        return kind(**values)
    except TypeError:
        raise msgspec.ValidationError("a required member is missing") from None


def _decode_each(
    members: Iterable[tuple[K, msgspec.Raw]], kind: Any, lost: list[object]
) -> dict[K, Any]:
    """Decode the members that match `kind`."""
    values = {}
    for name, data in members:
        try:
            values[name] = _decode_valid(data, kind, lost)
        except msgspec.ValidationError:
            if bytes(data) != b"null":
                lost.append(name)
    return values


def _decode_scalar(data: Json, kind: type[int | float | str]) -> int | float | str:
    if kind is str:
        msgspec.json.decode(data, type=int | float)
        return data if isinstance(data, str) else bytes(data).decode()
    with suppress(msgspec.ValidationError):
        return msgspec.json.decode(data, type=kind, strict=False)
    number = msgspec.json.decode(data, type=float, strict=False)
    return int(number) if math.isfinite(number) else msgspec.convert(number, kind)


@lru_cache(maxsize=256)
def _fields_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return the name, the name in JSON and the type of each field."""
    fields = msgspec.structs.fields(kind)
    return tuple((one.name, one.encode_name, one.type) for one in fields)
