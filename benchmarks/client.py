"""A small synchronous LSP client over stdio, which measures a server from outside."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVER = [sys.executable, "-P", "-m", "sidecar", "serve"]
URI = "file:///bench/doc.py"


class StdioClient:
    """Starts a server, sends requests and waits for the responses."""

    def __init__(
        self,
        command: list[str],
        stderr: int | IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a server.

        Args:
            command: The command that starts the server.
            stderr: The destination of the server's error output.
            env: The server's environment variables. Defaults to those of this process.
        """
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, env=env)
        self._in = cast("IO[bytes]", self.process.stdin)
        self._out = cast("IO[bytes]", self.process.stdout)
        self._ids = itertools.count(1)
        self.notifications: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self.send_raw(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def send_raw(self, data: bytes) -> None:
        self._in.write(data)
        self._in.flush()

    def receive(self) -> dict[str, Any]:
        length = 0
        while line := self._out.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        if not length:
            raise EOFError("the server has exited")
        return cast("dict[str, Any]", json.loads(self._out.read(length)))

    def post(self, method: str, params: object = None) -> int:
        number = next(self._ids)
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return number

    def wait(self, number: int) -> Any:
        """Return the result of a request. Responses may arrive in any order."""
        while number not in self._answers:
            message = self.receive()
            if "id" in message and "method" not in message:
                self._answers[message["id"]] = message
            else:
                self.notifications.append(message)
        message = self._answers.pop(number)
        if "error" in message:
            raise RuntimeError(message["error"])
        return message["result"]

    def wait_any(self, numbers: set[int]) -> int:
        """Wait for the first response to any of these requests, and return the request's id."""
        while True:
            message = self.receive()
            if message.get("id") in numbers and "method" not in message:
                return cast("int", message["id"])
            self.notifications.append(message)

    def request(self, method: str, params: object = None) -> Any:
        return self.wait(self.post(method, params))

    def notify(self, method: str, params: object = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def initialize(self, *roots: Path) -> float:
        """Initialize the server with root folders, and return the seconds until its response."""
        start = time.perf_counter()
        params = {
            "processId": None,
            "rootUri": None,
            "capabilities": {"general": {"positionEncodings": ["utf-16"]}},
            "workspaceFolders": [{"uri": root.as_uri(), "name": root.name} for root in roots],
        }
        self.request("initialize", params)
        took = time.perf_counter() - start
        self.notify("initialized", {})
        return took

    def open(self, text: str, uri: str = URI) -> None:
        item = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})

    def cpu(self) -> float:
        """Return the CPU seconds of all running threads."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def close(self) -> None:
        self.request("shutdown")
        self.notify("exit")
        self._in.close()
        self.process.wait(20)
        self._out.close()

    def errors(self) -> bytes:
        """Return the error output of a server that has exited and was started with a pipe."""
        return self.process.stderr.read() if self.process.stderr else b""

    def end_streams(self) -> None:
        """Close the pipes to a server that has exited by itself."""
        for stream in (self._in, self._out, self.process.stderr):
            if stream is not None:
                stream.close()
