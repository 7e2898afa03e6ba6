"""Tests the MCP server with the official conformance suite and the official Inspector."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.agents.install import ensure_installed, ensure_node
from tests.e2e.mcp_packages import CONFORMANCE, INSPECTOR

PROGRAM = str(Path(sys.executable).with_name("token-sidecar"))
SCENARIOS = ("server-initialize", "ping", "tools-list")
"""The conformance suite's scenarios for servers that have only tools.

The other scenarios test resources, prompts, sampling, and tools with specific names.
"""
OVER_HTTP = """
import sys
from pathlib import Path
import uvicorn
from sidecar.mcp.mcp_server import create_server
app = create_server(Path(sys.argv[2])).streamable_http_app()
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


def with_node() -> dict[str, str]:
    return {**os.environ, "PATH": f"{ensure_node().parent}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run our server over HTTP, and return its address. Only the conformance suite uses HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = str(tmp_path_factory.mktemp("project"))
    process = subprocess.Popen([sys.executable, "-c", OVER_HTTP, str(port), folder])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    process.wait(10)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_conformance_suite_passes(scenario: str, url: str, tmp_path: Path) -> None:
    command = [str(ensure_installed(CONFORMANCE)), "server", "--url", url, "--scenario", scenario]
    result = subprocess.run(
        command, env=with_node(), cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 failed" in result.stdout, result.stdout


def inspect(project: Path, *arguments: str) -> dict[str, object]:
    command = [str(ensure_installed(INSPECTOR)), "--cli", PROGRAM, "mcp", *arguments]
    result = subprocess.run(
        command, env=with_node(), cwd=project, capture_output=True, text=True, timeout=90
    )
    assert result.returncode == 0, result.stderr
    answer: dict[str, object] = json.loads(result.stdout)
    return answer


def test_the_inspector_lists_and_calls_every_tool(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("hello world")
    listed = inspect(tmp_path, "--method", "tools/list")["tools"]
    assert isinstance(listed, list)
    arguments = {
        "count_tokens": ["path=a.md"],
        "check_budgets": [],
        "context_usage": [],
        "spend": [],
        "token_map": [],
    }
    assert {tool["name"] for tool in listed} == set(arguments)
    for tool, values in arguments.items():
        pairs = [part for value in values for part in ("--tool-arg", value)]
        called = inspect(tmp_path, "--method", "tools/call", "--tool-name", tool, *pairs)
        assert not called.get("isError"), called
