"""JSON bodies to typed messages and back: msgspec for our own, lsprotocol's converter for LSP's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Optional, get_args, get_origin

import attrs
import msgspec
from pygls.protocol import default_converter

from sidecar import typed
from sidecar.errors import BadParamsError
from sidecar.server.framing import MAX_DEPTH, Body

if TYPE_CHECKING:
    from cattrs import Converter


_LONG_BYTES = 1_000_000

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]+|[\]}]+', re.DOTALL)


class RefusedBodyError(BadParamsError):
    """A body that is not taken; the message quotes nothing of it.

    `outline` holds the members of the message as far as they can be read, false for each object or
    array among them: who asked can be answered.
    """

    def __init__(self, reason: str, outline: dict[str, Any]) -> None:
        super().__init__(reason)
        self.outline = outline


def parse(body: Body) -> Any:
    """The JSON value of a body; its numbers are finite, and it is `MAX_DEPTH` deep at most.

    Raises:
        RefusedBodyError: it is not such JSON.
    """
    try:
        value = _decoded(body)
    except UnicodeDecodeError:
        raise RefusedBodyError("the body is not UTF-8", _replaced(body)) from None
    except (ValueError, RecursionError):
        raise RefusedBodyError("the body is not valid JSON", _outline(body)) from None
    # Of a long body the value is looked through sooner than the bytes: it is mostly one text.
    suspect = len(body) >= _LONG_BYTES or body.count(b"[") + body.count(b"{") > MAX_DEPTH
    if suspect and _is_too_deep(value):
        raise RefusedBodyError(f"the body is nested over {MAX_DEPTH} deep", _outline(body))
    return value


def _decoded(body: Body) -> Any:
    """By msgspec, which takes a half to a quarter of the time; it takes less (no lone surrogates),
    so that what it refuses is for the other to judge."""
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.json.decode(body)
    return _STRICT.decode(body.decode("utf-8", "surrogatepass"))


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError("a number that is not finite")
    return value


def _short(number: str) -> int | None:
    return int(number) if len(number) < 1_000 else None


_STRICT = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
_LENIENT = json.JSONDecoder(parse_int=_short)


def _is_too_deep(value: Any) -> bool:
    """Whether a value is over `MAX_DEPTH` deep; looks at it level by level, without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for each in level for child in _children(each)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    """The objects and arrays in an object or array."""
    if isinstance(value, dict):
        return [child for child in value.values() if isinstance(child, dict | list)]
    if isinstance(value, list):
        return [child for child in value if isinstance(child, dict | list)]
    return []


def _outline(body: Body) -> dict[str, Any]:
    """The members of an object whose contents may be deep or broken; empty where it is none."""
    kept, start, depth = [], 0, 0
    for match in _TOKEN.finditer(body):
        run = match[0]
        if run[0] in b"[{":
            if depth < 2 <= depth + len(run):
                kept += [body[start : match.start() + 1 - depth], b"false"]
            depth += len(run)
        elif run[0] in b"]}":
            if depth - len(run) < 2 <= depth:
                start = match.start() + depth - 1
            depth -= len(run)
    return _replaced(b"".join([*kept, body[start:]]))


def _replaced(body: Body) -> dict[str, Any]:
    """The object of a body, U+FFFD for what is not UTF-8; empty where it is none."""
    try:
        value = _LENIENT.decode(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def dump(message: Any, converter: Converter) -> bytes:
    """A frame for `message`; lone surrogates are escaped, so that any text can be sent.

    Raises:
        ValueError: it holds a number that is not finite.
        TypeError, RecursionError: it holds what is no JSON.
    """
    body = _flat(message)
    if body is None:
        text = json.dumps(
            message,
            default=lambda value: plain(value, converter),
            separators=(",", ":"),
            allow_nan=False,
        )
        body = text.encode("ascii")
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def _flat(message: Any) -> bytes | None:
    """The same by msgspec, in a third of the time, for an answer that is one object of ours with
    nothing in it but plain values and ASCII, such as a count; else None."""
    result = message.get("result") if isinstance(message, dict) else None
    if not isinstance(result, msgspec.Struct):
        return None
    for value in msgspec.structs.astuple(result):
        if type(value) not in _PLAIN or (type(value) is float and not math.isfinite(value)):
            return None
    with suppress(UnicodeEncodeError, OverflowError):
        body = msgspec.json.encode(message)
        return body if body.isascii() else None
    return None


_PLAIN = frozenset((str, int, float, bool, type(None)))


def strict_converter() -> Converter:
    """Return lsprotocol's converter, stricter about types and tolerant of unknown enum values.

    Any value is not taken for a text or a number. Enum values of a later protocol are left out, as
    LSP asks: from a list, or as if an optional member were absent.
    """
    converter: Converter = default_converter()  # type: ignore[no-untyped-call]
    for kind in (str, int, bool):
        converter.register_structure_hook(kind, _checked)
    converter.register_structure_hook_func(_is_enum_list, _known_members)
    converter.register_structure_hook_func(_is_optional_enum, _known_member)
    return converter


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _is_enum_list(kind: Any) -> bool:
    return get_origin(kind) is Sequence and _is_enum(get_args(kind)[0])


def _is_optional_enum(kind: Any) -> bool:
    return any(_is_enum(each) and kind == Optional[each] for each in get_args(kind))  # noqa: UP045


def _known_members(values: Any, kind: Any) -> list[Enum]:
    """Structure a list of enum values; unknown values are left out."""
    if not isinstance(values, list):
        raise TypeError
    members = (_member(get_args(kind)[0], value) for value in values)
    return [member for member in members if member is not None]


def _known_member(value: Any, kind: Any) -> Enum | None:
    """Structure an optional enum value; an unknown value counts as absent."""
    return _member(next(filter(_is_enum, get_args(kind))), value)


def _member(kind: type[Enum], value: Any) -> Enum | None:
    with suppress(ValueError):
        return kind(value)
    return None


def _checked(value: Any, kind: type[Any]) -> Any:
    """`kind` may be an enumeration of texts or numbers: that one checks for itself."""
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # some languages have but one type of numbers
    if kind in (str, int, bool) and type(value) is not kind:
        raise TypeError
    return kind(value)


def plain(value: Any, converter: Converter) -> Any:
    """One message object as JSON-able builtins."""
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if attrs.has(type(value)):
        return converter.unstructure(value)
    return msgspec.to_builtins(value)


def structure_custom(params: Any, kind: type[msgspec.Struct]) -> Any:
    """Our own params, strictly: a wrong type is an error that names the member.

    Raises:
        BadParamsError
    """
    try:
        return typed.convert({} if params is None else params, kind, strict=True)
    except msgspec.ValidationError as exc:
        raise BadParamsError(str(exc)) from None
    except UnicodeEncodeError:  # msgspec's own, for a lone surrogate where it expected no string
        raise BadParamsError("the params have a wrong shape") from None


def structure_lsp(message: dict[str, Any], kind: type[Any], converter: Converter) -> Any:
    """A standard LSP message.

    Raises:
        BadParamsError: naming the method only: cattrs' own texts quote the contents.
    """
    try:
        return converter.structure(message, kind)
    except Exception:
        method = message.get("method", "the answer")
        raise BadParamsError(f"the params of {method} have a wrong shape") from None
