"""A client that exchanges real messages with a server in the same process."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sidecar.server.protocol import Feature
from sidecar.server.server import SidecarServer
from sidecar.server.stdio import Framer, InvalidFrame

URI = "file:///ws/doc.md"
USER = {"role": "user", "content": "How many tokens is this question?"}
REPLY = {"role": "assistant", "content": "Not many."}

Message = dict[str, Any]
F = TypeVar("F", bound="Feature")


class RpcError(Exception):
    """An error response."""

    def __init__(self, error: Message) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.data: Message | None = error.get("data")


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true, for at most a minute."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


class Client:
    """A client of an in-process server. A test must read or ignore every notification."""

    def __init__(self, server: SidecarServer) -> None:
        self.server = server
        self.unread: list[Message] = []
        self.answers: dict[Any, asyncio.Future[Message]] = {}
        self.orphans: list[Message] = []
        self.version = 1
        self.patience_seconds: float | None = 60
        """How long to wait for a response, in seconds. None means forever."""
        self._ids = itertools.count(1)
        self._ignored: set[str] = set()
        self._answers: dict[str, Callable[[Any], Any]] = {}
        self._framer = Framer()
        self._news = asyncio.Event()
        self.exit = server.protocol.start(asyncio.get_running_loop())
        server.protocol.set_writer(self)

    def write(self, data: bytes) -> None:
        for body in self._framer.feed(data):
            assert not isinstance(body, InvalidFrame)
            self._take(json.loads(body))

    def close(self) -> None:
        pass

    def answer(self, method: str, make: Callable[[Any], Any]) -> None:
        """Answer the server's future requests for `method` with the result of `make(params)`."""
        self._answers[method] = make

    def _take(self, message: Message) -> None:
        if "method" in message and message["method"] in self._answers:
            result = self._answers[message["method"]](message.get("params"))
            self.send({"jsonrpc": "2.0", "id": message["id"], "result": result})
        elif "method" in message:
            if message["method"] not in self._ignored:
                self.unread.append(message)
        elif message["id"] in self.answers:
            self.answers.pop(message["id"]).set_result(message)
        else:
            self.orphans.append(message)
        self._news.set()

    def feature(self, kind: type[F]) -> F:
        """Return the server's feature of this class."""
        return next(one for one in self.server.features if isinstance(one, kind))

    # Sending
    def send(self, message: object) -> None:
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, body: bytes) -> None:
        self.server.protocol.receive(body)

    def notify(self, method: str, params: object = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def raw(self, message: Message) -> Message:
        """Send a message, and return the response, which may be an error."""
        self.answers[message["id"]] = asyncio.get_running_loop().create_future()
        future = self.answers[message["id"]]
        self.send(message)
        return await asyncio.wait_for(future, self.patience_seconds)

    async def request(self, method: str, params: object = None) -> Any:
        answer = await self.raw(
            {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        )
        if "error" in answer:
            raise RpcError(answer["error"])
        return answer["result"]

    async def refused(self, method: str, params: object = None) -> Message | None:
        """Send a request that must be refused, and return the error's data."""
        try:
            result = await self.request(method, params)
        except RpcError as error:
            return error.data
        raise AssertionError(f"not refused: {result}")

    # Receiving
    def ignore(self, *methods: str) -> None:
        self._ignored.update(methods)
        self.unread = [m for m in self.unread if m["method"] not in self._ignored]

    async def take(
        self, method: str, matches: Callable[[Any], bool] = lambda _: True, seconds: float = 60
    ) -> Any:
        """Wait for a matching notification, mark it as read, and return its params."""
        async with asyncio.timeout(seconds):
            while True:
                for message in self.unread:
                    if message["method"] == method and matches(message["params"]):
                        self.unread.remove(message)
                        return message["params"]
                self._news.clear()
                await self._news.wait()

    async def aclose(self) -> None:
        """Stop the server's threads and close its connections."""
        self.server.close()
        await self.server.services.counts.aclose()

    # Common messages
    async def initialize(
        self,
        root: str | None = "file:///ws",
        *,
        settled: bool = True,
        ignored: tuple[str, ...] = (),
        **more: Any,
    ) -> Any:
        """Initialize the server, and ignore some notifications.

        If `settled` is true, wait until prices are loaded.
        """
        self.ignore(*ignored)
        encodings = more.pop("encodings", ["utf-16"])
        folders = [{"uri": root, "name": "ws"}] if root else None
        params = {
            "processId": None,
            "rootUri": root,
            "capabilities": {"general": {"positionEncodings": encodings}},
            "workspaceFolders": folders,
            **more,
        }
        result = await self.request("initialize", params)
        self.notify("initialized", {})
        if settled:
            await self._settled()
        return result

    async def _settled(self) -> None:
        services, scheduler = self.server.services, self.server.scheduler
        await until(lambda: services.windows.ready and not scheduler.is_due(("catalogue",)))

    def open(self, text: str, uri: str = URI, language: str = "markdown") -> None:
        item = {"uri": uri, "languageId": language, "version": self.version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})

    def change(self, *changes: Mapping[str, Any], uri: str = URI) -> None:
        self.version += 1
        identifier = {"uri": uri, "version": self.version}
        params = {"textDocument": identifier, "contentChanges": list(changes)}
        self.notify("textDocument/didChange", params)

    async def count(self, uri: str = URI, **more: Any) -> Any:
        return await self.request("tokens/count", {"textDocument": {"uri": uri}, **more})


def edit(start: tuple[int, int], end: tuple[int, int], text: str) -> Message:
    """Return a content change for `didChange`."""
    positions = [{"line": line, "character": character} for line, character in (start, end)]
    return {"range": {"start": positions[0], "end": positions[1]}, "text": text}
