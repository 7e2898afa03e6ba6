"""Tests that malicious servers' responses use little memory, block nothing and print nothing."""

from __future__ import annotations

import asyncio
import functools
import gc
import gzip
import io
import json
import logging
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sidecar.config.load import load
from sidecar.config.settings import Endpoint
from sidecar.cost.prices import UpdateError, update_prices
from sidecar.endpoints import endpoints as endpoints_module
from sidecar.endpoints import http as http_module
from sidecar.endpoints.counting_requests import MOST_TOKENS, NAME_CHARACTERS, valid_window
from sidecar.endpoints.endpoints import Endpoints
from sidecar.endpoints.local_servers import OLLAMA
from sidecar.endpoints.outcome import EndpointCount, Miss
from tests.unit.endpoints_fake_server import (
    CHAT_PATH,
    Canned,
    FakeServer,
    expect_count,
    expect_miss,
    listing,
    llamacpp,
)

SECONDS = 60.0
ONE_MB = 1_000_000
MOST_MEMORY = 96 * ONE_MB
"""Four times the maximum size of a body, plus the memory needed to parse a body as JSON."""
CONTENTS = 400 * ONE_MB


@pytest.fixture(autouse=True)
def no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable time limits, because these tests are about size limits."""
    monkeypatch.setattr(http_module, "REQUEST_SECONDS", 60.0)
    monkeypatch.setattr(endpoints_module, "PROBE_SECONDS", 60.0)


@functools.cache
def gzipped(times: int) -> bytes:
    """Return a small body that decompresses to CONTENTS. The first call takes a second."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1) as file:
        for _ in range(CONTENTS // ONE_MB):
            file.write(b" " * ONE_MB)
    data = buffer.getvalue()
    for _ in range(times - 1):
        data = gzip.compress(data)
    return data


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gzip, gzip, gzip": ("gzip, gzip, gzip", lambda: gzipped(3)),
    "GZIP": ("GZIP", lambda: gzipped(1)),
    "deflate": ("deflate", lambda: zlib.compress(b" " * ONE_MB)),
    "identity, br": ("identity, br", lambda: b"{}"),
    "a word": ("x" * 9000, lambda: b"{}"),
}
"""The content encoding and the body of each case."""


def bomb(case: str) -> Canned:
    encoding, body = BOMBS[case]
    return Canned(body=body(), headers={"content-encoding": encoding})


async def memory_for(server: FakeServer, miss: str | None) -> int:
    """Return Python's peak memory during the count, whether or not the count succeeds."""
    endpoints = server.endpoints()
    tracemalloc.start()
    try:
        count = await endpoints.count_text("tiny", "hello world", SECONDS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        await endpoints.aclose()
    if isinstance(count, Miss):
        assert len(count.reason) < 1000
    assert getattr(count, "kind", None) == miss, count
    return peak


@pytest.mark.parametrize("case", BOMBS)
@pytest.mark.parametrize("path", ["/v1/models", "/tokenize"])
async def test_compressed_body_is_refused(case: str, path: str) -> None:
    server = llamacpp()
    server.routes[("GET" if path == "/v1/models" else "POST"), path] = bomb(case)
    async with server:
        assert await memory_for(server, "unsupported") < 16 * ONE_MB
    assert all(asked.headers["accept-encoding"] == "identity" for asked in server.asked)


async def test_identity_encoding_is_accepted() -> None:
    server = llamacpp()
    server.headers["content-encoding"] = "Identity"
    async with server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "hello world", SECONDS))


def test_compressed_price_list_is_refused(tmp_path: Path) -> None:
    async def fetched() -> None:
        server = FakeServer()
        server.otherwise = bomb("gzip, gzip, gzip")
        async with server:
            tracemalloc.start()
            with pytest.raises(UpdateError, match="compressed"):
                await asyncio.to_thread(update_prices, tmp_path / "p.json", f"{server.url}/?key=s3")
            assert tracemalloc.get_traced_memory()[1] < 16 * ONE_MB
            tracemalloc.stop()

    asyncio.run(fetched())


def test_credentials_in_the_price_list_url_are_not_shown(tmp_path: Path) -> None:
    for url in ("http://me:s3cret@127.0.0.1:9/", "http://127.0.0.1:9/?key=s3cret", "me:s3cret@h"):
        with pytest.raises(UpdateError) as raised:
            update_prices(tmp_path / "p.json", url)
        assert "s3cret" not in str(raised.value)


JSON_BOMBS = {
    "empty lists": b'{"tokens":[' + b"[]," * 1_300_000 + b"1]}",
    "empty objects": b"[" + b"{}," * 1_300_000 + b"1]",
    "deep lists": b"[" * 1_500_000 + b"]" * 1_500_000,
    "deep in tokens": b'{"tokens":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep enough": b'{"tokens":' + b"[" * 900 + b"]" * 900 + b"}",
    "strings": b'{"tokens":[' + b'"a",' * 1_000_000 + b"1]}",
    "numbers": b'{"tokens":[' + b"1.5," * 1_000_000 + b"1]}",
    "keys": b"{" + b"".join(b'"k%06d":1,' % at for at in range(350_000)) + b'"z":1}',
    "one number": b'{"tokens":' + b"9" * 4_000_000 + b"}",
}


@pytest.mark.parametrize("case", JSON_BOMBS)
async def test_json_that_would_fill_memory_is_refused(case: str) -> None:
    server = llamacpp()
    server.routes["POST", "/tokenize"] = Canned(body=JSON_BOMBS[case])
    async with server:
        assert await memory_for(server, "unsupported") < MOST_MEMORY


async def test_list_of_200_000_models_is_truncated() -> None:
    models = [b'{"id":"m-%06d"}' % at for at in range(140_000)]
    server = llamacpp()
    server.routes["GET", "/v1/models"] = Canned(body=b'{"data":[' + b",".join(models) + b"]}")
    async with server:
        assert await memory_for(server, "unknown") < MOST_MEMORY
        endpoints = server.endpoints()
        tracemalloc.start()
        for at in range(5):
            count = await endpoints.count_text(f"m-{at:06d}", "hello world", SECONDS)
            assert isinstance(count, EndpointCount), count
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert kept < ONE_MB, "what is left of five answers, once they were read"
    models += [b'{"id":"n-%06d"}' % at for at in range(60_000)]
    server.routes["GET", "/v1/models"] = Canned(body=b'{"data":[' + b",".join(models) + b"]}")
    async with server:
        assert await memory_for(server, None) < MOST_MEMORY, "too long a list is none"


HOSTILE_IDS = [
    "tiny\x1b[2Jx",
    "tiny\n::add-mask::x",
    "tiny\u202egpj",
    "",
    "t" * (NAME_CHARACTERS + 1),
]


async def test_listed_id_that_is_not_a_name_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "sidecar")
    for owner in ("llamacpp", None):
        server = llamacpp()
        server.routes["GET", "/v1/models"] = listing(*HOSTILE_IDS, "good", owned_by=owner)
        async with server:
            endpoints = server.endpoints()
            rows = await endpoints.probe()
            assert [row.model for row in rows] == ["good"]
            miss = expect_miss(await endpoints.count_text("tiny", "hello", SECONDS))
            assert "has good, but not tiny" in miss.reason
    assert all(record.getMessage().isprintable() for record in caplog.records)


async def test_number_of_aliases_and_loaded_models_is_bounded() -> None:
    server = llamacpp()
    names = ["x" * 50] * 50_000
    server.routes["GET", "/v1/models"] = Canned(
        body={"data": [{"id": "tiny", "aliases": [*names, "\x1b[2J"], "owned_by": "llamacpp"}]}
    )
    async with server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "hello world", SECONDS))


@pytest.mark.parametrize("tokens", [MOST_TOKENS + 1, 10**300, -1, 0, True, 1.0])
async def test_impossible_counts_and_windows_are_ignored(tokens: object) -> None:
    server = llamacpp()
    server.routes["POST", CHAT_PATH] = Canned(body={"input_tokens": tokens})
    server.routes["GET", "/props"] = Canned(body={"default_generation_settings": {"n_ctx": tokens}})
    async with server:
        endpoints = server.endpoints()
        expect_miss(
            await endpoints.count_chat("tiny", [{"role": "user", "content": "hi"}], None, SECONDS)
        )
        assert await endpoints.limit("tiny", SECONDS) is None
    assert valid_window(MOST_TOKENS) == MOST_TOKENS


@pytest.mark.parametrize(
    "parameters", ["\n" * 3_000_000, "num_ctx " * 400_000, " " * 3_000_000, "num_ctx" + "9" * 9000]
)
async def test_long_ollama_parameters_do_not_block_the_server(parameters: str) -> None:
    server = FakeServer(
        {
            ("GET", "/v1/models"): listing("tiny", owned_by="library"),
            ("POST", "/api/show"): Canned(body={"parameters": parameters}),
        }
    )
    async with server:
        endpoints = server.endpoints()
        assert await endpoints.limit("tiny", SECONDS) is None
        assert [row.server for row in endpoints.capabilities()] == [OLLAMA.name]


async def _raw(answer: AsyncIterator[bytes]) -> tuple[Miss | EndpointCount, int]:
    """Count text with a server that sends these bytes in response to each request.

    Returns the result and the number of bytes sent.
    """
    written = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        try:
            await reader.readuntil(b"\r\n\r\n")
            async for part in answer:
                writer.write(part)
                await writer.drain()
                written += len(part)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    endpoints = Endpoints([Endpoint(url=url)], True, {})
    found = await endpoints.count_text("tiny", "hello world", SECONDS)
    await endpoints.aclose()
    server.close()
    return found, written


async def _forever(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts[:-1]:
        yield part
    for _ in range(100_000):
        yield parts[-1]


OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "headers": (OK, b"x-a: " + b"y" * 60_000 + b"\r\n"),
    "one header": (OK + b"x-a: ", b"y" * 60_000),
    "a status line": (b"HTTP/1.1 200 ", b"O" * 60_000),
    "chunks": (OK + b"transfer-encoding: chunked\r\n\r\n", b"8000\r\n" + b" " * 0x8000 + b"\r\n"),
    "a chunk's size": (OK + b"transfer-encoding: chunked\r\n\r\n", b"0" * 60_000),
    "no length": (OK + b"\r\n", b" " * 60_000),
    "a length that lies": (OK + b"content-length: 9999999999999\r\n\r\n", b" " * 60_000),
}


@pytest.mark.parametrize("case", ENDLESS)
async def test_endless_answer_is_read_only_in_part(case: str) -> None:
    tracemalloc.start()
    found, written = await _raw(_forever(*ENDLESS[case]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found, Miss)
    assert written < 24 * ONE_MB, "4 MB, twice, and what the sockets hold"
    assert peak < 32 * ONE_MB


SECRETS = [
    "http://me:s3cret@127.0.0.1:1",
    "https://s3cret@host/v1",
    "http://127.0.0.1:1/v1?key=s3cret",
    "http://127.0.0.1:1?api-version=1&API_KEY=s3cret",
    "http://h?access_token=s3cret",
    "http://h?k%65y=s3cret",
    "http://[::1?key=s3cret",
    "http://me:s3cret@",
]


@pytest.mark.parametrize("url", SECRETS)
@pytest.mark.parametrize("where", ["endpoint", "otel", "editor"])
def test_url_with_credentials_is_refused_without_quoting_it(
    url: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = f'url = "{url}"\nmodels = ["*"]\napi-key-env = "KEY"\n'
    texts = {
        "endpoint": f"[[endpoint]]\n{written}",
        "otel": f'[ledger]\notel-endpoint = "{url}"\n',
        "editor": "",
    }
    (tmp_path / "user.toml").write_text(texts[where])
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(tmp_path / "user.toml"))
    section = {"endpoint": [{"url": url}], "ledger": {"otelEndpoint": url}}
    loaded = load(None, section if where == "editor" else None)
    assert loaded.settings.endpoints == ()
    assert loaded.settings.ledger.otel_endpoint is None
    said = [str(problem) for problem in loaded.problems]
    assert any("api-key-env" in text and "url" in text.lower() for text in said) or where == "otel"
    assert any("without credentials" in text for text in said)
    assert "s3cret" not in json.dumps(said)


def test_query_of_a_url_is_accepted_but_not_shown() -> None:
    loaded = load(None, {"endpoint": [{"url": "http://127.0.0.1:1/v1?api-version=2"}]}, {})
    assert loaded.problems == ()
    rows = Endpoints(loaded.settings.endpoints, True, {}).capabilities()
    assert [row.endpoint for row in rows] == ["http://127.0.0.1:1"]


@pytest.mark.parametrize("url", SECRETS[:6])
def test_shown_url_contains_no_secret(url: str) -> None:
    rows = Endpoints([Endpoint(url=url)], True, {}).capabilities()
    assert rows
    assert "s3cret" not in repr(rows)


async def test_server_with_an_untrusted_certificate_gets_no_request(tmp_path: Path) -> None:
    """The TLS handshake fails, so neither the key nor the model name is sent."""
    pem = Path(__file__).parents[1] / "fixtures" / "self-signed.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        body = b'{"data": [{"id": "m-1"}]}'
        head = b"HTTP/1.1 200 X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        declared = Endpoint(url=f"https://127.0.0.1:{port}", models=("*",), api_key_env="K")
        endpoints = Endpoints([declared], True, {"K": "planted"})
        [row] = await endpoints.probe()
        assert (row.text, row.chat, requests) == ("unreachable", "unreachable", [])
        await endpoints.aclose()
        trusting = ssl.create_default_context(cafile=str(pem))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert len(requests) == 1
        writer.close()
