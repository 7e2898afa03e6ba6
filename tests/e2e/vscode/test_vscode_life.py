"""Tests the server's life cycle in a real VS Code: start, restart, crash and new settings."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from sidecar.counting.exact_engines import Reference
from tests.e2e.vscode.harness import Window, wait_for

OpenWindow = Callable[..., Window]

TEXT = "Summarize the 会議 notes in three bullet points. 🙂\n"
O200K = f"{Reference('o200k_base').count_whole(TEXT):,} tokens"
CL100K = f"{Reference('cl100k_base').count_whole(TEXT):,} tokens"
ENDED = "exited unexpectedly"


def kill(window: Window) -> int:
    """Kill the server, and return its process id."""
    pid = window.server_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_new_server(window: Window, before: int) -> None:
    """Wait until a new server process has counted the document."""
    wait_for(lambda: window.server_pid() not in (None, before), "another server process")
    window.wait_status(O200K)


def clear_messages(window: Window) -> None:
    """Close all notifications."""
    window.host("await vscode.commands.executeCommand('notifications.clearAll')")
    wait_for(lambda: window.messages() == [], "the notifications to disappear")


def test_a_killed_server_is_restarted_three_times(open_window: OpenWindow) -> None:
    """Each crash causes one message and one restart. After the fourth crash, the server is not
    restarted, and a message offers the next step.
    """
    window = open_window({"a.md": TEXT})
    window.show("a.md", status=O200K)
    for turn in (1, 2, 3):
        pid = kill(window)
        wait_for(lambda: window.messages() != [], "a message")
        (message,) = window.messages()
        assert ENDED in message
        assert f"({turn} of 3)" in message
        if turn == 1:
            window.screenshot("killed")
        wait_new_server(window, pid)
        assert len(window.messages()) == 1
        clear_messages(window)
    kill(window)
    wait_for(lambda: window.messages() != [], "the last message")
    (message,) = window.messages()
    assert "was not restarted" in message
    assert window.server_pid() is None
    assert window.status() is None
    window.press_button("Restart")
    window.wait_status(O200K)


def test_a_command_waits_until_the_server_has_started(window: Window) -> None:
    window.show("early.md", TEXT, status=O200K)
    code = """
        const restarted = vscode.commands.executeCommand('tokenSidecar.restart');
        await new Promise((resolve) => setTimeout(resolve, 100));
        const counted = await vscode.commands.executeCommand('tokenSidecar.count');
        await restarted;
        return counted;
    """
    assert window.host(code), window.messages()


def test_the_chosen_model_outlives_the_server(window: Window) -> None:
    """The selected model is kept for the VS Code session, across restarts of the server."""
    window.show("chosen.md", TEXT, status=O200K)
    select = "await vscode.commands.executeCommand('tokenSidecar.selectModel', args[0])"
    window.host(select, "gpt-4")
    window.wait_status(CL100K)
    pid = kill(window)
    wait_for(lambda: window.server_pid() not in (None, pid), "another server process")
    window.wait_status(CL100K)
    pid = window.server_pid() or 0
    window.host("await vscode.commands.executeCommand('tokenSidecar.restart')")
    wait_for(lambda: window.server_pid() not in (None, pid), "a third server process")
    window.wait_status(CL100K)
    window.host(select, "gpt-5")
    window.wait_status(O200K)


def test_a_missing_server_is_reported_with_a_way_out(window: Window, tmp_path: Path) -> None:
    """If the path is wrong, there is one clear message. Correcting the path starts the server."""
    missing = str(tmp_path / "nowhere/token-sidecar")
    window.show("missing.md", TEXT, status=O200K)
    window.server.configure({"tokenSidecar.server.path": missing})
    wait_for(lambda: window.messages() != [], "a message")
    (message,) = window.messages()
    assert missing in message
    window.screenshot("missing")
    window.server.configure({})
    window.wait_status(O200K)


def test_a_program_that_exits_at_once_is_started_once(window: Window) -> None:
    """The user sees a single error message, and the server starts after the path is corrected."""
    window.show("ends.md", TEXT, status=O200K)
    window.server.configure({"tokenSidecar.server.path": "/bin/false"})
    wait_for(lambda: window.messages() != [], "a message")
    (message,) = window.messages()
    assert "did not start" in message
    window.server.configure({})
    window.wait_status(O200K)


def test_settings_apply_at_once(open_window: OpenWindow) -> None:
    """The model in the user's settings takes precedence over the project's model."""
    project = '[[budget]]\nfiles = "none"\nmax-tokens = 1\n'
    files = {"a.md": TEXT, ".token-sidecar.toml": f'model = "gpt-4"\n{project}'}
    window = open_window(files)
    window.show("a.md", status=CL100K)
    set_model = "vscode.workspace.getConfiguration('tokenSidecar').update('model', args[0], true)"
    window.host(f"await {set_model}", "gpt-5")
    window.wait_status(O200K)
    window.host(
        "await vscode.workspace.getConfiguration('tokenSidecar').update('model', undefined, true)"
    )
    window.wait_status(CL100K)
