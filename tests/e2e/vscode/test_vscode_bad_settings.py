"""Tests a real VS Code with hostile settings files, such as links, FIFOs, devices and patterns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import hostile
from tests.e2e.tracing import Trace, peak_bytes
from tests.e2e.vscode.harness import Browser, CodeServer, Window
from tests.truth import truth

if TYPE_CHECKING:
    from tests.hostile import Hostile

MOST_BYTES = 300_000_000
SERVER = Path(sys.executable).parent / "token-sidecar"
PROBLEMS = """
    const uri = (each) => each[0].toString() + each[1].map((one) => one.message).join();
    return vscode.languages.getDiagnostics().map(uri).join();
"""
EDIT = """
    const editor = vscode.window.activeTextEditor;
    await editor.edit((edit) => edit.insert(new vscode.Position(0, 0), args[0]));
"""


@pytest.fixture
def repository(tmp_path: Path) -> Hostile:
    made = hostile.make(tmp_path)
    hostile.add_bad_settings(made)
    return made


def test_hostile_settings_files_are_reported_without_their_contents(
    code_server: CodeServer, browser: Browser, repository: Hostile, tmp_path: Path
) -> None:
    """Documents are still counted, file contents are not quoted, and no connections are opened."""
    trace = Trace(tmp_path / "trace")
    program = tmp_path / "programs/token-sidecar"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{SERVER}" "$@"\n')
    trace.wrap(program)
    code_server.configure({"tokenSidecar.server.path": str(program)})
    workspace = repository.root / "bad/bad.code-workspace"
    folders = [{"path": str(folder)} for folder in repository.bad()]
    workspace.write_text(json.dumps({"folders": folders}))
    window = Window(code_server, browser, workspace)
    window.open("workspace")
    for folder in repository.bad():
        window.show(f"{folder.name}/CLAUDE.md")
        window.wait_status(f"{truth(hostile.PROMPT)} tokens")
        window.host(EDIT, "Typed. ")
        window.wait_status(f"{truth('Typed. ' + hostile.PROMPT)} tokens")
    seen = "".join([window.host(PROBLEMS), *window.messages()])
    pid = window.server_pid()
    assert pid
    assert peak_bytes(trace.traced(pid)) < MOST_BYTES
    assert hostile.PLANTED not in seen
    assert "bad/link/.token-sidecar.toml" not in seen
    assert "bad/mistakes/.token-sidecar.toml" in seen
    assert trace.addresses() == set()
    assert repository.fired() == set()
