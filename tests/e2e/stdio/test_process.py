"""Tests the process: exit codes, invalid data on stdin, stray output on stdout, and no network
access.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.client import SERVER, URI, StdioClient
from sidecar.operating_system import is_alive
from sidecar.server.stdio import MAX_FRAME_BYTES
from tests.truth import truth

PRINTS = """
from sidecar.server.server import create_server
from sidecar.server.run import serve_stdio
server = create_server()
plain = server.protocol.fm.features["tokens/count"]
def noisy(params):
    print("a stray print")
    return plain(params)
server.protocol.fm.features["tokens/count"] = noisy
raise SystemExit(serve_stdio(server))
"""

NO_NETWORK = """
import socket, sys
def refuse(*args, **kwargs):
    raise OSError("no network in this test")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
sys.argv = ["token-sidecar", "serve"]
from sidecar.cli import main
main()
"""


@pytest.fixture
def client() -> Iterator[StdioClient]:
    client = StdioClient(SERVER)
    yield client
    if client.process.poll() is None:
        client.process.kill()
        client.process.wait()
    client.end_streams()


def run(stdin: bytes, command: list[str] = SERVER) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, input=stdin, capture_output=True, timeout=100, check=False)


def frame(message: object) -> bytes:
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def test_an_orderly_shutdown_exits_with_0(client: StdioClient) -> None:
    client.initialize()
    client.close()
    assert client.process.returncode == 0


def test_exit_without_shutdown_exits_with_1() -> None:
    assert run(frame({"jsonrpc": "2.0", "method": "exit"})).returncode == 1


def test_the_end_of_input_ends_the_process() -> None:
    assert run(b"").returncode == 1


def test_invalid_data_on_stdin_is_skipped(client: StdioClient) -> None:
    client.initialize()
    for number in range(1_000):
        client.send_raw(b"\x00\xff garbage %d\r\n" % number)
    client.send_raw(b"Content-Length: 5\r\n\r\nhello")
    client.send_raw(b"Content-Length: x\r\nContent-Type: none\r\n\r\n")
    assert client.request("tokens/count", {"text": "hello world"})["tokens"] == 2
    client.close()


def test_a_frame_over_the_limit_ends_the_session_with_a_log_line() -> None:
    length = b"Content-Length: %d\r\n\r\n" % (MAX_FRAME_BYTES + 1)
    client = StdioClient(SERVER, stderr=subprocess.PIPE)
    client.initialize()
    client.send_raw(length)
    assert client.process.wait(20) == 1
    assert b"a frame is larger than 268,435,456 bytes" in client.errors()
    client.end_streams()


@pytest.mark.parametrize("reaped", [True, False])
def test_the_server_exits_with_the_client_while_the_pipe_stays_open(reaped: bool) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    client = StdioClient(SERVER, stderr=subprocess.PIPE)
    client.request("initialize", {"processId": parent.pid, "capabilities": {}, "rootUri": None})
    parent.kill()
    if reaped:
        parent.wait()
    assert client.process.wait(10) == 1
    assert b"the client process has exited" in client.errors()
    client.end_streams()
    parent.communicate()


def test_a_client_process_that_never_existed_does_not_end_the_server() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not is_alive(ended.pid)
    assert not any(map(is_alive, (0, -1, 2**40)))
    assert is_alive(os.getpid())


def test_a_stray_print_goes_to_stderr() -> None:
    client = StdioClient([sys.executable, "-P", "-c", PRINTS], stderr=subprocess.PIPE)
    client.initialize()
    assert client.request("tokens/count", {"text": "hello world"})["tokens"] == 2
    client.close()
    assert b"a stray print" in client.errors()
    client.end_streams()


def test_counts_work_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    client = StdioClient([sys.executable, "-P", "-c", NO_NETWORK])
    client.initialize()
    text = "'ſ \u0c5c and a\n" * 50
    for model, name in (("gpt-5", "o200k_base"), ("gpt-4", "cl100k_base")):
        count = client.request("tokens/count", {"text": text, "model": model})
        assert (count["tokens"], count["method"]) == (truth(text, name), "exact")
    client.close()
    client.end_streams()


def test_requests_are_answered_while_a_large_document_is_opened(client: StdioClient) -> None:
    client.initialize()
    big = "".join(f"value_{n} = compute({n}) + {n * 7}\n" for n in range(100_000))
    client.open("small", "file:///small.md")
    client.request("tokens/count", {"textDocument": {"uri": "file:///small.md"}})
    client.open(big)
    exact = client.post("tokens/count", {"textDocument": {"uri": URI}})
    small = client.post("tokens/count", {"textDocument": {"uri": "file:///small.md"}})
    assert client.wait_any({exact, small}) == small, (
        "the small document must not wait for the large one"
    )
    assert client.wait(exact)["tokens"] == truth(big)
    client.close()
