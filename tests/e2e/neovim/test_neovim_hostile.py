"""Tests that a real Neovim in a hostile folder runs nothing from this folder."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hostile
from tests.e2e.neovim.harness import NVIM, SERVER, TRY, Editor, wait_for
from tests.e2e.tracing import Trace
from tests.hostile import Hostile
from tests.truth import truth

HEALTH = "return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, true), '\\n')"


@pytest.fixture
def repository(tmp_path: Path) -> Hostile:
    return hostile.make(tmp_path)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """A trace of the server's processes."""
    return Trace(tmp_path / "trace")


@pytest.fixture(params=["python3", "token-sidecar"])
def opened(
    repository: Hostile, tmp_path: Path, trace: Trace, request: pytest.FixtureRequest
) -> Iterator[Editor]:
    """A Neovim in the hostile folder. PATH starts with subfolders of this folder."""
    programs = tmp_path / "programs"
    programs.mkdir()
    real = {"python3": sys.executable, "token-sidecar": str(SERVER)}[request.param]
    (programs / request.param).write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
    trace.wrap(programs / request.param)
    env = {
        "TOKEN_SIDECAR_CMD": "",
        "PATH": f"{repository.path()}:{programs}:/usr/bin:/bin",
    }
    folder = tmp_path / "editor"
    folder.mkdir()
    editor = Editor(folder, env=env, workspace=repository.root)
    yield editor
    editor.close()


def test_nothing_in_a_hostile_folder_runs(
    opened: Editor, repository: Hostile, trace: Trace
) -> None:
    """Nothing in the folder is run, and the server opens no network connections."""
    opened.edit("CLAUDE.md", tokens=truth(hostile.PROMPT * 2))
    (pid,) = opened.server_pids()
    assert os.readlink(f"/proc/{pid}/cwd") == str(Path.home().resolve())
    assert opened.count() == truth(hostile.PROMPT * 2)
    opened.command("TokenSidecar restart")
    wait_for(lambda: opened.server_pids() not in ([], [pid]), "another process")
    opened.edit("bin/../lazy.md", tokens=truth(hostile.LAZY * 2))
    opened.command("checkhealth token_sidecar")
    about_the_server = str(opened.lua(HEALTH)).partition("token-sidecar: configuration")
    assert about_the_server[1]
    assert "ERROR" not in about_the_server[0]
    assert repository.fired() == set()
    assert trace.addresses() == set()
    root = str(repository.root)
    assert trace.programs()
    assert [program for program in trace.programs() if program.startswith((root, "."))] == []


def test_hostile_settings_files_do_not_block_the_editor(
    repository: Hostile, tmp_path: Path
) -> None:
    """Neovim looks for the files, and opens each file that has diagnostics."""
    hostile.add_bad_settings(repository)
    (tmp_path / "editor").mkdir()
    editor = Editor(tmp_path / "editor", workspace=repository.root)
    for name in hostile.BAD_FILES:
        editor.edit(f"bad/{name}/CLAUDE.md", tokens=truth(hostile.PROMPT))
    seen = "".join([*editor.messages(), *editor.screen(), editor.describe()])
    seen += str(editor.lua("return vim.inspect(vim.diagnostic.get())"))
    assert hostile.PLANTED not in seen
    editor.close()
    assert repository.fired() == set()


def test_a_configured_command_is_found_outside_the_folder(
    repository: Hostile, tmp_path: Path
) -> None:
    """If the configured command has no path, it is looked up on PATH, but not in the workspace."""
    env = {
        "TOKEN_SIDECAR_CMD": "token-sidecar serve --log-level ERROR",
        "PATH": f"{repository.path()}:{SERVER.parent}:/usr/bin:/bin",
    }
    (tmp_path / "editor").mkdir()
    editor = Editor(tmp_path / "editor", env=env, workspace=repository.root)
    editor.edit("CLAUDE.md", tokens=truth(hostile.PROMPT * 2))
    assert repository.fired() == set()
    editor.close()


def test_the_demo_runs_nothing_from_a_hostile_folder(
    repository: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers how `editors/try/neovim.py` creates its environment, runs pip and finds Neovim."""
    spec = importlib.util.spec_from_file_location("try_token_sidecar", TRY / "neovim.py")
    assert spec
    assert spec.loader
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    monkeypatch.setattr(demo, "VENV", tmp_path / "environment")
    monkeypatch.setattr(demo, "PYTHON", tmp_path / "environment/bin/python")
    monkeypatch.setenv("PATH", f":.:bin:{NVIM.parent}")
    monkeypatch.chdir(repository.root)
    demo.make_environment()
    demo.install(["--help"], "stamp")
    assert (tmp_path / "environment/stamp").is_file()
    assert demo.find_neovim() == str(NVIM)
    assert repository.fired() == set()
