"""Tests Neovim and the README's first command in a real terminal."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.e2e.neovim.harness import NVIM, SERVER, SHIM, TRY, environment, wait_for
from tests.e2e.terminal import Terminal
from tests.truth import truth

PROMPT = (TRY / "prompt.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """Run editors/try/neovim.py, but skip the installation."""
    spec = importlib.util.spec_from_file_location("try_token_sidecar", TRY / "neovim.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.BIN = SERVER.parent  # type: ignore[attr-defined]
    return module


def environ_of(pid: str) -> str:
    """Return a process's environment, or an empty string if the process has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.stop()


def test_typing_in_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    code = f"""
import importlib.util, pathlib
spec = importlib.util.spec_from_file_location("demo", {str(TRY / "neovim.py")!r})
demo = importlib.util.module_from_spec(spec)
spec.loader.exec_module(demo)
demo.BIN = pathlib.Path({str(SERVER.parent)!r})
demo.open_neovim({str(NVIM)!r}, pathlib.Path({str(tmp_path)!r}))
input()
"""
    terminal.start(sys.executable, "-c", code)
    screen = terminal.wait(f"{truth(PROMPT)} tokens · ctx 20 % · $0.12")
    assert "To leave, type :qa!" in screen
    terminal.type("o", "Hello, world!", "Escape")
    screen = terminal.wait(f"{truth(PROMPT + 'Hello, world!' + chr(10))} tokens")
    assert "prompt.md [+]" in screen
    terminal.type(":TokenSidecar count", "Enter")
    screen = terminal.wait("token-sidecar: ")
    assert f"token-sidecar: {truth(PROMPT + 'Hello, world!' + chr(10))} tokens" in screen
    assert "Press ENTER" not in screen
    out = subprocess.run(
        ["pgrep", "-f", f"{SERVER} serve"], capture_output=True, text=True, check=True
    )
    mine = [pid for pid in out.stdout.split() if str(tmp_path) in environ_of(pid)]
    for pid in mine:
        os.kill(int(pid), signal.SIGKILL)
    screen = terminal.wait("restarting (1 of 3)")
    assert len(mine) == 1
    assert "Press ENTER" not in screen
    terminal.type("o", "one more", "Escape")
    terminal.wait(f"{truth(PROMPT + 'Hello, world!' + chr(10) + 'one more' + chr(10))} tokens")
    terminal.type(":checkhealth token_sidecar", "Enter")
    screen = terminal.wait("last error")
    assert "no problems" in screen
    assert "ERROR" not in screen
    terminal.type(":help token-sidecar", "Enter")
    terminal.wait("token-sidecar is a language server")
    terminal.type(":TokenSidecar context", "Enter")
    assert "Write the release notes, codex" in terminal.wait("Cost ")
    terminal.type("q", ":qa!", "Enter")
    terminal.wait("Install it in Neovim:  docs/how-to/neovim.md")


def test_a_whole_session_in_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    """Covers budgets, fixes and undo, reports, models, restarts and two folders."""
    line = "Answer in short sentences, and name the file. 日本語\n"
    text = line * 20
    for name, model in (("one", "gpt-5"), ("two", "gpt-4")):
        (tmp_path / name / ".git").mkdir(parents=True)
        (tmp_path / name / "a.md").write_text(text, encoding="utf-8")
        rule = f'model = "{model}"\n[[budget]]\nfiles = "*.md"\nmax-tokens = 60\n'
        (tmp_path / name / ".token-sidecar.toml").write_text(rule)
    init = tmp_path / "init.lua"
    init.write_text(
        f"vim.opt.runtimepath:prepend('{SHIM}')\n"
        "vim.o.laststatus = 2\n"
        "vim.diagnostic.config({ virtual_text = true })\n"
        """vim.o.statusline = "%f %m%=%{v:lua.require'token_sidecar'.statusline()} " """
    )
    variables = [f"{key}={value}" for key, value in environment(tmp_path).items()]
    terminal.start(
        "env", *variables, str(NVIM), "--clean", "-n", "-u", str(init), str(tmp_path / "one/a.md")
    )
    terminal.wait(f"{truth(text):,} tokens")
    terminal.wait(f"a.md is {truth(text):,} tokens")  # the diagnostic at the end of the line
    terminal.type(":TokenSidecar fit", "Enter")
    assert "Fit to budget: keep the start" in terminal.wait("Fit to budget")
    terminal.type("1", "Enter")
    fitted = terminal.wait("a.md [+]")
    wait_for(lambda: fits(terminal), lambda: f"a text that fits: {fitted}")
    terminal.type("u")
    terminal.wait(f"{truth(text):,} tokens")
    terminal.type(":TokenSidecar model gpt-4", "Enter")
    terminal.wait(f"{truth(text, 'cl100k_base'):,} tokens")
    terminal.type(":TokenSidecar model gpt-5", "Enter")
    terminal.wait(f"{truth(text):,} tokens")
    terminal.type(":TokenSidecar context", "Enter")
    terminal.wait("No conversation found")
    terminal.type("q", ":TokenSidecar cost", "Enter")
    terminal.wait("No calls recorded for this workspace yet")
    terminal.type("q", ":TokenSidecar compare gpt-4", "Enter")
    terminal.wait("of window")
    terminal.type("q", ":TokenSidecar restart", "Enter")
    terminal.type("o", "one more", "Escape")
    # The cursor's line is unknown after fitting and undo, but the total is the same.
    more = text + "one more\n"
    terminal.wait(f"{truth(more):,} tokens")
    terminal.type(":edit! ", str(tmp_path / "two/a.md"), "Enter")
    screen = terminal.wait(f"{truth(text, 'cl100k_base'):,} tokens")
    assert "Press ENTER" not in screen


def fits(terminal: Terminal) -> bool:
    """Return whether the status line shows at most 60 tokens."""
    shown = re.search(r"(\d+) tokens", terminal.wait(" tokens").splitlines()[-2])
    return shown is not None and int(shown[1]) <= 60


def test_without_a_terminal_the_demo_prints_each_status_line(
    demo: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert demo.open_neovim(str(NVIM), tmp_path) == 0
    printed, complaints = capfd.readouterr()
    lines = printed.splitlines()
    assert complaints == ""
    assert f"prompt.md  {truth(PROMPT)} tokens" in lines[0]
    typed = PROMPT + "Hello, sidecar: how many tokens is this?\n"
    assert f"prompt.md [+]  {truth(typed)} tokens" in lines[1]
    assert len(lines) == 6


def test_the_demo_fails_if_the_server_does_not_count(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: object
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "token-sidecar").write_text("#!/bin/sh\nexec sleep 60\n")
    (programs / "token-sidecar").chmod(0o755)
    monkeypatch.setattr(demo, "BIN", programs)
    monkeypatch.setenv("TOKEN_SIDECAR_TRY_WAIT_MS", "500")
    assert demo.open_neovim(str(NVIM), tmp_path) == 1


def test_the_demo_reports_an_old_python(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    assert demo.main() == 2
    assert "needs Python 3.11" in capsys.readouterr().err


def test_the_demo_reports_a_failing_pip(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ERROR: no network' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(demo, "PYTHON", python)
    monkeypatch.setattr(demo, "VENV", tmp_path)
    with pytest.raises(demo.UnableError, match=r"(?s)pip could not install.*no network"):
        demo.install(["something"], "stamp")
    assert not (tmp_path / "stamp").exists()
