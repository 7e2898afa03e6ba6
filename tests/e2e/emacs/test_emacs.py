"""Tests the Emacs configuration and tutorial in the docs with Debian's Emacs and eglot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import tutorials
from tests.e2e.neovim import debian
from tests.e2e.terminal import Terminal
from tests.e2e.tutorials import promised, sample, sentence
from tests.truth import truth

ROOT = Path(__file__).resolve().parents[3]
DRIVE = Path(__file__).with_name("drive.el")
SETUP = sample((ROOT / "docs/how-to/other-editors.md").read_text("utf-8"), "elisp")

RULE = '[[budget]]\nfiles = "AGENTS.md"\nmax-tokens = 100\n'
TEXT = "".join(f"This is line number {n} of a long file.\n" for n in range(40))
TYPED = "日本語 🦜 and more.\n"


def test_status_diagnostic_fix_and_request_work_in_emacs(tmp_path: Path) -> None:
    emacs = debian.ensure("emacs", "emacs-nox", "elpa-eglot")
    workspace = tmp_path / "workspace"
    (workspace / ".git").mkdir(parents=True)
    (workspace / ".token-sidecar.toml").write_text(RULE)
    (workspace / "AGENTS.md").write_text(TEXT)
    setup = tmp_path / "setup.el"
    setup.write_text(SETUP, encoding="utf-8")
    env = os.environ | {
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "EMACS_SETUP": str(setup),
        "TOKEN_SIDECAR_CONFIG": str(tmp_path / "config.toml"),
        "TOKEN_SIDECAR_STATE": str(tmp_path / "state"),
    }
    (tmp_path / "config.toml").touch()
    argv = [emacs, "-q", "--batch", "-l", str(DRIVE)]
    result = subprocess.run(
        argv, cwd=workspace, env=env, capture_output=True, text=True, check=False, timeout=110
    )
    assert result.returncode == 0, result.stdout + result.stderr
    seen = json.loads((workspace / "seen.json").read_text(encoding="utf-8"))
    assert f"{truth(TEXT)} tokens" in seen["opened"]
    assert "100" in seen["diagnostic"]
    assert seen["counted"] == truth(TYPED + TEXT)
    assert truth(seen["fitted"]) <= 100
    assert seen["fitted"].endswith("\n")


PAGE = tutorials.read("emacs")


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal in which Emacs can find our server."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.stop()


def test_the_tutorial_works(terminal: Terminal, tmp_path: Path) -> None:
    emacs = debian.ensure("emacs", "emacs-nox", "elpa-eglot")
    init = Path(os.environ["HOME"]) / ".emacs.d/init.el"
    init.parent.mkdir()
    init.write_text(SETUP + sample(PAGE, "elisp"), "utf-8")
    folder = tmp_path / "prompt"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    file = folder / promised(PAGE, r"open the file `(.*?)`")
    terminal.start(emacs, "-nw", str(file), columns=120)
    terminal.wait("[eglot:prompt]")
    terminal.type(sentence(PAGE))
    terminal.wait(promised(PAGE, "The mode line shows `(.*?)`"))
    settings = folder / promised(PAGE, r"Create the file `(.*?)`")
    settings.write_text(sample(PAGE, "toml"), "utf-8")
    terminal.wait("Flymake[0 1]")
    terminal.type("M-x", promised(PAGE, "`M-x (.*?)`"), "Enter")
    terminal.wait("Pick an action")
    terminal.type("Tab")
    offered = terminal.wait("Possible completions")
    assert "Fit to budget: keep the start" in offered
    assert "Raise the budget" in offered
