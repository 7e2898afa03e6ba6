"""Tests that real coding agents get the vendor's numbers from our MCP server."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agents.adapters import mcp_agents
from tests.e2e.agents.install import ensure_installed, ensure_node
from tests.e2e.agents.scene import Scene
from tests.fake_vendor import Reply, ToolUse

VENV = Path(sys.executable).parent
GREET = "Greet me in one line."
ASK = "How full is your context?"
CLIENTS = {
    "codex": "codex",
    "opencode": "opencode",
    "gemini-cli": "gemini",
    "qwen-code": "qwen",
}
NAMES = {
    "codex": ToolUse("context_usage", {}, namespace="mcp__token_sidecar"),
    "opencode": ToolUse("token-sidecar_context_usage", {}),
    "gemini-cli": ToolUse("mcp_token-sidecar_context_usage", {}),
    "qwen-code": ToolUse("mcp__token-sidecar__context_usage", {}),
}
_DATA = re.compile(r'"tokens\\*": ?(\d+)')


@pytest.fixture(params=mcp_agents(), ids=lambda agent: agent.name)
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """Yield a scene with our MCP server, which was configured by `mcp --install`."""
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    agent = request.param
    made = Scene("mcp", agent, ensure_installed(agent.package), tmp_path)
    command = ["mcp", "--install", CLIENTS[agent.name], "--yes"]
    installed = run_in(made, str(VENV / "token-sidecar"), *command)
    assert installed[0] == 0, installed[1]
    if agent.name == "codex":  # otherwise, it may send requests before the server has started
        config = made.home / ".codex/config.toml"
        table = "[mcp_servers.token-sidecar]\n"
        assert table in config.read_text()
        config.write_text(config.read_text().replace(table, f"{table}required = true\n"))
    yield made
    made.close()


def run_in(scene: Scene, *command: str) -> tuple[int | None, str]:
    path = f"{scene.program.parent}:{ensure_node().parent}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path} | scene.agent.environment(scene.vendor.url)
    ended = scene.sandbox.start([*command], scene.root, environment).wait(60)
    return ended.code, ended.output


def test_context_usage_is_what_the_vendor_billed(scene: Scene) -> None:
    code, output = run_in(scene, str(scene.program), "mcp", "list")
    assert code == 0, output
    assert str(VENV / "token-sidecar") in output  # absolute, because it is not on the agent's PATH
    scene.script.on(GREET, Reply("Hello there."))
    scene.turn(GREET)
    tool = NAMES[scene.agent.name]
    scene.script.on(ASK, Reply("", (tool,)), Reply("I know now."))
    scene.turn(ASK, resume=True)
    billed, asking, last = scene.vendor.billed("main")[-3:]
    sent = json.dumps((last.request.body.get("input") or [last.request.body])[-3:])
    # Codex sends the structured content of a result to the model. Other agents send the text.
    answer = re.search(r"Context: ~?([\d,]+) tokens", sent) or _DATA.search(sent)
    assert answer, _last_messages(last.request.body)
    assert billed.usage is not None
    assert asking.usage is not None
    tokens = int(answer[1].replace(",", ""))
    # Some agents record the call that requested a tool only after the tool has run.
    assert tokens in (billed.usage.context, asking.usage.context)
    expected = billed if scene.agent.name == "opencode" else asking
    assert expected.usage is not None
    assert tokens == expected.usage.context


def _last_messages(body: dict[str, Any]) -> str:
    """Return the last 1,500 characters of a request's messages, for use in a failure message."""
    return json.dumps(body.get("input") or body.get("messages") or body.get("contents"))[-1500:]
