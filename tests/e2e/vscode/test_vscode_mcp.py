"""Tests the MCP server that the extension provides to agents in VS Code."""

from __future__ import annotations

import json

from tests.e2e.vscode.harness import Window
from tests.truth import truth

START = """
    const found = () => vscode.lm.tools.map(({ name }) => name).filter((name) => name.endsWith(args[0]));
    return await until(async () => {
      // VS Code may not have asked the extension for its servers yet.
      await vscode.commands.executeCommand("workbench.mcp.startServer", "*", { waitForLiveTools: true });
      return found().length > 0 && found();
    });
"""
CALL = """
    const tool = vscode.lm.tools.find(({ name }) => name.endsWith("count_tokens"));
    const result = await vscode.lm.invokeTool(tool.name, { input: args[0] });
    return result.content.map((part) => part.value ?? "").join("");
"""


def test_agents_in_vscode_can_call_the_tools(window: Window) -> None:
    names = window.host(START, "count_tokens")
    assert len(names) == 1
    text = "Tokens that an agent asks for.\n"
    # If a result has structured content, VS Code does not pass on the result's text.
    answer = json.loads(window.host(CALL, {"text": text}))
    assert (answer["tokens"], answer["method"]) == (truth(text), "exact")
