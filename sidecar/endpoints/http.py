"""Connects to an endpoint over HTTP, with limits on time and size.

Bodies are JSON. Redirects are not followed, responses have a maximum size, and each request has a
time limit. Requests are sent one at a time, newest first. A slow server therefore does not process
abandoned requests before the current one. httpx is imported on a thread, because the import would
block the event loop.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from sidecar import typed
from sidecar.endpoints.outcome import EndpointError, RequestAbandonedError
from sidecar.errors import SidecarError
from sidecar.text.document import without_lone_surrogates
from sidecar.text.printable import printable

if TYPE_CHECKING:
    import ssl

    import httpx

logger = logging.getLogger(__name__)

# Addresses and keys

_REQUESTS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/api/chat", "/api/generate")
BASES = (*_REQUESTS, "/v1", "/api")
"""Endings that are removed from configured URLs: request paths, and the base paths of OpenAI and
Ollama.
"""

_SET_IT = "set it to the server's key in the environment of the editor or shell"


LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def is_readable(url: str) -> bool:
    """Return whether others could read what is sent to this address of another machine."""
    return url.startswith("http://") and host_of(url) not in LOCAL_HOSTS


@cache
def warn_if_readable(url: str, secret: str) -> None:
    """Log a warning, once, if a secret is sent to another machine without encryption."""
    if is_readable(url):
        where = without_secrets(url)
        logger.warning("%s could be intercepted on the way to %s; use https://", secret, where)


def host_of(url: str) -> str:
    """Return the host in a URL, or "" if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def root_of(url: str, suffixes: Sequence[str]) -> str:
    """Return a URL without endings such as `/v1`, so request paths can be appended."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    for suffix in suffixes:
        if path.endswith(suffix):
            path = path.removesuffix(suffix).rstrip("/")
            break
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def without_secrets(url: str) -> str:
    """Return a URL after removing its user, password, query and fragment, which may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid address"
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    # In a URL without `//`, the user and password are part of the path.
    return printable(bare if parts.netloc else bare.rpartition("@")[2])


def key_from(variable: str | None, environment: Mapping[str, str]) -> str:
    """Return the API key in an environment variable, or "" if `variable` is None.

    Raises:
        EndpointError: The variable is not set, or its value cannot be sent in a header.
    """
    if variable is None:
        return ""
    key, named = environment.get(variable, "").strip(), f"the environment variable {variable}"
    if not key:
        raise EndpointError("auth", f"{named} (api-key-env) is not set", _SET_IT)
    if not (key.isascii() and key.isprintable()):
        raise EndpointError("auth", f"{named} contains no usable key", _SET_IT)
    return key


# Clients


class ClientSettingsError(SidecarError):
    """The certificates or proxies in the settings or the environment cannot be used."""

    kind = "config"


C = TypeVar("C")


def make_team_client(kind: Callable[..., C], url: str, ca_file: str | None, **options: Any) -> C:
    """Return a client for one of the team's servers. Blocks like `make_client`.

    It uses the certificates in the environment, and the proxies there for other machines.

    Args:
        kind: `httpx.Client` or `httpx.AsyncClient`.
        url: The server's address.
        ca_file: A file with the certificate of an authority to trust besides the usual ones.
        options: Further arguments for the client.

    Raises:
        ClientSettingsError: Certificates or proxies are invalid.
    """
    if url.startswith("https://"):
        options["verify"] = _trusted_certificates(ca_file)
    return make_client(kind, trust_env=host_of(url) not in LOCAL_HOSTS, **options)


def _trusted_certificates(ca_file: str | None) -> ssl.SSLContext:
    import ssl

    import httpx

    try:
        context = httpx.create_ssl_context()
    except OSError as error:
        raise _unreadable_certificates(error) from None
    if ca_file is not None:
        try:
            context.load_verify_locations(os.path.expanduser(ca_file))
        except (OSError, ValueError) as error:
            is_read = isinstance(error, ssl.SSLError)
            reason = "it contains no certificate in PEM form"
            if not is_read:
                reason = getattr(error, "strerror", None) or str(error)
            raise ClientSettingsError(
                f"the file {ca_file} ([team] ca-file) cannot be used: {reason}; set it to the "
                "certificate of the authority that signed your team's certificates"
            ) from None
    return context


def _unreadable_certificates(error: OSError) -> ClientSettingsError:
    return ClientSettingsError(
        "the certificates in SSL_CERT_FILE or SSL_CERT_DIR cannot be read "
        f"({error.strerror or type(error).__name__}); correct the variable, or unset it"
    )


def make_client(kind: Callable[..., C], **options: Any) -> C:
    """Return an HTTP client that follows no redirects. Blocks: it may read certificates.

    Args:
        kind: `httpx.Client` or `httpx.AsyncClient`.
        options: Arguments for the client. With `trust_env`, the client uses the certificates and
            proxies in the environment.

    Raises:
        ClientSettingsError: The certificates or proxies in the environment are invalid.
    """
    import httpx

    try:
        return kind(follow_redirects=False, **options)
    except OSError as error:
        raise _unreadable_certificates(error) from None
    except ImportError:
        raise ClientSettingsError(
            "SOCKS proxies are not supported; set HTTPS_PROXY and ALL_PROXY to an HTTP proxy"
        ) from None
    except (ValueError, httpx.InvalidURL):
        raise ClientSettingsError(
            "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY or NO_PROXY contains an address that cannot be "
            "used, for example an IPv6 network in NO_PROXY; correct the variable"
        ) from None


AUTHORITY = "set SSL_CERT_FILE to its authority's certificate"
TEAM_AUTHORITY = (
    "set [team] ca-file (`token-sidecar team join URL --ca-file FILE`) or SSL_CERT_FILE to its "
    "authority's certificate"
)
_UNKNOWN_AUTHORITY = frozenset({18, 19, 20, 21})
"""OpenSSL's codes for certificates of an authority that is not trusted."""


def describe_failure(error: BaseException, where: str, authority: str = AUTHORITY) -> str:
    """Say why a server cannot be reached.

    Args:
        error: What the client raised.
        where: The server's address.
        authority: What to do if the certificate's authority is unknown.
    """
    import ssl

    name = type(error.__cause__ or error).__name__
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            advice = f"; {authority}" if cause.verify_code in _UNKNOWN_AUTHORITY else ""
            return (
                f"{where} has a certificate that this machine does not trust "
                f"({cause.verify_message.rstrip('.')}){advice}"
            )
        cause = cause.__cause__ or cause.__context__
    return f"{where} cannot be reached ({name})"


# Order of requests

IsWanted: TypeAlias = Callable[[], bool]
"""Returns whether the caller still needs the response."""


def always() -> bool:
    return True


_is_wanted: ContextVar[IsWanted] = ContextVar("wanted", default=always)


@contextmanager
def abandon_unless(wanted: IsWanted) -> Iterator[None]:
    """Prevent tasks started in this block from sending requests once `wanted` returns False."""
    token = _is_wanted.set(wanted)
    try:
        yield
    finally:
        _is_wanted.reset(token)


def detach_from_caller() -> None:
    """Allow the running task to send requests even if its caller stops waiting."""
    _is_wanted.set(always)


class _QueuedRequest(NamedTuple):
    slot: asyncio.Future[None]
    wanted: IsWanted


class RequestQueue:
    """Grants the connection to one request at a time, newest first."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: list[_QueuedRequest] = []

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for the connection, and use it exclusively.

        Raises:
            RequestAbandonedError: The caller stopped waiting before the connection became free.
        """
        await self._acquire()
        try:
            yield
        finally:
            self._release()

    async def _acquire(self) -> None:
        wanted = _is_wanted.get()
        if not wanted():
            raise RequestAbandonedError
        if not self._busy:
            self._busy = True
            return
        request = _QueuedRequest(asyncio.get_running_loop().create_future(), wanted)
        self._waiting.append(request)
        try:
            await request.slot
        except asyncio.CancelledError:
            slot = request.slot
            if request in self._waiting:
                self._waiting.remove(request)
            elif slot.done() and not slot.cancelled() and not slot.exception():
                self._release()  # the task was cancelled after it had been granted the connection
            raise

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if request.slot.done():
                continue
            if request.wanted():
                self._waiting.append(request)
            else:
                request.slot.set_exception(RequestAbandonedError())
        self._busy = bool(self._waiting)
        if self._waiting:
            self._waiting.pop().slot.set_result(None)


REQUEST_SECONDS = 2.0
BODY_BYTES = 4 * 1024 * 1024
_LARGE_BYTES = 128 * 1024
"""Requests with more bytes than this may exceed the time limit even if the server is healthy."""
_IDLE_SECONDS = 4.0  # less than the 5 s after which llama.cpp and uvicorn close an idle connection
_INLINE_BYTES = 64 * 1024  # JSON above this size is decoded and encoded on a worker thread
_MAX_CONTAINERS = 150_000  # an empty container takes 2 bytes of JSON but 64 bytes of memory

_deadline: ContextVar[float] = ContextVar("until", default=math.inf)


def set_deadline(seconds: float) -> None:
    """Limit the total time of all requests in the running task, in seconds.

    Only the request itself checks the remaining time, because nested timeouts would leave the
    socket open.
    """
    _deadline.set(asyncio.get_running_loop().time() + seconds)


def time_left() -> float:
    """Return the seconds until the running task's deadline, or infinity if it has none."""
    return _deadline.get() - asyncio.get_running_loop().time()


@dataclass(frozen=True)
class HttpAnswer:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: object
    """The decoded JSON, or None if the body is not JSON."""
    text: str
    """The body's first characters. Some servers respond in plain text."""
    key_from: str | None = None
    """The environment variable that contains the request's API key."""


@dataclass
class Connection:
    """Sends requests to one server over a single connection."""

    root: str
    headers: Mapping[str, str]
    trust_environment: bool = False
    """Whether to use the proxies in the environment. Local servers never need them."""
    key_from: str | None = None
    """The environment variable that contains the API key in `headers`."""
    requests: int = 0
    """The number of requests that have been sent."""
    reconnections: int = 0
    """How often a connection was opened unexpectedly, which suggests that the server restarted."""
    _client: httpx.AsyncClient | None = None
    _turns: RequestQueue = field(default_factory=RequestQueue)
    _new_connection_expected: bool = True
    _closed: bool = False

    async def get(self, path: str) -> HttpAnswer:
        """Send a GET request. Raises EndpointError on failure."""
        return await self._request("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> HttpAnswer:
        """Send JSON in a POST request. Raises EndpointError on failure."""
        return await self._request("POST", path, await _encode_json(body))

    async def aclose(self) -> None:
        """Close the connection. Later requests raise EndpointError."""
        self._closed = True
        if self._client is not None:
            await self._client.aclose()
            await asyncio.sleep(0)  # lets the event loop close the socket

    async def _request(self, method: str, path: str, content: bytes | None) -> HttpAnswer:
        async with self._turns.slot():
            client = await self.open()
            try:
                async with asyncio.timeout(min(REQUEST_SECONDS, time_left())):
                    return await self._send(client, method, path, content)
            except TimeoutError:
                reason = f"{without_secrets(self.root)} did not answer within {REQUEST_SECONDS:g} s"
                is_large = len(content or b"") > _LARGE_BYTES
                raise EndpointError("unreachable", reason, is_request_specific=is_large) from None

    async def _send(
        self, client: httpx.AsyncClient, method: str, path: str, content: bytes | None
    ) -> HttpAnswer:
        httpx = importlib.import_module("httpx")
        ended = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
        failed = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError)
        try:
            try:
                return await self._send_request(client, method, path, content)
            except ended:
                # The server may have closed the idle connection, so try again with a new one.
                return await self._send_request(client, method, path, content)
        except failed as error:
            reason = describe_failure(error, without_secrets(self.root))
            raise EndpointError("unreachable", reason) from None

    async def _send_request(
        self, client: httpx.AsyncClient, method: str, path: str, content: bytes | None
    ) -> HttpAnswer:
        opened = False

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            nonlocal opened
            opened = opened or event == "connection.connect_tcp.started"

        self.requests += 1
        expected, self._new_connection_expected = self._new_connection_expected, True
        async with client.stream(
            method, self.root + path, content=content, extensions={"trace": trace}
        ) as response:
            raw = await _read_body(response, without_secrets(self.root))
            headers = dict(response.headers)
            self.reconnections += opened and not expected
            self._new_connection_expected = headers.get("connection", "").lower() == "close"
        return HttpAnswer(
            status=response.status_code,
            headers=headers,
            body=await _decode_json(raw),
            text=raw[:200].decode("utf-8", "replace"),
            key_from=self.key_from,
        )

    async def open(self) -> httpx.AsyncClient:
        """Return the HTTP client. The first call creates it.

        Raises:
            EndpointError: The connection has been closed.
        """
        if self._closed:
            raise EndpointError(
                "unreachable", f"the connection to {without_secrets(self.root)} was closed"
            )
        if self._client is None:
            # Runs on a thread, because importing httpx and reading certificates is slow.
            try:
                self._client = await asyncio.to_thread(self._make_client)
            except ClientSettingsError as error:
                raise EndpointError("unreachable", str(error)) from None
        return self._client

    def _make_client(self) -> httpx.AsyncClient:
        import httpx

        return make_client(
            httpx.AsyncClient,
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
            trust_env=self.trust_environment,
        )


async def _read_body(response: httpx.Response, root: str) -> bytes:
    if response.is_redirect:
        raise EndpointError("unsupported", f"{root} sent a redirect; redirects are not followed")
    if is_encoded(response.headers):
        raise EndpointError(
            "unsupported", f"{root} sends compressed responses, although the request forbids them"
        )
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > BODY_BYTES:
            raise EndpointError(
                "unsupported", f"the response from {root} is larger than {BODY_BYTES} bytes"
            )
        parts.append(part)
    return b"".join(parts)


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Return whether the body is compressed. A small compressed body may expand to gigabytes."""
    return headers.get("content-encoding", "").strip().lower() not in ("", "identity")


async def _encode_json(body: Mapping[str, Any]) -> bytes:
    characters = sum(len(value) for value in body.values() if isinstance(value, str))
    if characters <= _INLINE_BYTES and "messages" not in body:
        return _encode_now(body)
    return await asyncio.to_thread(_encode_now, body)


def _encode_now(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_with_valid_text(body))


def _with_valid_text(value: Any) -> Any:
    if isinstance(value, str):
        return without_lone_surrogates(value)
    if isinstance(value, dict):
        return {_with_valid_text(key): _with_valid_text(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_valid_text(inner) for inner in value]
    return value


async def _decode_json(raw: bytes) -> object:
    if len(raw) <= _INLINE_BYTES:
        return _decode_now(raw)
    return await asyncio.to_thread(_decode_now, raw)


def _decode_now(raw: bytes) -> object:
    if raw.count(b"[") + raw.count(b"{") > _MAX_CONTAINERS:
        return None
    try:
        return typed.decode(raw, Any)
    except msgspec.DecodeError:
        return None
