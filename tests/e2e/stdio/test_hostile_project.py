"""Tests that servers count and exit on request while files or workers are blocked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.client import StdioClient
from sidecar.server.run import EXIT_SECONDS

ENDS_WITHIN = 20  # a server that takes more seconds hangs

# A server whose workers can block forever on a FIFO. `{held}` is replaced with the blocking code.
HELD = """
import os, sys
from sidecar.server.features import configuration
from sidecar.server.server import create_server
from sidecar.server.run import serve_stdio
from sidecar.counting import counts
configuration.READ_SECONDS = 0.5
fifo = sys.argv[1]
server = create_server()
def held(*_args):
    os.open(fifo, os.O_RDONLY)
def broken(*_args):
    raise ValueError("planted")
read = configuration._load_settings
def late(*args):
    held()
    return read(*args)
{held}
raise SystemExit(serve_stdio(server))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def opened(root: Path, held: str) -> StdioClient:
    """Start a server whose workers block as `held` says."""
    os.mkfifo(root / "fifo")
    command = [sys.executable, "-P", "-c", HELD.format(held=held), str(root / "fifo")]
    client = StdioClient(command, stderr=subprocess.PIPE)
    client.initialize(root)
    return client


@pytest.mark.parametrize(
    "held",
    [
        "configuration._load_settings = held",
        "configuration._load_settings = broken",
        "configuration._stamps_of = held",
        "counts._load_tokenizers = held",
    ],
)
def test_counting_goes_on_while_the_settings_cannot_be_read(root: Path, held: str) -> None:
    client = opened(root, held)
    assert client.request("tokens/count", {"text": "hello world"})["tokens"] == 2
    client.request("shutdown")
    client.notify("exit")
    assert client.process.wait(ENDS_WITHIN) == 0
    assert b"configuration: " in client.errors()
    client.end_streams()


def test_settings_from_a_slow_disk_apply_when_they_arrive(root: Path) -> None:
    (root / ".token-sidecar.toml").write_text('model = "gpt-4"\n')
    client = opened(root, "configuration._load_settings = late")
    assert client.request("tokens/count", {"text": "hello"})["model"] == "gpt-5"
    client.open("hello", (root / "a.md").as_uri())
    fifo = os.open(root / "fifo", os.O_RDWR)  # from now on, opening the FIFO does not block
    while client.request("tokens/count", {"text": "hello"})["model"] != "gpt-4":
        pass  # if the settings are never applied, the test fails with a timeout
    client.request("shutdown")
    client.notify("exit")
    assert client.process.wait(ENDS_WITHIN) == 0
    client.end_streams()
    os.close(fifo)


# Logs to stderr when the exit deadline is set, and when the process is terminated at the deadline.
ENDING = """
from sidecar.server import run as serve
armed, ended = serve._end_within, os._exit
def arming(seconds, code):
    os.write(2, b"armed for %d ms\\n" % (1000 * seconds))
    armed(seconds, code)
def ending(code):
    os.write(2, b"ended with workers at work\\n")
    ended(code)
serve._end_within, os._exit = arming, ending
"""
POOLS = {
    "others": "for _ in range(8): server.services.workers._blocking_pool.submit(held)",
    "counting": "for _ in range(8): server.services.workers._pool.submit(held)",
    "the loop's own": "import asyncio; from sidecar.server.server import SidecarServer\n"
    "real = server.services.aclose\n"
    "async def closing():\n"
    "    tasks = [asyncio.create_task(asyncio.to_thread(held)) for _ in range(4)]\n"
    "    await asyncio.sleep(0)\n"
    "    await real()\n"
    "server.services.aclose = closing",
    "closing": "import asyncio\nserver.services.aclose = lambda: asyncio.to_thread(held)",
}


@pytest.mark.parametrize("pool", POOLS)
def test_the_server_exits_while_every_worker_is_blocked(root: Path, pool: str) -> None:
    """The blocked workers never finish, so the server exits at a deadline.

    The deadline must be set before the server awaits anything.
    """
    client = opened(root, ENDING + POOLS[pool])
    client.request("shutdown")
    client.notify("exit")
    assert client.process.wait(ENDS_WITHIN) == 0
    lines = client.errors().decode().splitlines()
    assert [line for line in lines if line.startswith(("armed", "ended"))] == [
        f"armed for {1000 * EXIT_SECONDS:.0f} ms",
        "ended with workers at work",
    ]
    assert EXIT_SECONDS < 2
    client.end_streams()
