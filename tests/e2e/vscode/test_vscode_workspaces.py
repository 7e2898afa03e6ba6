"""Tests workspaces in a real VS Code: untrusted, with several folders, and with status settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sidecar.counting.exact_engines import Reference
from tests.e2e.vscode.harness import Browser, CodeServer, Window, wait_for

OpenWindow = Callable[..., Window]

TEXT = "Translate the 議事録 for the 東京 office. 🙂\n"
O200K = f"{Reference('o200k_base').count_whole(TEXT):,} tokens"
CL100K = f"{Reference('cl100k_base').count_whole(TEXT):,} tokens"


def test_an_untrusted_workspace_is_counted_but_starts_nothing(
    open_window: OpenWindow, tmp_path: Path
) -> None:
    """The workspace's model is used, but its settings cannot start programs or open connections."""
    marker = tmp_path / "ran"
    evil = tmp_path / "folder/evil"
    settings = {
        "tokenSidecar.server.path": str(evil),
        "tokenSidecar.endpoint": [{"url": "http://127.0.0.1:9", "models": ["*"]}],
        "tokenSidecar.tokenize.useEndpoint": True,
        "tokenSidecar.model": "gpt-4",
    }
    files = {
        "a.md": TEXT,
        "evil": f"#!/bin/sh\ntouch {marker}\n",
        "sidecar/__main__.py": f"open({str(marker)!r}, 'w')\n",
        ".vscode/settings.json": json.dumps(settings),
    }
    window = open_window(
        files,
        security__workspace__trust__enabled=True,
        security__workspace__trust__startupPrompt="never",
    )
    evil.chmod(0o755)
    assert window.host("return vscode.workspace.isTrusted") is False
    window.show("a.md", status=CL100K)
    get = "return vscode.workspace.getConfiguration('tokenSidecar').get(args[0])"
    assert window.host(get, "server.path") == ""
    assert window.host(get, "endpoint") == []
    assert window.host(get, "tokenize.useEndpoint") is False
    window.host("await vscode.commands.executeCommand('tokenSidecar.restart')")
    window.wait_status(CL100K)
    assert not marker.exists()
    window.screenshot("untrusted")


def test_each_folder_of_a_workspace_has_its_own_configuration(
    code_server: CodeServer, browser: Browser, tmp_path: Path
) -> None:
    """One server counts the documents in all folders."""
    for name, model in (("new", "gpt-5"), ("old", "gpt-4")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_bytes(TEXT.encode())
        (tmp_path / name / ".token-sidecar.toml").write_text(f'model = "{model}"\n')
    workspace = tmp_path / "two.code-workspace"
    workspace.write_text(json.dumps({"folders": [{"path": "new"}, {"path": "old"}]}))
    code_server.configure({})
    window = Window(code_server, browser, workspace)
    window.open("workspace")
    window.show("new/a.md", status=O200K)
    pid = window.server_pid()
    window.show("old/a.md", status=CL100K)
    window.show("new/a.md", status=O200K)
    assert window.server_pid() == pid


def test_a_file_outside_the_folder_has_its_own_conversation(window: Window, tmp_path: Path) -> None:
    """The context view and the commands apply to the active document's workspace."""
    outside = tmp_path / "outside.md"
    # twice as long, so that the count shows which document is active
    outside.write_bytes(2 * TEXT.encode())
    twice = [Reference(name).count_whole(2 * TEXT) for name in ("o200k_base", "cl100k_base")]
    window.show("inside.md", TEXT, status=O200K)
    turns = [{"role": "user", "content": "Only the folder has a conversation."}]
    window.ask("context/append", workspace=str(window.root), session="first", turns=turns)
    window.host("await vscode.commands.executeCommand('tokenSidecar.contextUsage')")
    wait_for(lambda: "gpt-5" in window.context(), "the folder's conversation")
    wait_for(lambda: "ctx" in (window.status() or ""), "the context in the status")
    window.show(str(outside), status=f"{twice[0]} tokens")
    wait_for(lambda: "No conversation found" in window.context(), "the view of the other workspace")
    assert "ctx" not in (window.status() or "")
    window.host("await vscode.commands.executeCommand('tokenSidecar.selectModel', 'gpt-4')")
    window.wait_status(f"{twice[1]} tokens")
    window.show("inside.md", status=O200K)
    wait_for(lambda: "gpt-5" in window.context(), "the folder's conversation again")


def test_the_status_can_be_hidden_and_its_parts_chosen(open_window: OpenWindow) -> None:
    budget = '[[budget]]\nfiles = "a.md"\nmax-tokens = 1000\n'
    window = open_window({"a.md": TEXT, ".token-sidecar.toml": budget})
    update = "vscode.workspace.getConfiguration('tokenSidecar').update(args[0], args[1], true)"
    window.show("a.md", status=O200K)
    wait_for(lambda: "%" in (window.status() or ""), "the percent")
    window.host(f"await {update}", "status.show", "tokens")
    wait_for(lambda: window.status() == O200K, "tokens only")
    window.host(f"await {update}", "status.show", "percent")
    wait_for(lambda: "tokens" not in (window.status() or "tokens"), "percent only")
    assert "%" in (window.status() or "")
    window.host(f"await {update}", "status.hide", True)
    wait_for(lambda: window.status() is None, "the item to disappear")
