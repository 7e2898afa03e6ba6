"""A client in the same process: no subprocess, but every byte goes through frames and JSON."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

from sidecar.server.stdio import BadFrame, Framer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sidecar.server.server import SidecarServer

URI = "file:///ws/doc.md"
USER = {"role": "user", "content": "How many tokens is this question?"}
REPLY = {"role": "assistant", "content": "Not many."}

Message = dict[str, Any]


class RpcError(Exception):
    """An error response."""

    def __init__(self, error: Message) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.data: Message | None = error.get("data")


class Client:
    """Talks to a server; a notification that no test took makes the test fail at its end."""

    def __init__(self, server: SidecarServer) -> None:
        self.server = server
        self.unread: list[Message] = []
        self.answers: dict[Any, asyncio.Future[Message]] = {}
        self.orphans: list[Message] = []
        self.version = 1
        self.patience_seconds: float | None = 60
        """How long an answer may take; None for a run that loads the machine by itself."""
        self._ids = itertools.count(1)
        self._ignored: set[str] = set()
        self._answers: dict[str, Callable[[Any], Any]] = {}
        self._framer = Framer()
        self._news = asyncio.Event()
        self.exit = server.protocol.start(asyncio.get_running_loop())
        server.protocol.set_writer(self)

    # What the server sees as its writer.
    def write(self, data: bytes) -> None:
        for body in self._framer.feed(data):
            assert not isinstance(body, BadFrame)
            self._take(json.loads(body))

    def close(self) -> None:
        pass

    def answer(self, method: str, make: Callable[[Any], Any]) -> None:
        """Answer the server's requests of this method with what `make` gives for the params."""
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

    # Sending.
    def send(self, message: object) -> None:
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, body: bytes) -> None:
        self.server.protocol.receive(body)

    def notify(self, method: str, params: object = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def raw(self, message: Message) -> Message:
        """Send a message with an id and await its answer, error or not."""
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

    # Receiving.
    def ignore(self, *methods: str) -> None:
        self._ignored.update(methods)
        self.unread = [m for m in self.unread if m["method"] not in self._ignored]

    async def take(
        self, method: str, matches: Callable[[Any], bool] = lambda _: True, seconds: float = 60
    ) -> Any:
        """The params of the next such message from the server, removed from the unread ones."""
        async with asyncio.timeout(seconds):
            while True:
                for message in self.unread:
                    if message["method"] == method and matches(message["params"]):
                        self.unread.remove(message)
                        return message["params"]
                self._news.clear()
                await self._news.wait()

    async def aclose(self) -> None:
        """Let go of the server's threads and connections."""
        self.server.close()
        await self.server.services.counts.aclose()

    # Everyday messages.
    async def initialize(
        self, root: str | None = "file:///ws", *, settled: bool = True, **more: Any
    ) -> Any:
        """`settled`: wait for what comes late (windows, prices), so that no status comes for it."""
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
        async with asyncio.timeout(60):
            services, scheduler = self.server.services, self.server.scheduler
            while not services.windows.ready or scheduler.is_due(("catalogue",)):
                await asyncio.sleep(0.01)

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
    """One content change."""
    positions = [{"line": line, "character": character} for line, character in (start, end)]
    return {"range": {"start": positions[0], "end": positions[1]}, "text": text}
