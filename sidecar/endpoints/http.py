"""One kept connection to one endpoint: JSON out, JSON in, everything bounded.

Redirects are not followed, an answer is read as it is sent and up to a cap, and each request has
its time. httpx is imported in a thread at the first request: that takes longer than the event loop
may wait.
"""

from __future__ import annotations

import asyncio
import importlib
import math
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.endpoints.address import without_secrets
from sidecar.endpoints.outcome import Fault, TooSlow
from sidecar.endpoints.turns import Turns

if TYPE_CHECKING:
    import httpx

REQUEST_SECONDS = 2.0
BODY_BYTES = 4 * 1024 * 1024
_IDLE_SECONDS = 4.0  # below the 5 s after which llama.cpp and uvicorn close an idle connection
_INLINE_BYTES = 64 * 1024  # JSON up to this size is read and written on the event loop
_CONTAINERS = 150_000  # in an answer: an empty one takes 2 bytes of JSON and 64 of memory

_until: ContextVar[float] = ContextVar("until", default=math.inf)


def limit_time(seconds: float) -> None:
    """All requests of the running task together have so many seconds from now on.

    Each request looks at the time that is left, and nothing else ends one: a request that two
    time-outs cancel at once would leave its socket open.
    """
    _until.set(asyncio.get_running_loop().time() + seconds)


def time_left() -> float:
    """The seconds that `limit_time` has left; without end where it was not called."""
    return _until.get() - asyncio.get_running_loop().time()


@dataclass(frozen=True)
class Answer:
    """An answer that came in full."""

    status: int
    headers: Mapping[str, str]
    body: object
    """The decoded JSON; None where it is none."""
    text: str
    """The first characters, for servers that greet in plain text."""
    reconnected: bool
    """A new connection was needed though the last one was not known to end: the server may be
    another one by now."""
    key_from: str | None = None
    """The environment variable whose key was sent along."""


@dataclass
class Connection:
    """Requests to `root`, one at a time over one connection, the newest first."""

    root: str
    headers: Mapping[str, str]
    trust_environment: bool = False
    """Whether proxies that the environment names are used: never for local servers."""
    key_from: str | None = None
    """The environment variable that the key in `headers` came from."""
    requests: int = 0
    """How many were sent so far."""
    _client: httpx.AsyncClient | None = None
    _turns: Turns = field(default_factory=Turns)
    _new_connection_expected: bool = True
    _closed: bool = False

    async def get(self, path: str) -> Answer:
        """GET `root` + `path`. Raises Fault."""
        return await self._request("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """POST JSON to `root` + `path`. Raises Fault."""
        return await self._request("POST", path, await _encode(body))

    async def aclose(self) -> None:
        """Close the connection; requests from now on fault."""
        self._closed = True
        if self._client is not None:
            await self._client.aclose()
            await asyncio.sleep(0)  # so that the loop itself closes the socket

    async def _request(self, method: str, path: str, content: bytes | None) -> Answer:
        async with self._turns.turn():
            client = await self.open()
            try:
                async with asyncio.timeout(min(REQUEST_SECONDS, time_left())):
                    return await self._send(client, method, path, content)
            except TimeoutError:
                reason = f"{without_secrets(self.root)} did not answer within {REQUEST_SECONDS:g} s"
                raise TooSlow(reason, len(content or b"")) from None

    async def _send(
        self, client: httpx.AsyncClient, method: str, path: str, content: bytes | None
    ) -> Answer:
        httpx = importlib.import_module("httpx")
        ended = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
        failed = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError)
        try:
            try:
                return await self._exchange(client, method, path, content)
            except ended:
                # A kept connection can end just as it is used again: once more on a new one.
                return await self._exchange(client, method, path, content)
        except failed as error:
            reason = f"{without_secrets(self.root)} cannot be reached ({type(error).__name__})"
            raise Fault("unreachable", reason) from None

    async def _exchange(
        self, client: httpx.AsyncClient, method: str, path: str, content: bytes | None
    ) -> Answer:
        opened = False

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            nonlocal opened
            opened = opened or event == "connection.connect_tcp.started"

        self.requests += 1
        expected, self._new_connection_expected = self._new_connection_expected, True
        async with client.stream(
            method, self.root + path, content=content, extensions={"trace": trace}
        ) as response:
            raw = await _read(response, without_secrets(self.root))
            headers = dict(response.headers)
            self._new_connection_expected = headers.get("connection", "").lower() == "close"
        return Answer(
            status=response.status_code,
            headers=headers,
            body=await _decode(raw),
            text=raw[:200].decode("utf-8", "replace"),
            reconnected=opened and not expected,
            key_from=self.key_from,
        )

    async def open(self) -> httpx.AsyncClient:
        """The client, made at the first call. Raises Fault once closed."""
        if self._closed:
            raise Fault("unreachable", f"the connection to {without_secrets(self.root)} was closed")
        if self._client is None:
            # In a thread: importing httpx and reading the certificates takes its time.
            self._client = await asyncio.to_thread(self._make_client)
        return self._client

    def _make_client(self) -> httpx.AsyncClient:
        import httpx

        return httpx.AsyncClient(
            headers={
                "Accept-Encoding": "identity",
                "Content-Type": "application/json",
                "User-Agent": "token-sidecar",
                **self.headers,
            },
            limits=httpx.Limits(
                max_connections=1, max_keepalive_connections=1, keepalive_expiry=_IDLE_SECONDS
            ),
            timeout=REQUEST_SECONDS,
            follow_redirects=False,
            trust_env=self.trust_environment,
        )


async def _read(response: httpx.Response, root: str) -> bytes:
    """The body, given up at the cap: leaving the stream early closes the connection."""
    if response.is_redirect:
        raise Fault("unsupported", f"{root} redirects; redirects are not followed")
    if coded(response.headers):
        raise Fault("unsupported", f"{root} compresses its answers though it was asked not to")
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > BODY_BYTES:
            raise Fault("unsupported", f"the answer of {root} is larger than {BODY_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def coded(headers: Mapping[str, str]) -> bool:
    """Whether a body has a content coding: 290 bytes of `gzip, gzip, gzip` hold gigabytes."""
    return headers.get("content-encoding", "").strip().lower() not in ("", "identity")


async def _encode(body: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8. Lone surrogates, which no encoder takes, become U+FFFD."""
    characters = sum(len(value) for value in body.values() if isinstance(value, str))
    if characters <= _INLINE_BYTES and "messages" not in body:
        return _encode_now(body)
    return await asyncio.to_thread(_encode_now, body)


def _encode_now(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_mended(body))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mended(key): _mended(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(inner) for inner in value]
    return value


async def _decode(raw: bytes) -> object:
    if len(raw) <= _INLINE_BYTES:
        return _decode_now(raw)
    return await asyncio.to_thread(_decode_now, raw)


def _decode_now(raw: bytes) -> object:
    if raw.count(b"[") + raw.count(b"{") > _CONTAINERS:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
