"""Tests that a hostile repository makes us start only git, and blocks no count and no exit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.client import StdioClient
from sidecar.server.run import EXIT_SECONDS
from tests import hostile
from tests.e2e.tracing import Trace, peak_bytes
from tests.hostile import Hostile
from tests.truth import truth

PROGRAM = str(Path(sys.executable).parent / "token-sidecar")
MOST_BYTES = 300_000_000
LONG_NAME = "a" * 60 + ".md"
"""A name that a slow glob would match again and again."""
START = {"line": 0, "character": 0}
EVERYWHERE = {
    "range": {"start": START, "end": {"line": 1, "character": 0}},
    "context": {"diagnostics": []},
}
VERBS = [
    ("count", "CLAUDE.md"),
    ("count", "."),
    ("check", "."),
    ("check", "--diff", "main", "CLAUDE.md"),
    ("fit", "CLAUDE.md", "--max-tokens", "5"),
    ("usage",),
    ("cost",),
    ("doctor",),
]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hostile:
    """A hostile repository as the current folder. PATH starts with its subfolders."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    made = hostile.make(tmp_path)
    hostile.give_back(made)
    monkeypatch.chdir(made.root)
    monkeypatch.setenv("PATH", f"{made.path()}:/usr/bin:/bin")
    return made


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "trace")


def test_the_trace_sees_connections_and_programs(trace: Trace) -> None:
    code = (
        "import socket, subprocess\n"
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.3', 9))\n"
        "socket.socket(socket.AF_INET6).connect_ex(('::1', 9))\n"
        "socket.socket().connect_ex(('127.0.0.4', 9))\n"
        "subprocess.run(['/bin/true'])\n"
    )
    subprocess.run([*trace.prefix, sys.executable, "-I", "-W", "ignore", "-c", code], check=True)
    assert trace.addresses() == {"127.0.0.3", "::1", "127.0.0.4"}
    assert trace.programs() == [sys.executable, "/bin/true"]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_subcommand_starts_only_git_in_a_hostile_repository(
    repository: Hostile, trace: Trace, verb: tuple[str, ...]
) -> None:
    """git is run from a system folder, and no connections are opened."""
    result = subprocess.run(
        [*trace.prefix, PROGRAM, *verb], capture_output=True, text=True, check=False
    )
    assert result.returncode in (0, 1), result.stderr
    assert "Traceback" not in result.stderr
    assert repository.fired() == set()
    assert trace.addresses() == set()
    first, *others = trace.programs()
    assert first == PROGRAM
    assert {other for other in others if not other.startswith("/usr/")} == set()
    assert bool(others) == ("check" in verb or "." in verb)


def test_the_server_starts_nothing_in_a_hostile_repository(
    repository: Hostile, trace: Trace
) -> None:
    """The server answers requests about the repository's files without opening a connection."""
    client = StdioClient([*trace.prefix, PROGRAM, "serve"])
    client.initialize(repository.root)
    uri = repository.root.as_uri()
    document = {"uri": f"{uri}/CLAUDE.md"}
    client.open(hostile.PROMPT, document["uri"])
    asked = {"textDocument": document, "models": ["gpt-5", "trap", "ollama/trap"]}
    assert client.request("tokens/count", asked)["tokens"] == truth(hostile.PROMPT)
    client.request("capabilities/probe", {})
    client.request("context/usage", {"workspace": uri})
    client.request("cost/detail", {"workspace": uri})
    client.request("models/list", {"query": "trap"})
    client.close()
    assert repository.fired() == set()
    assert trace.addresses() == set()
    assert trace.programs() == [PROGRAM]


def test_the_server_survives_hostile_settings(repository: Hostile, trace: Trace) -> None:
    """The server answers all requests, exits, and reports the files without their contents."""
    hostile.add_bad_settings(repository)
    client = StdioClient([*trace.prefix, PROGRAM, "serve"], stderr=subprocess.PIPE)
    client.initialize(*repository.bad())
    asked = []
    for folder in repository.bad():
        document = {"uri": (folder / LONG_NAME).as_uri()}
        client.open(hostile.PROMPT, document["uri"])
        asked += [
            client.post("tokens/count", {"textDocument": document}),
            client.post("context/usage", {"workspace": folder.as_uri()}),
            client.post("textDocument/hover", {"textDocument": document, "position": START}),
            client.post("textDocument/codeAction", {"textDocument": document, **EVERYWHERE}),
        ]
    answers: dict[object, dict[str, object]] = {}
    while asked - answers.keys():
        message = client.receive()
        answers[message.get("id")] = message
    assert all("error" not in answers[number] for number in asked)
    peak = peak_bytes(trace.traced(client.process.pid))
    client.close()
    heard = str(answers) + str(client.notifications) + client.errors().decode()
    client.end_streams()
    assert hostile.PLANTED not in heard
    assert ".token-sidecar.toml" in heard
    assert (client.process.returncode, peak < MOST_BYTES) == (0, True), peak
    assert trace.addresses() == set()
    assert trace.programs() == [PROGRAM]


def test_only_the_users_endpoint_is_contacted(
    repository: Hostile, trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.5", 0))
        port = listener.getsockname()[1]
    # Nothing listens on this port, so any attempt to connect is refused and appears in the trace.
    config = tmp_path / "user-config.toml"
    config.write_text(
        "[tokenize]\nuse-endpoint = true\n"
        f'[[endpoint]]\nurl = "http://127.0.0.5:{port}"\nmodels = ["trap*"]\n'
    )
    client = StdioClient([*trace.prefix, PROGRAM, "serve"])
    client.initialize()
    # Wait for the probe, because a count does not wait for a slow endpoint.
    (row,) = client.request("capabilities/probe", {"model": "trap"})
    client.request("tokens/count", {"text": hostile.PROMPT, "model": "trap"})
    client.close()
    assert row["text"] == "unreachable"
    assert trace.addresses() == {"127.0.0.5"}


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
