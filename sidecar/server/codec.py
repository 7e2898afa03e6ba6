"""JSON bodies to typed messages and back: msgspec for our own, lsprotocol's converter for LSP's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from sidecar.workspace.errors import RequestError

if TYPE_CHECKING:
    from cattrs import Converter


def parse(body: bytes) -> Any:
    """The JSON value of a body.

    Raises:
        ValueError: it is not JSON, or nested too deeply. The message quotes nothing of it.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not valid JSON") from None


def dump(message: Any, converter: Converter) -> bytes:
    """A frame for `message`; lone surrogates are escaped, so that any text can be sent."""
    body = json.dumps(message, default=lambda value: plain(value, converter), separators=(",", ":"))
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body.encode("ascii"))


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
        RequestError: `badParams`.
    """
    try:
        return msgspec.convert({} if params is None else params, kind, strict=True)
    except msgspec.ValidationError as exc:
        raise RequestError("badParams", str(exc)) from None
    except UnicodeEncodeError:  # msgspec's own, for a lone surrogate where it expected no string
        raise RequestError("badParams", "the params have a wrong shape") from None


def structure_lsp(message: dict[str, Any], kind: type[Any], converter: Converter) -> Any:
    """A standard LSP message.

    Raises:
        RequestError: `badParams`, naming the method only: cattrs' own texts quote the contents.
    """
    try:
        return converter.structure(message, kind)
    except Exception:
        method = message.get("method", "the answer")
        raise RequestError("badParams", f"the params of {method} have a wrong shape") from None
