"""Tests every step of docs/tutorial/emacs.md in a real Emacs in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import tutorials
from tests.e2e.emacs.test_emacs import SETUP
from tests.e2e.neovim import debian
from tests.e2e.terminal import Terminal
from tests.e2e.tutorials import promised, sample, sentence

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
