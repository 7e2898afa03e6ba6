"""Tests what real coding agents send of an MCP server's tools, against `mcp_servers.toml`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.folders import Places
from sidecar.config.settings import Agents
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.mcp.tool_lists import list_tools
from sidecar.project.mcp_servers import find_mcp_servers, mcp_rules, sent_text
from tests.e2e.agents.adapters import Agent, ClaudeCode, chosen_agents
from tests.e2e.agents.install import ensure_installed
from tests.e2e.agents.scene import Scene
from tests.fake_vendor import Reply

ROOT = Path(__file__).resolve().parents[3]
TOOLS = 24
PROMPT = "Greet me in one line."
COMMAND = [sys.executable, "-m", "tests.mcp_tool_server", str(TOOLS)]
VARIABLES = {"PYTHONPATH": str(ROOT)}
ENTRY = {"command": COMMAND[0], "args": COMMAND[1:], "env": VARIABLES}
LOCAL = {"type": "local", "command": COMMAND, "environment": VARIABLES, "enabled": True}
CODEX = f"""
[mcp_servers.crates]
command = {json.dumps(COMMAND[0])}
args = {json.dumps(COMMAND[1:])}
env = {{ PYTHONPATH = {json.dumps(str(ROOT))} }}
required = true
startup_timeout_sec = 60
"""
FILES: dict[str, tuple[str, str | dict[str, Any]]] = {
    "claude-code": (".claude.json", {"mcpServers": {"crates": ENTRY}}),
    "codex": (".codex/config.toml", CODEX),
    "opencode": (".config/opencode/opencode.json", {"mcp": {"crates": LOCAL}}),
    "gemini-cli": (".gemini/settings.json", {"mcpServers": {"crates": ENTRY}}),
    "qwen-code": (".qwen/settings.json", {"mcpServers": {"crates": ENTRY}}),
    "kimi-code": (".kimi-code/mcp.json", {"mcpServers": {"crates": ENTRY}}),
    "copilot-cli": (
        ".copilot/mcp-config.json",
        {"mcpServers": {"crates": ENTRY | {"type": "local", "tools": ["*"]}}},
    ),
    "kilo-code": (".config/kilo/kilo.json", {"mcp": {"crates": LOCAL}}),
    "cline": (
        ".cline/data/settings/cline_mcp_settings.json",
        {"mcpServers": {"crates": ENTRY | {"timeout": 60}}},
    ),
    "pi": (".pi/agent/mcp.json", {"mcpServers": {"crates": ENTRY}}),
}
"""The agent's configuration file in the home folder, and what to add to it."""


class ClaudeCodeWithSchemas(ClaudeCode):
    variant = "schemas"

    def environment(self, url: str) -> dict[str, str]:
        return super().environment(url) | {"ENABLE_TOOL_SEARCH": "false"}


def agents() -> list[Agent]:
    """Return the agents that `AGENTS` names, or those that CI runs."""
    chosen = chosen_agents(os.environ.get("AGENTS", "").split())
    found = [agent for agent in chosen if agent.name in FILES]
    has_claude = any(agent.name == "claude-code" for agent in found)
    return [*found, ClaudeCodeWithSchemas()] if has_claude else found


@pytest.fixture(params=agents(), ids=lambda agent: agent.id)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    agent = request.param
    made = Scene("mcp-footprint", agent, ensure_installed(agent.package), tmp_path)
    made.script.on(PROMPT, *[Reply("Hello there.")] * 4)
    yield made
    made.close()


def add_server(scene: Scene) -> None:
    name, added = FILES[scene.agent.name]
    path = scene.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.read_text() if path.exists() else ""
    if isinstance(added, str):
        path.write_text(written + added)
    else:
        path.write_text(json.dumps(json.loads(written or "{}") | added))


def first_request(scene: Scene) -> dict[str, Any]:
    before = len(scene.vendor.calls)
    ended = scene.start(PROMPT).wait(120)
    assert ended.code == 0, ended.output
    main = [call for call in scene.vendor.calls[before:] if call.kind == "main"]
    return main[0].request.body


def lines_of(value: Any) -> list[str]:
    """Return the tools of a request as JSON, and the lines of all its other texts."""
    if isinstance(value, str):
        return value.splitlines()
    if isinstance(value, list):
        return [line for one in value for line in lines_of(one)]
    if not isinstance(value, dict):
        return []
    found = []
    for key, one in value.items():
        if key in ("tools", "functionDeclarations") and isinstance(one, list):
            inner = [each for tool in one for each in tool.get("functionDeclarations", [tool])]
            inner = [each for tool in inner for each in tool.get("tools", [tool])]
            found += [json.dumps(tool, separators=(",", ":"), ensure_ascii=False) for tool in inner]
        else:
            found += lines_of(one)
    return found


def test_the_tools_of_a_server_are_sent_as_the_rules_say(scene: Scene) -> None:
    without = set(lines_of(first_request(scene)))
    add_server(scene)
    for _ in range(3):  # Claude Code does not wait for a server that starts slowly
        added = [line for line in lines_of(first_request(scene)) if line not in without]
        if any("crate" in line for line in added):
            break
    places = Places.of(Agents(), {"HOME": str(scene.home)})
    (server,) = find_mcp_servers(scene.agent.name, scene.root, places)
    listed = list_tools(server, scene.home, os.environ)
    assert len(listed.tools) == TOOLS
    forms = mcp_rules()[server.agent].forms
    env = scene.agent.environment(scene.vendor.url)
    form = next(form for form in forms if form.applies(server, scene.agent.model, env))
    count = Tokenizers((), "auto").for_model("gpt-4o").count
    sent = count("\n".join(line for line in added if "crate" in line))
    expected = count(sent_text(server, listed, form))
    sys.stdout.write(f"{scene.agent.id} {scene.agent.package.version}: {sent}, {expected}\n")
    assert expected == pytest.approx(sent, rel=0.02, abs=2)
