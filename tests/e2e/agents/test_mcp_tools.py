"""Tests that real coding agents get the vendor's numbers from our MCP server."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agents.adapters import Agent, chosen_agents, mcp_agents
from tests.e2e.agents.install import ensure_installed, ensure_node
from tests.e2e.agents.scene import Scene
from tests.fake_vendor import Reply, ToolUse

VENV = Path(sys.executable).parent
GREET = "Greet me in one line."
ASK = "How full is your context?"
OTHER = "Work on something else."
CLIENTS = {
    "claude-code": "claude-code",
    "codex": "codex",
    "opencode": "opencode",
    "gemini-cli": "gemini",
    "qwen-code": "qwen",
    "copilot-cli": "copilot",
    "kilo-code": "kilo",
    "kimi-code": "kimi",
    "cline": "cline",
    "pi": "pi",
}
VIBE_CODE = "async function main() { return tools.mcp_token_sidecar.context_usage({}); }"
NAMES = {
    "codex": ToolUse("context_usage", {}, namespace="mcp__token_sidecar"),
    "opencode": ToolUse("token-sidecar_context_usage", {}),
    "gemini-cli": ToolUse("mcp_token-sidecar_context_usage", {}),
    "qwen-code": ToolUse("mcp__token-sidecar__context_usage", {}),
    "claude-code": ToolUse("mcp__token-sidecar__context_usage", {}),
    "copilot-cli": ToolUse("token-sidecar-context_usage", {}),
    "kilo-code": ToolUse("token-sidecar_context_usage", {}),
    "kimi-code": ToolUse("mcp__token-sidecar__context_usage", {}),
    "cline": ToolUse("token-sidecar__context_usage", {}),
    "vibe": ToolUse("run_typescript", {"code": VIBE_CODE}),
    "pi": ToolUse("mcp__token_sidecar__context_usage", {}),
}
VIBE_SERVER = f"""
[[mcp_servers]]
name = "token-sidecar"
transport = "stdio"
command = "{VENV / "token-sidecar"}"
args = ["mcp"]
"""
NAME_THEIR_SESSION = {"claude-code", "codex", "copilot-cli", "qwen-code"}
"""The agents that name the session of a call, in the call or in the server's environment."""
STEPS, OWN_TOKENS, OTHER_TOKENS = 40, 31_234, 60_000
_TEXT = re.compile(r"Context: ~?([\d,]+) tokens")
_DATA = re.compile(r'"tokens\\*": ?(\d+),\s*\\*"(?:limit|method|tokensUntilCompaction|usable)')


@pytest.fixture(params=mcp_agents(), ids=lambda agent: agent.name)
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """Yield a scene with our MCP server, which was configured by `mcp --install`."""
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    agent = request.param
    made = Scene("mcp", agent, ensure_installed(agent.package), tmp_path)
    if agent.name == "vibe":
        with (made.home / ".vibe/config.toml").open("a") as config_file:
            config_file.write(VIBE_SERVER)
    else:
        command = ["mcp", "--install", CLIENTS[agent.name], "--yes"]
        installed = run_in(made, str(VENV / "token-sidecar"), *command)
        assert installed[0] == 0, installed[1]
    if agent.name == "claude-code":
        allowed = {"permissions": {"allow": ["mcp__token-sidecar"]}}
        (made.home / ".claude/settings.json").write_text(json.dumps(allowed))
    if agent.name == "cline":  # it waits only three seconds for the server to start
        config = made.home / ".cline/data/settings/cline_mcp_settings.json"
        written = json.loads(config.read_text())
        written["mcpServers"]["token-sidecar"]["timeout"] = 30
        config.write_text(json.dumps(written))
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
    answer = _TEXT.search(sent) or _DATA.search(sent)
    assert answer, _last_messages(last.request.body)
    assert billed.usage is not None
    assert asking.usage is not None
    tokens = int(answer[1].replace(",", ""))
    # Some agents record the call that requested a tool only after the tool has run.
    assert tokens in (billed.usage.context, asking.usage.context)
    expected = billed if scene.agent.name == "opencode" else asking
    assert expected.usage is not None
    assert tokens == expected.usage.context


def two_session_agents() -> list[Agent]:
    """Return the MCP clients among the agents that `AGENTS` names, or that CI tests."""
    names = os.environ.get("AGENTS", "").split()
    return [agent for agent in chosen_agents(names) if agent.name in NAMES]


@pytest.mark.parametrize("scene", two_session_agents(), indirect=True, ids=lambda one: one.id)
def test_each_of_two_running_sessions_gets_its_own_numbers(scene: Scene) -> None:
    """The other session keeps writing. Without a session's name, the answer must have a note."""
    wait = scene.agent.shell("sleep 0.5")
    scene.script.on(
        OTHER,
        *(Reply("", (wait,), prompt_tokens=OTHER_TOKENS + number) for number in range(STEPS)),
    )
    other = scene.start(OTHER)
    is_busy = scene.vendor.wait_until(
        lambda calls: sum(call.finished_at is not None for call in calls) > 1, 180
    )
    assert is_busy, other.wait(1).output
    tool = NAMES[scene.agent.name]
    scene.script.on(
        ASK,
        Reply("", (tool,), prompt_tokens=OWN_TOKENS),
        Reply("", (wait,), prompt_tokens=OWN_TOKENS + 100),
        Reply("", (tool,), prompt_tokens=OWN_TOKENS + 200),
    )
    asking = scene.start(ASK).wait(180)
    assert asking.code == 0, asking.output
    own = [call for call in scene.vendor.billed("main") if ASK in "".join(call.request.user_texts)]
    assert [len(call.reply.tools) for call in own[:4]] == [1, 1, 1, 0], asking.output
    body = own[-1].request.body
    sent = json.dumps(body.get("input") or body.get("messages") or body.get("contents"))
    texts, data = _TEXT.findall(sent), _DATA.findall(sent)
    numbers = [int(number.replace(",", "")) for number in texts or data]
    assert numbers, _last_messages(body)
    expected = {call.usage.context for call in own if call.usage}
    has_note = "other running session" in sent
    seen = "text" if texts else "data"
    sys.stdout.write(
        f"{scene.agent.name} {scene.agent.package.version}: {numbers}, expected {expected}; "
        f"the model saw the {seen}; note: {has_note}\n"
    )
    assert set(numbers) <= expected or has_note
    if scene.agent.name in NAME_THEIR_SESSION:
        assert set(numbers) <= expected


def _last_messages(body: dict[str, Any]) -> str:
    """Return the last 1,500 characters of a request's messages, for use in a failure message."""
    return json.dumps(body.get("input") or body.get("messages") or body.get("contents"))[-1500:]
