"""A small local HTTP server that returns canned responses and records requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sidecar.config.settings import Endpoint
from sidecar.endpoints.endpoints import Endpoints
from sidecar.endpoints.outcome import EndpointCount, Miss


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Canned:
    """A canned response. A body of bytes is sent unchanged, and any other body as JSON."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


class Reset(Exception):  # noqa: N818 - it is an order, not an error
    """Raised by a route to close the connection without a response."""


CHAT_PATH = "/v1/chat/completions/input_tokens"
"""Where llama.cpp counts a conversation."""

Route: TypeAlias = Canned | Callable[[Asked], Canned | Awaitable[Canned]]


class FakeServer:
    """Responds to each route (method and path). All other requests get `otherwise`."""

    def __init__(self, routes: dict[tuple[str, str], Route] | None = None) -> None:
        self.routes = routes or {}
        self.otherwise: Route = Canned(404, {"detail": "Not Found"})
        self.headers: dict[str, str] = {}
        self.asked: list[Asked] = []
        self._endpoints: list[Endpoints] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def posts(self) -> list[str]:
        """Return the paths of all POST requests."""
        return [asked.path for asked in self.asked if asked.method == "POST"]

    def endpoints(self, *models: str, key: str | None = None, **environment: str) -> Endpoints:
        """Return `Endpoints` with this server as the only endpoint. They are closed with it."""
        declared = Endpoint(url=self.url, models=models or ("*",), api_key_env=key)
        self._endpoints.append(Endpoints([declared], True, environment))
        return self._endpoints[-1]

    async def __aenter__(self) -> FakeServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for endpoints in self._endpoints:
            await endpoints.aclose()
        if self._server:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, Reset):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        path, _, query = target.partition("?")
        asked = Asked(method, path, query, headers, json.loads(raw) if raw else None)
        self.asked.append(asked)
        route = self.routes.get((method, path), self.otherwise)
        told = route(asked) if callable(route) else route
        if not isinstance(told, Canned):
            told = await told
        body = told.body if isinstance(told.body, bytes) else json.dumps(told.body).encode()
        lines = {"content-length": str(len(body)), **self.headers, **told.headers}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"HTTP/1.1 {told.status} X\r\n{text}\r\n".encode() + body)
        await writer.drain()
        return lines.get("connection") != "close"


def expect_count(answer: EndpointCount | Miss, tokens: int | None = None) -> EndpointCount:
    """Check that text was counted, with this result if `tokens` is given."""
    assert isinstance(answer, EndpointCount), answer
    assert tokens in (None, answer.tokens)
    return answer


def expect_miss(answer: EndpointCount | Miss, kind: str | None = None) -> Miss:
    """Check that text was not counted, for a reason of this kind if `kind` is given."""
    assert isinstance(answer, Miss), answer
    assert kind in (None, answer.kind)
    return answer


def words(text: str) -> int:
    """Return a token count (one per three characters) that no estimator would return."""
    return len(text) // 3 or min(1, len(text))


def listing(*models: str, **extra: Any) -> Canned:
    """Return a response to /v1/models."""
    data = [{"id": model, "object": "model", **extra} for model in models]
    return Canned(body={"object": "list", "data": data})


def llamacpp(*models: str) -> FakeServer:
    """Return a server that responds like llama.cpp."""

    def tokenize(asked: Asked) -> Canned:
        return Canned(body={"tokens": list(range(words(asked.body["content"])))})

    def chat(asked: Asked) -> Canned:
        text = json.dumps(asked.body["messages"])
        return Canned(body={"input_tokens": words(text), "object": "response.input_tokens"})

    server = FakeServer(
        {
            ("GET", "/v1/models"): listing(*(models or ("tiny",)), owned_by="llamacpp"),
            ("GET", "/props"): Canned(body={"default_generation_settings": {"n_ctx": 2048}}),
            ("POST", "/tokenize"): tokenize,
            ("POST", CHAT_PATH): chat,
        }
    )
    server.headers = {"server": "llama.cpp"}
    return server


class Ollama(FakeServer):
    """A server that responds like Ollama. Loading a model may reduce its context window."""

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[str, int] = {}
        """The context window of each loaded model, keyed by model name."""
        info = {"general.architecture": "llama", "llama.context_length": 131_072}
        self.routes = {
            ("GET", "/v1/models"): listing("tiny:latest", "other:latest", owned_by="library"),
            ("GET", "/"): Canned(body=b"Ollama is running"),
            ("GET", "/api/ps"): lambda _: Canned(body={"models": self._running()}),
            ("POST", "/api/show"): Canned(body={"parameters": "", "model_info": info}),
        }

    def _running(self) -> list[dict[str, Any]]:
        return [{"name": name, "context_length": size} for name, size in self.running.items()]


REASONS: list[tuple[Any, str]] = [
    (Canned(401, {"error": {"message": "no"}}), "api-key-env"),
    (Canned(503, {"error": {"message": "Loading model"}}), "retried automatically"),
    (Canned(500, {}), "start the server"),
    (listing("another", owned_by="llamacpp"), "choose a model that the server has"),
    (listing("tiny", owned_by="library"), "tokenizer.json"),
]
"""Pairs of a response to `GET /v1/models` and a part of the advice that the user then gets."""
