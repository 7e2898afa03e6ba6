"""Dispatches messages. Every request is answered exactly once, and no text is logged.

The class works around defects of pygls 2.1 (see docs/explanation/architecture.md): it answers
malformed requests, keeps tracebacks and text out of errors, exits with the right codes,
separates the ids of client and server requests, and validates custom messages.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeGuard

from lsprotocol import types
from pygls.protocol import LanguageServerProtocol, lsp_method

from sidecar.defects import log_defect
from sidecar.errors import BadParamsError, RequestError, SidecarError
from sidecar.server import client_process, codec, errors
from sidecar.server.commitment import cancel
from sidecar.server.framing import BadFrame, Body
from sidecar.server.methods import NOTIFICATIONS, PROTOCOL_VERSION, REQUESTS

if TYPE_CHECKING:
    from collections.abc import Generator

    import msgspec
    from cattrs import Converter

    from sidecar.server.server import SidecarServer

logger = logging.getLogger(__name__)

Handler = Callable[[Any], Any]

# The handlers of pygls in use; the others would store documents a second time.
_BUILT_IN = (
    types.INITIALIZE,
    types.INITIALIZED,
    types.SHUTDOWN,
    types.SET_TRACE,
    types.WORKSPACE_EXECUTE_COMMAND,
    types.WINDOW_WORK_DONE_PROGRESS_CANCEL,
)


class SidecarProtocol(LanguageServerProtocol):
    """Dispatches parsed messages. Handlers are functions that may return an awaitable."""

    _server: SidecarServer

    def __init__(self, server: SidecarServer, converter: Converter) -> None:
        self.custom: dict[str, Handler] = {}
        self.state: str = "new"
        self._exit_code: asyncio.Future[int] | None = None
        self.malformed_handlers: dict[str, Callable[[object], None]] = {}
        """Handlers of malformed notifications, by method. Params are None if they were not
        parsed."""
        self._running: dict[int | str, asyncio.Future[Any]] = {}
        """The client's requests by id. Requests to the client are in pygls' `_request_futures`."""
        super().__init__(server, converter)

    def start(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """Start a session. Returns a future of the process's exit code."""
        self._exit_code = loop.create_future()
        return self._exit_code

    def end(self, code: int) -> None:
        """End the session with 0 after an orderly `shutdown`, else with `code`."""
        if self._exit_code is not None and not self._exit_code.done():
            self._exit_code.set_result(0 if self.state == "shutdown" else code)

    # -- incoming ---------------------------------------------------------------------------

    def receive(self, frame: Body | BadFrame) -> None:
        """Handle one frame. Never raises, so that later frames are handled too."""
        if self._exit_code is not None and self._exit_code.done():
            return
        try:
            self._receive(frame)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            log_defect(exc)

    def _receive(self, frame: Body | BadFrame) -> None:
        if isinstance(frame, BadFrame):
            self._refuse(None, errors.PARSE_ERROR, frame.reason)
            if frame.fatal:
                logger.error("%s; stopping", frame.reason)
                self.end(1)
            return
        try:
            message = codec.parse(frame)
        except codec.RefusedBodyError as exc:
            self._refuse_body(exc)
            return
        if isinstance(message, dict):
            self._dispatch(message)
        else:
            self._refuse(None, errors.INVALID_REQUEST, "a message must be a JSON object")

    def _refuse_body(self, refused: codec.RefusedBodyError) -> None:
        """Answer a body that cannot be parsed, unless it is a notification or a response."""
        msg_id, method = refused.outline.get("id"), refused.outline.get("method")
        logger.warning("refused a message: %s", refused)
        if method is None and self._receive_response({"id": msg_id, "error": {}}):
            return
        self._report_malformed(method, refused.outline.get("params"))
        if method is not None or not _is_response(refused.outline):
            self._refuse(msg_id if _is_id(msg_id) else None, errors.PARSE_ERROR, str(refused))

    def _dispatch(self, message: dict[str, Any]) -> None:
        method, msg_id = message.get("method"), message.get("id")
        if method is None and (self._receive_response(message) or _is_response(message)):
            return
        if "id" in message and not _is_id(msg_id):
            self._refuse(None, errors.INVALID_REQUEST, "an id must be a string or an integer")
        elif message.get("jsonrpc") != self.VERSION:
            self._refuse(msg_id, errors.INVALID_REQUEST, f'jsonrpc must be "{self.VERSION}"')
        elif not isinstance(method, str):
            self._refuse(msg_id, errors.INVALID_REQUEST, "a method must be a string")
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
            self._refuse(msg_id, errors.METHOD_NOT_FOUND, f"unknown method {method[:100]!r}")
            return
        try:
            result = _call_handler(handler, self._structure_params(method, message))
        except BaseException as exc:  # panics in Rust libraries are not Exceptions
            self._send_error(msg_id, errors.error_body(exc))
            return
        if not inspect.isawaitable(result):
            self._send_result(msg_id, result)
            return
        self._running[msg_id] = task = asyncio.ensure_future(result)
        task.add_done_callback(partial(self._send_answer, msg_id))

    def _send_answer(self, msg_id: int | str, task: asyncio.Future[Any]) -> None:
        del self._running[msg_id]
        try:
            result = task.result()
        except BaseException as exc:  # including cancellation
            self._send_error(msg_id, errors.error_body(exc))
            return
        self._send_result(msg_id, result)

    def _sequence_error(self, msg_id: int | str, method: str) -> tuple[int, str] | None:
        if msg_id in self._running:
            return errors.INVALID_REQUEST, "a request with this id is running"
        if self.state == "shutdown":
            return errors.INVALID_REQUEST, "the server is shutting down"
        if self.state == "new" and method != types.INITIALIZE:
            return errors.SERVER_NOT_INITIALIZED, "the server is not initialized yet"
        if self.state != "new" and method == types.INITIALIZE:
            return errors.INVALID_REQUEST, "the server is already initialized"
        return None

    def _receive_notification(self, method: str, message: dict[str, Any]) -> None:
        if method == types.EXIT:
            self.end(1)
            return
        if method == types.CANCEL_REQUEST:
            self._cancel(message)
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
            result = _call_handler(handler, params)
        except SidecarError as exc:
            logger.warning("ignored a notification: %s", exc)
            return
        if inspect.isawaitable(result):
            self._server.scheduler.run_now((method, object()), lambda: result)

    def _report_malformed(self, method: object, params: object) -> None:
        if isinstance(method, str) and method in self.malformed_handlers:
            self.malformed_handlers[method](params)

    def _cancel(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        msg_id = params.get("id") if isinstance(params, dict) else None
        if _is_id(msg_id) and (task := self._running.get(msg_id)) is not None:
            cancel(task)

    def _receive_response(self, message: dict[str, Any]) -> bool:
        msg_id: Any = message.get("id")
        if not _is_id(msg_id) or msg_id not in self._request_futures:
            return False
        future, kind = self._request_futures.pop(msg_id), self._result_types.pop(msg_id, None)
        if future.done():
            return True
        if message.get("error") is not None:
            future.set_exception(RequestError("internal", "the client refused the request"))
            return True
        try:
            answer = codec.structure_lsp(message, kind, self._converter) if kind else None
            future.set_result(answer.result if answer is not None else message.get("result"))
        except SidecarError as exc:
            future.set_exception(exc)
        return True

    def _find_handler(self, method: str, *, is_request: bool) -> Handler | None:
        """Return a method's handler, or None if there is no handler of this kind."""
        if method in self.custom:
            return self.custom[method] if is_request else None
        _, result, *_ = types.METHOD_TO_TYPES.get(method, (None, None))
        if (result is not None) is not is_request:
            return None
        if method in _BUILT_IN:
            return self.fm.builtin_features[method]  # type: ignore[no-any-return]
        return self.fm.features.get(method)

    def _structure_params(self, method: str, message: dict[str, Any]) -> Any:
        if method in REQUESTS:
            return codec.structure_custom(message.get("params"), REQUESTS[method].params)
        kind = types.METHOD_TO_TYPES.get(method, (None,))[0]
        if kind is None:
            return message.get("params")
        return codec.structure_lsp(message, kind, self._converter).params

    # -- outgoing ---------------------------------------------------------------------------

    def _refuse(self, msg_id: int | str | None, code: int, message: str) -> None:
        self._send_error(msg_id, errors.make_error(code, message, "badParams"))

    def _send_result(self, msg_id: int | str, result: Any) -> None:
        self._send_data({"jsonrpc": self.VERSION, "id": msg_id, "result": result})

    def _send_error(self, msg_id: int | str | None, error: dict[str, Any]) -> None:
        self._send_data({"jsonrpc": self.VERSION, "id": msg_id, "error": error})

    def _send_data(self, data: Any) -> None:
        if self.writer is None or not data:
            return
        try:
            frame = codec.dump(data, self._converter)
        except Exception as exc:
            log_defect(exc)
            if not isinstance(data, dict) or "result" not in data:
                return
            error = errors.make_error(errors.REQUEST_FAILED, "cannot encode the result", "internal")
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
        """Announce the custom methods."""
        result: types.InitializeResult = yield from super().lsp_initialize(params)
        self.state = "running"
        self._server.services.client = params.client_info.name if params.client_info else ""
        client_process.watch_process(params.process_id, self._client_ended, self._server.scheduler)
        self._server.providers.defer_registration(result.capabilities, params.capabilities)
        result.capabilities.experimental = {
            "tokenSidecar": {
                "protocolVersion": PROTOCOL_VERSION,
                "requests": sorted(REQUESTS),
                "notifications": sorted(NOTIFICATIONS),
            }
        }
        return result

    def _client_ended(self) -> None:
        logger.error("the client's process has ended; stopping")
        self.end(1)

    @lsp_method(types.SHUTDOWN)
    def lsp_shutdown(self, *_: Any) -> None:  # type: ignore[override]
        """Cancel running requests. Afterwards only `exit` is accepted."""
        for request in list(self._request_futures.values()):
            request.cancel()
        for task in list(self._running.values()):
            cancel(task)
        self.state = "shutdown"

    @lsp_method(types.WORKSPACE_EXECUTE_COMMAND)
    def lsp_workspace__execute_command(self, params: types.ExecuteCommandParams) -> Any:
        """Run a command, which validates its own arguments.

        Raises:
            BadParamsError: The command does not exist.
        """
        command = self.fm.commands.get(params.command)
        if command is None:
            raise BadParamsError("unknown command")
        return command(*(params.arguments or ()))


def _call_handler(handler: Handler, params: Any) -> Any:
    steps = handler(params)
    if not isinstance(steps, GeneratorType):
        return steps
    value = None
    while True:
        try:
            step, args, kwargs = steps.send(value)
        except StopIteration as stop:
            return stop.value
        value = step(*(args or ()), **(kwargs or {}))


def _is_id(value: object) -> TypeGuard[int | str]:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _is_response(message: dict[str, Any]) -> bool:
    return "result" in message or "error" in message
