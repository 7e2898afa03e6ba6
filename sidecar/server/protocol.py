"""Parses messages, and dispatches them to features. Every request gets exactly one answer.

The protocol class works around problems in pygls 2.1 (see docs/explanation/architecture.md).
It answers malformed requests, exits with the correct code, tracks client and server requests
separately, and validates custom messages. Error messages and logs contain neither tracebacks
nor text from documents.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from enum import Enum
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple, Optional, TypeGuard, get_args, get_origin

import attrs
import msgspec
from cattrs import Converter
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, default_converter, lsp_method

from sidecar import typed
from sidecar.errors import BadParamsError, RequestError, SidecarError, log_defect
from sidecar.server.methods import NOTIFICATIONS, PROTOCOL_VERSION, REQUESTS
from sidecar.server.stdio import MAX_DEPTH, InvalidFrame
from sidecar.text.printable import message as printable
from sidecar.text.printable import shorten_error
from sidecar.workspace.workspace import Event

logger = logging.getLogger(__name__)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
SERVER_NOT_INITIALIZED = -32002
REQUEST_FAILED = -32803
REQUEST_CANCELLED = -32800

_BAD_PARAMS = ("badParams", "unknownDocument")


def error_for_exception(exc: BaseException) -> dict[str, Any]:
    """Return a JSON-RPC error object for an exception.

    Unexpected exceptions are logged without their message.
    """
    if isinstance(exc, SidecarError):
        code = INVALID_PARAMS if exc.kind in _BAD_PARAMS else REQUEST_FAILED
        return make_error(code, str(exc), exc.kind, retryable=exc.retryable)
    if isinstance(exc, asyncio.CancelledError | CancelledError):
        return make_error(REQUEST_CANCELLED, "the request was cancelled", None, retryable=True)
    if isinstance(exc, JsonRpcException):
        return make_error(exc.code or REQUEST_FAILED, exc.message or "failed", "badParams")
    log_defect(exc)
    return make_error(
        REQUEST_FAILED, f"internal error ({type(exc).__name__}); see the server log", "internal"
    )


def make_error(
    code: int, message: str, kind: str | None, *, retryable: bool = False
) -> dict[str, Any]:
    """Return a JSON-RPC error object. If `kind` is None, the error has no data."""
    body: dict[str, Any] = {"code": code, "message": shorten_error(printable(message))}
    if kind is not None:
        body["data"] = {"kind": kind, "retryable": retryable}
    return body


_RECORDING = ("context/response", "cost/record")
"""Requests that record a call. They cannot be cancelled because the call has been billed."""

_LONG_BYTES = 1_000_000

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]+|[\]}]+', re.DOTALL)


class InvalidBodyError(BadParamsError):
    """Raised if a message body cannot be parsed. The error message contains no part of the body.

    `outline` contains the top-level members that could be read, such as `id` and `method`.
    """

    def __init__(self, reason: str, outline: dict[str, Any]) -> None:
        super().__init__(reason)
        self.outline = outline


def parse(body: bytes) -> Any:
    """Parse a message body.

    Raises:
        InvalidBodyError: The body is not valid JSON, contains a number that is not finite, or is
            nested more than `MAX_DEPTH` levels deep.
    """
    try:
        value = _decode(body)
    except (ValueError, RecursionError):
        raise InvalidBodyError("the body is not valid JSON", _read_outline(body)) from None
    # Most long bodies contain one long string. Counting the brackets in it would be slower than
    # checking the depth of the parsed value.
    suspect = len(body) >= _LONG_BYTES or body.count(b"[") + body.count(b"{") > MAX_DEPTH
    if suspect and _is_too_deep(value):
        raise InvalidBodyError(
            f"the body is nested more than {MAX_DEPTH} levels deep", _read_outline(body)
        )
    return value


def _decode(body: bytes) -> Any:
    """Decode a body with msgspec, or with `json` if that fails.

    msgspec is two to four times as fast but rejects lone surrogates. Neovim sends a buffer's bytes
    as they are, even if they are not UTF-8. They are decoded as lone surrogates.
    """
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.json.decode(body)
    try:
        text = body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = body.decode("utf-8", "surrogateescape")
    return _STRICT.decode(text)


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


def _read_outline(body: bytes) -> dict[str, Any]:
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


def _decode_leniently(body: bytes) -> dict[str, Any]:
    try:
        value = _LENIENT.decode(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class Encoded(NamedTuple):
    """The result of a request, encoded as JSON by a worker because it may be long."""

    body: bytes

    @classmethod
    def of(cls, result: msgspec.Struct | Sequence[msgspec.Struct]) -> Encoded:
        """Encode a result that contains no LSP types. This is several times as fast as `encode`."""
        try:
            return cls(msgspec.json.encode(result))
        except UnicodeEncodeError:  # a lone surrogate must be escaped
            return cls(json.dumps(msgspec.to_builtins(result), separators=(",", ":")).encode())


def dump(message: Any, converter: Converter) -> bytes:
    """Encode a message as a frame. See `encode`."""
    if isinstance(message, dict) and isinstance(result := message.get("result"), Encoded):
        head = encode({**message, "result": None}, converter).removesuffix(b"null}")
        body = b"%s%s}" % (head, result.body)
    else:
        body = encode(message, converter)
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def encode(value: Any, converter: Converter) -> bytes:
    """Encode a value as JSON. Lone surrogates are escaped, because UTF-8 cannot encode them.

    Raises:
        ValueError: The value contains a number that is not finite.
        TypeError, RecursionError: The value cannot be encoded as JSON.
    """
    return json.dumps(
        value,
        default=lambda value: plain(value, converter),
        separators=(",", ":"),
        allow_nan=False,
    ).encode("ascii")


def strict_converter() -> Converter:
    """Return lsprotocol's converter with strict type checks.

    As required by LSP, unknown enum values are dropped from lists, and optional members with
    an unknown enum value are treated as missing.
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
        return int(value)  # clients in some languages send whole numbers as floats
    if kind in (str, int, bool) and type(value) is not kind:
        raise TypeError
    return kind(value)


def plain(value: Any, converter: Converter) -> Any:
    return converter.unstructure(value) if attrs.has(type(value)) else msgspec.to_builtins(value)


def convert_custom_params(params: Any, kind: type[msgspec.Struct]) -> Any:
    """Convert the params of a custom message, with strict type checks.

    Raises:
        BadParamsError: A member has the wrong type. The message names the member.
    """
    try:
        return typed.convert({} if params is None else params, kind, strict=True)
    except msgspec.ValidationError as exc:
        raise BadParamsError(str(exc)) from None
    except UnicodeEncodeError:  # raised by msgspec for a lone surrogate in an unexpected string
        raise BadParamsError("the params are invalid") from None


def convert_lsp_message(message: dict[str, Any], kind: type[Any], converter: Converter) -> Any:
    """Convert a standard LSP message.

    Raises:
        BadParamsError: The message is malformed. The error names only the method because
            error messages from cattrs quote the contents.
    """
    try:
        return converter.structure(message, kind)
    except Exception:
        method = message.get("method", "the answer")
        raise BadParamsError(f"the params of {method} are invalid") from None


# Only these pygls handlers are used. The others would store a second copy of each document.
_BUILT_IN = (
    types.INITIALIZE,
    types.INITIALIZED,
    types.SHUTDOWN,
    types.SET_TRACE,
    types.WORKSPACE_EXECUTE_COMMAND,
    types.WINDOW_WORK_DONE_PROGRESS_CANCEL,
)


Handler = Callable[[Any], Any]


class Feature:
    """The base class of all features: handlers for a group of methods, and reactions to events.

    A feature gets only the objects that it uses, and does not know the other features. If one
    feature affects another, it publishes an event.
    """

    handlers: Mapping[str, Handler] = {}
    """The handlers of requests and notifications, by method. Those of requests may be async."""
    options: Mapping[str, object] = {}
    """The options that `initialize` announces, by method."""
    commands: Mapping[str, Callable[..., Any]] = {}
    """The handlers of `workspace/executeCommand`, by command."""
    malformed_handlers: Mapping[str, Callable[[object], None]] = {}
    """The handlers of malformed notifications, by method. They receive the params, or None."""

    def on_initialize(self, params: types.InitializeParams) -> None:
        """Adapt to the client."""

    def announce(self, capabilities: types.ServerCapabilities) -> None:
        """Change the capabilities that `initialize` announces."""

    def on_event(self, event: Event) -> None:
        """Update everything of this feature that depends on the event."""

    def close(self) -> None:
        """Stop work on threads."""


class SidecarProtocol(LanguageServerProtocol):
    """Dispatches parsed messages to the features' handlers."""

    def __init__(self, server: LanguageServer, converter: Converter) -> None:
        self.features: list[Feature] = []
        self.state: str = "new"
        self.initialized = asyncio.Event()
        self._exit_code: asyncio.Future[int] | None = None
        self._running: dict[int | str, tuple[str, asyncio.Future[Any]]] = {}
        """The method and task of each running request from the client, keyed by request ID.

        pygls tracks requests to the client in `_request_futures`.
        """
        super().__init__(server, converter)

    def add(self, feature: Feature) -> None:
        """Dispatch messages to a feature's handlers.

        Raises:
            TypeError: The handler of a notification is async, so it would never run.
        """
        for method, handler in feature.handlers.items():
            if inspect.iscoroutinefunction(handler) and not _is_request(method):
                raise TypeError(f"the handler of {method} must not be async")
        self.features.append(feature)
        # pygls' decorators cannot register methods of an object.
        self.fm.features.update(feature.handlers)
        self.fm.feature_options.update(feature.options)
        self.fm.commands.update(feature.commands)

    def start(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """Start a session. Returns a future for the exit code of the process."""
        self._exit_code = loop.create_future()
        return self._exit_code

    def end(self, code: int) -> None:
        """End the session. The exit code is 0 after a `shutdown` request, and `code` otherwise."""
        if self._exit_code is not None and not self._exit_code.done():
            self._exit_code.set_result(0 if self.state == "shutdown" else code)

    # -- incoming ---------------------------------------------------------------------------

    def receive(self, frame: bytes | InvalidFrame) -> None:
        """Handle a frame. Never raises, so errors do not affect later frames."""
        if self._exit_code is not None and self._exit_code.done():
            return
        try:
            self._receive(frame)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            log_defect(exc)

    def _receive(self, frame: bytes | InvalidFrame) -> None:
        if isinstance(frame, InvalidFrame):
            self._refuse(None, PARSE_ERROR, frame.reason)
            if frame.fatal:
                logger.error("%s; stopping", frame.reason)
                self.end(1)
            return
        try:
            message = parse(frame)
        except InvalidBodyError as exc:
            self._refuse_body(exc)
            return
        if isinstance(message, dict):
            self._dispatch(message)
        else:
            self._refuse(None, INVALID_REQUEST, "a message must be a JSON object")

    def _refuse_body(self, refused: InvalidBodyError) -> None:
        """Respond to a message that cannot be parsed, unless it is a notification or a response."""
        msg_id, method = refused.outline.get("id"), refused.outline.get("method")
        logger.warning("rejected a message: %s", refused)
        if method is None and self._receive_response({"id": msg_id, "error": {}}):
            return
        self._report_malformed(method, refused.outline.get("params"))
        if method is not None or not _is_response(refused.outline):
            self._refuse(msg_id if _is_id(msg_id) else None, PARSE_ERROR, str(refused))

    def _dispatch(self, message: dict[str, Any]) -> None:
        method, msg_id = message.get("method"), message.get("id")
        if method is None and (self._receive_response(message) or _is_response(message)):
            return
        if "id" in message and not _is_id(msg_id):
            self._refuse(None, INVALID_REQUEST, "an id must be a string or an integer")
        elif message.get("jsonrpc") != self.VERSION:
            self._refuse(msg_id, INVALID_REQUEST, f'jsonrpc must be "{self.VERSION}"')
        elif not isinstance(method, str):
            self._refuse(msg_id, INVALID_REQUEST, "a method must be a string")
        elif msg_id is None:
            self._receive_notification(method, message)
        else:
            self._receive_request(msg_id, method, message)

    def _receive_request(self, msg_id: int | str, method: str, message: dict[str, Any]) -> None:
        if problem := self._sequence_error(msg_id, method):
            self._refuse(msg_id, *problem)
            return
        handler = self._find_handler(method, is_request=True)
        if handler is None:
            self._refuse(msg_id, METHOD_NOT_FOUND, f"unknown method {method[:100]!r}")
            return
        try:
            result = _call_handler(handler, self._structure_params(method, message))
        except BaseException as exc:  # Rust libraries raise a BaseException when they panic
            self._send_error(msg_id, error_for_exception(exc))
            return
        if not inspect.isawaitable(result):
            self._send_result(msg_id, result)
            return
        task = asyncio.ensure_future(result)
        self._running[msg_id] = method, task
        task.add_done_callback(partial(self._send_answer, msg_id))

    def _send_answer(self, msg_id: int | str, task: asyncio.Future[Any]) -> None:
        del self._running[msg_id]
        try:
            result = task.result()
        except BaseException as exc:  # includes cancellation
            self._send_error(msg_id, error_for_exception(exc))
            return
        self._send_result(msg_id, result)

    def _sequence_error(self, msg_id: int | str, method: str) -> tuple[int, str] | None:
        if msg_id in self._running:
            return INVALID_REQUEST, "a request with this id is already running"
        if self.state == "shutdown":
            return INVALID_REQUEST, "the server is shutting down"
        if self.state == "new" and method != types.INITIALIZE:
            return SERVER_NOT_INITIALIZED, "the server is not initialized yet"
        if self.state != "new" and method == types.INITIALIZE:
            return INVALID_REQUEST, "the server is already initialized"
        return None

    def _receive_notification(self, method: str, message: dict[str, Any]) -> None:
        if method == types.EXIT:
            self.end(1)
            return
        if method == types.CANCEL_REQUEST:
            params = message.get("params")
            self._cancel(params.get("id") if isinstance(params, dict) else None)
            return
        handler = None if self.state != "running" else self._find_handler(method, is_request=False)
        if handler is None:
            logger.debug("ignored a notification without a handler")
            return
        try:
            params = self._structure_params(method, message)
        except SidecarError as exc:
            logger.warning("ignored a notification: %s", exc)
            self._report_malformed(method, message.get("params"))
            return
        try:
            _call_handler(handler, params)
        except SidecarError as exc:
            logger.warning("ignored a notification: %s", exc)

    def _report_malformed(self, method: object, params: object) -> None:
        for feature in self.features:
            if isinstance(method, str) and method in feature.malformed_handlers:
                feature.malformed_handlers[method](params)

    def _cancel(self, msg_id: object) -> None:
        if _is_id(msg_id) and msg_id in self._running:
            method, task = self._running[msg_id]
            if method not in _RECORDING:
                task.cancel()

    def _receive_response(self, message: dict[str, Any]) -> bool:
        msg_id: Any = message.get("id")
        if not _is_id(msg_id) or msg_id not in self._request_futures:
            return False
        future, kind = self._request_futures.pop(msg_id), self._result_types.pop(msg_id, None)
        if future.done():
            return True
        if message.get("error") is not None:
            future.set_exception(RequestError("internal", "the client rejected the request"))
            return True
        try:
            answer = convert_lsp_message(message, kind, self._converter) if kind else None
            future.set_result(answer.result if answer is not None else message.get("result"))
        except SidecarError as exc:
            future.set_exception(exc)
        return True

    def _find_handler(self, method: str, *, is_request: bool) -> Handler | None:
        """Return the handler for a request or notification, or None if there is none."""
        if _is_request(method) is not is_request:
            return None
        handlers = self.fm.builtin_features if method in _BUILT_IN else self.fm.features
        return handlers.get(method)

    def _structure_params(self, method: str, message: dict[str, Any]) -> Any:
        if method in REQUESTS:
            return convert_custom_params(message.get("params"), REQUESTS[method].params)
        kind = types.METHOD_TO_TYPES.get(method, (None,))[0]
        if kind is None:
            return message.get("params")
        return convert_lsp_message(message, kind, self._converter).params

    # -- outgoing ---------------------------------------------------------------------------

    def _refuse(self, msg_id: int | str | None, code: int, message: str) -> None:
        self._send_error(msg_id, make_error(code, message, "badParams"))

    def _send_result(self, msg_id: int | str, result: Any) -> None:
        self._send_data({"jsonrpc": self.VERSION, "id": msg_id, "result": result})

    def _send_error(self, msg_id: int | str | None, error: dict[str, Any]) -> None:
        self._send_data({"jsonrpc": self.VERSION, "id": msg_id, "error": error})

    def _send_data(self, data: Any) -> None:
        if self.writer is None or not data:
            return
        try:
            frame = dump(data, self._converter)
        except Exception as exc:
            log_defect(exc)
            if not isinstance(data, dict) or "result" not in data:
                return
            error = make_error(REQUEST_FAILED, "cannot encode the result", "internal")
            self._send_error(data["id"], error)
            return
        self.writer.write(frame)

    def push(self, method: str, params: msgspec.Struct) -> None:
        """Send a custom notification."""
        if method not in NOTIFICATIONS:
            raise ValueError(f"{method} is not declared")
        self._send_data({"jsonrpc": self.VERSION, "method": method, "params": params})

    # -- life cycle -------------------------------------------------------------------------

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(
        self, params: types.InitializeParams
    ) -> Generator[Any, Any, types.InitializeResult]:
        """Initialize the session and announce the custom methods."""
        result: types.InitializeResult = yield from super().lsp_initialize(params)
        self.state = "running"
        for feature in self.features:
            feature.on_initialize(params)
            feature.announce(result.capabilities)
        result.capabilities.experimental = {
            "tokenSidecar": {
                "protocolVersion": PROTOCOL_VERSION,
                "requests": sorted(REQUESTS),
                "notifications": sorted(NOTIFICATIONS),
            }
        }
        return result

    @lsp_method(types.INITIALIZED)
    def lsp_initialized(self, *_: Any) -> None:
        """Allow requests to the client, which LSP forbids before this."""
        self.initialized.set()

    @lsp_method(types.SHUTDOWN)
    def lsp_shutdown(self, *_: Any) -> None:  # type: ignore[override]
        """Cancel all requests in progress. From now on, only `exit` is accepted."""
        for request in list(self._request_futures.values()):
            request.cancel()
        for msg_id in list(self._running):
            self._cancel(msg_id)
        self.state = "shutdown"

    @lsp_method(types.WORKSPACE_EXECUTE_COMMAND)
    def lsp_workspace__execute_command(self, params: types.ExecuteCommandParams) -> Any:
        """Run a command. Commands validate their own arguments.

        Raises:
            BadParamsError: The command does not exist.
        """
        command = self.fm.commands.get(params.command)
        if command is None:
            raise BadParamsError("unknown command")
        return command(*(params.arguments or ()))


def _call_handler(handler: Handler, params: Any) -> Any:
    result = handler(params)
    if not isinstance(result, GeneratorType):
        return result
    try:
        next(result)  # handlers of pygls yield only to call other handlers, which do not exist
    except StopIteration as stop:
        return stop.value


def _is_request(method: str) -> bool:
    _, result, *_ = types.METHOD_TO_TYPES.get(method, (None, None))
    return method in REQUESTS or result is not None


def _is_id(value: object) -> TypeGuard[int | str]:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _is_response(message: dict[str, Any]) -> bool:
    return "result" in message or "error" in message
