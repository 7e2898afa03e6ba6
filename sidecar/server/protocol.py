"""The protocol: pygls' language server with every request answered and nothing of a text logged.

Defects of pygls 2.1 that this class deals with (told in docs/explanation/architecture.md): requests
that cannot be structured get an answer, documents are ours, errors carry no traceback
or text, exit codes are right, and custom messages are typed strictly.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.protocol import LanguageServerProtocol, lsp_method

from sidecar.server import codec, errors
from sidecar.server.framing import BadFrame
from sidecar.server.messages import NOTIFICATIONS, PROTOCOL_VERSION, REQUESTS
from sidecar.workspace.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Generator

    import msgspec
    from cattrs import Converter

    from sidecar.server.server import SidecarServer

logger = logging.getLogger(__name__)

Handler = Callable[[Any], Any]

# pygls keeps documents of its own for these; ours are the only ones.
_OURS = (
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_CLOSE,
    types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS,
)


class SidecarProtocol(LanguageServerProtocol):
    """Dispatches parsed messages; handlers are plain functions that may return an awaitable."""

    _server: SidecarServer

    def __init__(self, server: SidecarServer, converter: Converter) -> None:
        self.custom: dict[str, Handler] = {}
        self.state: str = "new"
        self._done: asyncio.Future[int] | None = None
        super().__init__(server, converter)

    def start(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """Begin a session; the future gets the process's exit code."""
        self._done = loop.create_future()
        return self._done

    def end(self, code: int) -> None:
        """End the session: 0 after an orderly `shutdown`, else `code`."""
        if self._done is not None and not self._done.done():
            self._done.set_result(0 if self.state == "shutdown" else code)

    # -- incoming ---------------------------------------------------------------------------

    def receive(self, frame: bytes | BadFrame) -> None:
        """Take one frame; whatever it holds, the session goes on."""
        if isinstance(frame, BadFrame):
            self._refuse(None, errors.PARSE_ERROR, frame.reason)
            return
        try:
            message = codec.parse(frame)
        except ValueError as exc:
            self._refuse(None, errors.PARSE_ERROR, str(exc))
            return
        if not isinstance(message, dict):
            self._refuse(None, errors.INVALID_REQUEST, "a message is one JSON object")
            return
        contextvars.copy_context().run(self._dispatch, message)

    def _dispatch(self, message: dict[str, Any]) -> None:
        method, msg_id = message.get("method"), message.get("id")
        if method is None and ("result" in message or "error" in message):
            self._take_response(message)
        elif "id" in message and not _is_id(msg_id):
            self._refuse(None, errors.INVALID_REQUEST, "an id is a string or an integer")
        elif not isinstance(method, str):
            self._refuse(msg_id, errors.INVALID_REQUEST, "a method is a string")
        elif msg_id is None:
            self._take_notification(method, message)
        else:
            self._take_request(msg_id, method, message)

    def _take_request(self, msg_id: int | str, method: str, message: dict[str, Any]) -> None:
        if problem := self._out_of_turn(method):
            self._refuse(msg_id, *problem)
            return
        handler = self._find(method)
        if handler is None:
            self._refuse(msg_id, errors.METHOD_NOT_FOUND, f"no method {method[:100]!r}")
            return
        try:
            params = self._params(method, message)
        except RequestError as exc:
            self._send_error(msg_id, errors.error_body(exc))
            return
        self._ctx_msg_id.set(msg_id)
        callback = partial(self._send_handler_result, msg_id=msg_id)
        self._execute_handler(msg_id, handler, callback, (params,))

    def _out_of_turn(self, method: str) -> tuple[int, str] | None:
        if self.state == "shutdown":
            return errors.INVALID_REQUEST, "the server was shut down"
        if self.state == "new" and method != types.INITIALIZE:
            return errors.SERVER_NOT_INITIALIZED, "the server was not initialized yet"
        if self.state != "new" and method == types.INITIALIZE:
            return errors.INVALID_REQUEST, "the server was initialized already"
        return None

    def _take_notification(self, method: str, message: dict[str, Any]) -> None:
        if method == types.EXIT:
            self.end(1)
            return
        handler = None if self.state in ("new", "shutdown") else self._find(method)
        if handler is None and method != types.CANCEL_REQUEST:
            logger.debug("ignored a notification that has no handler here")
            return
        try:
            params = self._params(method, message)
        except RequestError as exc:
            logger.warning("ignored a notification: %s", exc)
            return
        if method == types.CANCEL_REQUEST:
            self._handle_cancel_notification(params.id)
        elif handler is not None:
            self._execute_handler("", handler, self._check_handler_result, (params,))

    def _take_response(self, message: dict[str, Any]) -> None:
        msg_id: Any = message.get("id")
        if not _is_id(msg_id):
            return
        future = self._request_futures.pop(msg_id, None)
        kind = self._result_types.pop(msg_id, None)
        if future is None or future.done():
            return
        if message.get("error") is not None:
            future.set_exception(RequestError("internal", "the client refused the request"))
            return
        try:
            answer = codec.structure_lsp(message, kind, self._converter) if kind else None
            future.set_result(answer.result if answer is not None else message.get("result"))
        except RequestError as exc:
            future.set_exception(exc)

    def _find(self, method: str) -> Handler | None:
        if method in self.custom:
            return self.custom[method]
        if method not in _OURS and method in self.fm.builtin_features:
            return self.fm.builtin_features[method]  # type: ignore[no-any-return]
        return self.fm.features.get(method)

    def _params(self, method: str, message: dict[str, Any]) -> Any:
        if method in REQUESTS:
            return codec.structure_custom(message.get("params"), REQUESTS[method].params)
        kind = types.METHOD_TO_TYPES.get(method, (None,))[0]
        if kind is None:
            return message.get("params")
        return codec.structure_lsp(message, kind, self._converter).params

    # -- running handlers -------------------------------------------------------------------

    def _execute_handler(
        self,
        msg_id: int | str,
        handler: Handler,
        callback: Callable[[Any], None],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Run a handler at once; only one that returns an awaitable becomes a task."""
        if inspect.isgeneratorfunction(handler):
            super()._execute_handler(msg_id, handler, callback, args, kwargs)
            return
        future: Future[Any] = Future()
        try:
            result = handler(*(args or ()), **(kwargs or {}))
        except Exception as exc:
            future.set_exception(exc)
            callback(future)
            return
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(result)
            if msg_id != "":
                self._request_futures[msg_id] = task  # type: ignore[assignment]
            task.add_done_callback(callback)
            return
        future.set_result(result)
        callback(future)

    def _send_handler_result(self, future: Any, *, msg_id: int | str) -> None:
        self._request_futures.pop(msg_id, None)
        try:
            result = future.result()
        except BaseException as exc:  # a cancelled or panicking handler is answered too
            self._send_error(msg_id, errors.error_body(exc))
            return
        self._send_data({"jsonrpc": "2.0", "id": msg_id, "result": result})

    def _check_handler_result(self, future: Any) -> None:
        try:
            future.result()
        except asyncio.CancelledError:
            return
        except BaseException as exc:  # a notification has no answer: the log is the place
            errors.log_defect(exc)

    # -- outgoing ---------------------------------------------------------------------------

    def _refuse(self, msg_id: int | str | None, code: int, message: str) -> None:
        self._send_error(msg_id, errors.make_error(code, message, "badParams"))

    def _send_error(self, msg_id: int | str | None, error: dict[str, Any]) -> None:
        self._send_data({"jsonrpc": "2.0", "id": msg_id, "error": error})

    def _send_data(self, data: Any) -> None:
        if self.writer is None or not data:
            return
        try:
            frame = codec.dump(data, self._converter)
        except (TypeError, ValueError) as exc:
            errors.log_defect(exc)
            if isinstance(data, dict) and "id" in data:
                error = errors.make_error(errors.REQUEST_FAILED, "unprintable result", "internal")
                answer = {"jsonrpc": "2.0", "id": data["id"], "error": error}
                frame = codec.dump(answer, self._converter)
            else:
                return
        self.writer.write(frame)

    def push(self, method: str, params: msgspec.Struct) -> None:
        """Send one of our own notifications."""
        if method not in NOTIFICATIONS:
            raise ValueError(f"{method} is not announced")
        self._send_data({"jsonrpc": "2.0", "method": method, "params": params})

    # -- life cycle -------------------------------------------------------------------------

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(
        self, params: types.InitializeParams
    ) -> Generator[Any, Any, types.InitializeResult]:
        """Announce our own methods beside LSP's."""
        result: types.InitializeResult = yield from super().lsp_initialize(params)
        self.state = "running"
        self._server.providers.hold_back(result.capabilities, params.capabilities)
        result.capabilities.experimental = {
            "tokenSidecar": {
                "protocolVersion": PROTOCOL_VERSION,
                "requests": sorted(REQUESTS),
                "notifications": sorted(NOTIFICATIONS),
            }
        }
        return result

    @lsp_method(types.SHUTDOWN)
    def lsp_shutdown(self, *args: Any) -> Generator[Any, Any, None]:
        """Cancel what runs; from here on only `exit` is taken."""
        yield from super().lsp_shutdown(*args)
        self.state = "shutdown"


def _is_id(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)
