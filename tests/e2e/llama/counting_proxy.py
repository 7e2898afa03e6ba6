"""A proxy that counts the requests from our server to llama.cpp."""

from __future__ import annotations

import asyncio
import contextlib
import re

# Matches a request line. JSON bodies never start like this.
_REQUEST = re.compile(rb"(?:GET|POST) /\S* HTTP/1\.1\r\n")


class CountingProxy:
    """A proxy that forwards bytes in both directions."""

    def __init__(self, target: str, hides: tuple[bytes, ...] = ()) -> None:
        """Create a proxy. It responds with 404 to requests for the paths in `hides`."""
        self._hides = hides
        self._host, _, port = target.removeprefix("http://").partition(":")
        self._port = int(port)
        self.requests = 0
        self.flows = asyncio.Event()
        """While this event is cleared, requests are counted but not forwarded."""
        self.flows.set()
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> CountingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(self._host, self._port)
        for source, sink, counted in (
            (reader, inner_writer, True),
            (inner_reader, writer, False),
        ):
            task = asyncio.create_task(self._hand_on(source, sink, counted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _hand_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, counted: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            try:
                while data := await source.read(65_536):
                    if counted:
                        self.requests += len(_REQUEST.findall(data))
                        for path in self._hides:
                            data = data.replace(b" " + path, b" /not-here" + path)
                        await self.flows.wait()
                    sink.write(data)
                    await sink.drain()
            finally:
                sink.close()
                sink.transport.abort()
