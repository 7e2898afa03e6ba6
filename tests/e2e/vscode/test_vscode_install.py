"""The one-click environment: made from the copy of the server that the extension carries."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from sidecar.counting.engines.reference import Reference
from tests.e2e import editors_setup
from tests.e2e.vscode.harness import Browser, CodeServer, Window, build_probe, build_vsix, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = "No server yet.\n"
COUNT = f"{Reference('o200k_base').count_whole(TEXT)} tokens"

# Stands in for Python on PATH: `-m venv` and `-m pip` are done without a registry.
PYTHON = """#!/bin/sh
echo "$@" >> "$LOG"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *"pip install"*)
    for last; do :; done
    test -f "$last/pyproject.toml" -a -f "$last/sidecar/server/server.py" || exit 1
    ln -s "{program}" "$(dirname "$0")/token-sidecar" ;;
  *"-m sidecar"*) exit 1 ;;
  *) exec "{python}" "$@" ;;
esac
"""


@pytest.fixture
def bare(browser: Browser, tmp_path: Path) -> Iterator[Window]:
    """A window of a VS Code whose PATH has a Python 3.11, but no server."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program = f"{sys.prefix}/bin/token-sidecar"
    script = PYTHON.replace("{program}", program).replace("{python}", sys.executable)
    (bin_folder / "python3").write_text(script.replace("$LOG", str(tmp_path / "calls")))
    (bin_folder / "python3").chmod(0o755)
    root = tmp_path / "ws/folder"
    root.mkdir(parents=True)
    (root / "a.md").write_text(TEXT)
    server = CodeServer(tmp_path, editors_setup.ensure_vscode(), path=f"{bin_folder}:/usr/bin:/bin")
    server.install(build_vsix(), build_probe(tmp_path))
    try:
        server.start()
        window = Window(server, browser, root)
        window.open()
        yield window
        browser.run("await page.goto('about:blank')")
    finally:
        server.stop()


def test_install_when_no_server_is_found(bare: Window, tmp_path: Path) -> None:
    """The message's button makes an environment, installs into it, and the count is there."""
    bare.show("a.md")
    wait_for(lambda: bare.messages() != [], "the message")
    (message,) = bare.messages()
    assert "was not found" in message
    assert "login shell" in message
    bare.screenshot("not-found")
    bare.press_button("Install")
    bare.wait_status(COUNT)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert any(call.startswith("-m venv ") and "server-" in call for call in calls)
    assert any("pip install" in call and call.endswith("/server") for call in calls)
    pid = bare.server_pid()
    bare.host("await vscode.commands.executeCommand('tokenSidecar.restart')")
    wait_for(lambda: bare.server_pid() not in (None, pid), "the server from the environment")
    bare.wait_status(COUNT)
