"""Decodes and encodes messages: msgspec for custom messages, lsprotocol for LSP."""

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
    """A body that cannot be parsed. The message quotes none of it.

    `outline` has the members that can be read, so that a request can be answered by its id.
    """

    def __init__(self, reason: str, outline: dict[str, Any]) -> None:
        super().__init__(reason)
        self.outline = outline


def parse(body: Body) -> Any:
    """Parse a body as JSON with finite numbers, at most `MAX_DEPTH` levels deep.

    Raises:
        RefusedBodyError: The body is not such JSON.
    """
    try:
        value = _decode(body)
    except UnicodeDecodeError:
        raise RefusedBodyError("the body is not UTF-8", _decode_leniently(body)) from None
    except (ValueError, RecursionError):
        raise RefusedBodyError("the body is not valid JSON", _read_outline(body)) from None
    # A long body is mostly one string, so that walking its value is faster than scanning it.
    suspect = len(body) >= _LONG_BYTES or body.count(b"[") + body.count(b"{") > MAX_DEPTH
    if suspect and _is_too_deep(value):
        raise RefusedBodyError(
            f"the body is nested more than {MAX_DEPTH} levels deep", _read_outline(body)
        )
    return value


def _decode(body: Body) -> Any:
    """Decode a body with msgspec, which is two to four times as fast as `json`.

    msgspec refuses lone surrogates, so `json` tries what msgspec refuses.
    """
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.json.decode(body)
    return _STRICT.decode(body.decode("utf-8", "surrogatepass"))


def _parse_finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError("a number is not finite")
    return value


def _parse_short_integer(number: str) -> int | None:
    return int(number) if len(number) < 1_000 else None


_STRICT = json.JSONDecoder(parse_float=_parse_finite, parse_constant=_parse_finite)
_LENIENT = json.JSONDecoder(parse_int=_parse_short_integer)


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [child for child in value.values() if isinstance(child, dict | list)]
    if isinstance(value, list):
        return [child for child in value if isinstance(child, dict | list)]
    return []


def _read_outline(body: Body) -> dict[str, Any]:
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
    return _decode_leniently(b"".join([*kept, body[start:]]))


def _decode_leniently(body: Body) -> dict[str, Any]:
    try:
        value = _LENIENT.decode(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def dump(message: Any, converter: Converter) -> bytes:
    """Encode a message as a frame. Lone surrogates are escaped, so that any text can be sent.

    Raises:
        ValueError: The message contains a number that is not finite.
        TypeError, RecursionError: The message is not JSON.
    """
    body = json.dumps(
        message,
        default=lambda value: plain(value, converter),
        separators=(",", ":"),
        allow_nan=False,
    ).encode("ascii")
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def strict_converter() -> Converter:
    """Return lsprotocol's converter with strict types.

    Unknown enum values are dropped from lists and count as absent in optional members, as LSP
    requires.
    """
    converter: Converter = default_converter()  # type: ignore[no-untyped-call]
    for kind in (str, int, bool):
        converter.register_structure_hook(kind, _check_type)
    converter.register_structure_hook_func(_is_enum_list, _structure_enum_list)
    converter.register_structure_hook_func(_is_optional_enum, _structure_optional_enum)
    return converter


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _is_enum_list(kind: Any) -> bool:
    return get_origin(kind) is Sequence and _is_enum(get_args(kind)[0])


def _is_optional_enum(kind: Any) -> bool:
    return any(_is_enum(arg) and kind == Optional[arg] for arg in get_args(kind))  # noqa: UP045


def _structure_enum_list(values: Any, kind: Any) -> list[Enum]:
    if not isinstance(values, list):
        raise TypeError
    members = (_enum_member_or_none(get_args(kind)[0], value) for value in values)
    return [member for member in members if member is not None]


def _structure_optional_enum(value: Any, kind: Any) -> Enum | None:
    return _enum_member_or_none(next(filter(_is_enum, get_args(kind))), value)


def _enum_member_or_none(kind: type[Enum], value: Any) -> Enum | None:
    with suppress(ValueError):
        return kind(value)
    return None


def _check_type(value: Any, kind: type[Any]) -> Any:
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # some languages have only one number type
    if kind in (str, int, bool) and type(value) is not kind:
        raise TypeError
    return kind(value)


def plain(value: Any, converter: Converter) -> Any:
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if attrs.has(type(value)):
        return converter.unstructure(value)
    return msgspec.to_builtins(value)


def structure_custom(params: Any, kind: type[msgspec.Struct]) -> Any:
    """Convert custom params strictly.

    Raises:
        BadParamsError: A member has a wrong type. The message names the member.
    """
    try:
        return typed.convert({} if params is None else params, kind, strict=True)
    except msgspec.ValidationError as exc:
        raise BadParamsError(str(exc)) from None
    except UnicodeEncodeError:  # raised by msgspec for a lone surrogate in an unexpected string
        raise BadParamsError("the params are invalid") from None


def structure_lsp(message: dict[str, Any], kind: type[Any], converter: Converter) -> Any:
    """Convert a standard LSP message.

    Raises:
        BadParamsError: The message has a wrong shape. The error only names the method, because
            messages of cattrs quote contents.
    """
    try:
        return converter.structure(message, kind)
    except Exception:
        method = message.get("method", "the answer")
        raise BadParamsError(f"the params of {method} are invalid") from None
