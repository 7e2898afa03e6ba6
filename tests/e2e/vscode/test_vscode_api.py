"""Tests the session commands, the API used by the sample extension, and the MCP server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.vscode.harness import EXTENSION, Window, wait_for
from tests.truth import truth

SAMPLE = """
    const found = vscode.extensions.getExtension("token-sidecar.token-sidecar-sample");
    const sample = await found.activate();
"""
LISTEN = """
    globalThis.heard = [];
    const ours = vscode.extensions.getExtension("token-sidecar.token-sidecar");
    ours.exports.onDidChangeStatus(({workspace, uri, text}) => heard.push([workspace, uri, text]));
"""
OPEN_OUTSIDE = """
    const document = await vscode.workspace.openTextDocument(vscode.Uri.file(args[0]));
    await until(() => heard.some(([, uri]) => uri === document.uri.toString()));
"""
REPLY = {
    "object": "chat.completion",
    "model": "gpt-4o",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}
    ],
    "usage": {"prompt_tokens": 1200, "completion_tokens": 34, "total_tokens": 1234},
}


@pytest.fixture
def notes(window: Window) -> Window:
    """A window with a document that has been counted."""
    window.show("notes.md", "Hello, world!\n", status="4 tokens")
    return window


def test_the_sample_extension_reports_its_conversation(notes: Window) -> None:
    """The sample extension is built with the commands in its header. It sends requests, and the
    server notifies it of status changes.
    """
    outside = str(notes.root.parent / "outside.md")
    Path(outside).write_text("Not of this folder\n")
    assert len((EXTENSION / "sample/extension.ts").read_text().splitlines()) <= 30
    before = notes.ask("cost/detail")["totals"]["calls"]
    notes.host(LISTEN)
    assert notes.host(SAMPLE + "return await sample.send(args[0]);", "Does it fit?") == "ok"
    # the id must be new, because all windows share a ledger that records each id only once
    reply = REPLY | {"id": f"chatcmpl-{uuid4()}"}
    notes.host(SAMPLE + "return await sample.received(args[0]);", reply)
    shown = SAMPLE + "return sample.tokens();"

    def missed() -> str:
        heard, usage = notes.host("return globalThis.heard"), notes.ask("context/usage")
        return f"1,234, not {notes.host(shown)}; heard {heard}; {usage}; {notes.messages()}"

    wait_for(lambda: notes.host(shown) == 1234, missed)
    # VS Code also opens files outside of the workspace by itself, such as settings files.
    notes.host(OPEN_OUTSIDE, outside)
    assert notes.host(shown) == 1234, missed()
    assert notes.ask("cost/detail")["totals"]["calls"] == before + 1


def test_a_plan_for_a_context_that_fits_reports_that(notes: Window) -> None:
    turns: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
    notes.ask("context/append", session="s", turns=turns)
    plan = notes.host("return await vscode.commands.executeCommand('tokenSidecar.fitContext');")
    assert plan["removed"] == []
    assert plan["text"].startswith("Nothing to remove")
    said = "Nothing to remove"
    wait_for(lambda: any(text.startswith(said) for text in notes.messages()), notes.messages)


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
