"""Tests docs/tutorial/vscode.md: the installation, in a hostile folder, and every later step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hostile
from tests.e2e import editors_setup, tutorials
from tests.e2e.tracing import Trace
from tests.e2e.tutorials import promised, sample, sentence
from tests.e2e.vscode.harness import (
    EXTENSION,
    STATUS_ITEM,
    Browser,
    CodeServer,
    Window,
    build_probe,
    build_vsix,
    wait_for,
)
from tests.hostile import Hostile
from tests.truth import truth

TEXT = "No server yet.\n"
COUNT = f"{truth(TEXT)} tokens"
INSTALL_SECONDS = 600.0
"""The timeout for pip, which downloads about 30 packages and compiles their modules."""
INSTALLED = """
import importlib.metadata as m, json, re
print(json.dumps({re.sub("[-_.]+", "-", each.metadata["Name"]).lower(): each.version
                  for each in m.distributions()}))
"""


@pytest.fixture
def repository(tmp_path: Path) -> Hostile:
    """A hostile folder with a document."""
    made = hostile.make(tmp_path / "ws")
    (made.root / "a.md").write_text(TEXT)
    return made


@pytest.fixture
def bare(browser: Browser, tmp_path: Path, repository: Hostile) -> Iterator[Window]:
    """A window that has opened the hostile folder. PATH starts with this folder, and contains Python
    but no server.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    root = repository.root
    path = f"{repository.path()}:{programs}:/usr/bin:/bin"
    server = CodeServer(tmp_path, editors_setup.ensure_vscode(), path=path)
    server.install(build_vsix(), build_probe(tmp_path))
    try:
        server.start(cwd=root)
        window = Window(server, browser, root)
        window.open()
        yield window
        browser.run("await page.goto('about:blank')")
    finally:
        server.stop()


@pytest.mark.timeout(900)
def test_the_server_is_installed_safely_in_a_hostile_folder(
    bare: Window, repository: Hostile, tmp_path: Path
) -> None:
    """A button in the notification creates an environment and installs the server. The document is
    then counted.
    """
    bare.show("a.md")
    wait_for(lambda: bare.messages() != [], "the message")
    (message,) = bare.messages()
    assert "was not found" in message
    assert "login shell" in message
    bare.screenshot("not-found")
    assert repository.fired() == set()
    bare.press_button("Install")
    wait_for(lambda: bare.messages() != [message], "the installation message")
    wait_for(lambda: (bare.status() or "").startswith(COUNT), bare.messages, INSTALL_SECONDS)
    pid = bare.server_pid()
    program = program_of(pid)
    assert program.is_relative_to(tmp_path / "user/User/globalStorage")
    check_versions(program.parent / "python")
    trace = Trace(tmp_path / "trace")
    trace.wrap(program)
    bare.host("await vscode.commands.executeCommand('tokenSidecar.restart')")
    wait_for(lambda: bare.server_pid() not in (None, pid), "the server from the environment")
    bare.wait_status(COUNT)
    bare.show("CLAUDE.md", status=f"{truth(hostile.PROMPT * 2)} tokens")
    assert os.readlink(f"/proc/{bare.server_pid()}/cwd") == str(tmp_path / "home")
    assert repository.fired() == set()
    # if the path is long, pip writes a shell script that starts Python
    own = [str(program.with_name(name)) for name in ("token-sidecar.real", "python")]
    assert trace.programs() in (own, own[:1])
    assert trace.addresses() == set()


def program_of(pid: int | None) -> Path:
    """Return the console script that a process runs."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return Path(next(each for each in command if each.endswith("token-sidecar")))


def check_versions(python: Path) -> None:
    """Check that the installed versions match the hashed requirements."""
    ask = [str(python), "-I", "-c", INSTALLED]
    installed = json.loads(subprocess.run(ask, capture_output=True, check=True).stdout)
    lines = (EXTENSION / "requirements.txt").read_text().splitlines()
    pinned = dict(line.split()[0].split("==") for line in lines if "==" in line)
    assert {"token-sidecar", "tiktoken", "pygls"} < set(installed)
    for name, version in installed.items():
        if name not in ("pip", "setuptools", "token-sidecar"):
            assert pinned[name] == version


PAGE = tutorials.read("vscode")
RUN = """
    await page.keyboard.press("F1");
    await page.keyboard.type(args[0]);
    await page.locator(".quick-input-list-row", { hasText: args[0] }).first().click();
"""
FIXES = """
    const { uri } = vscode.window.activeTextEditor.document;
    const [found] = vscode.languages.getDiagnostics(uri);
    if (!found) return [];
    const ask = "vscode.executeCodeActionProvider";
    return (await vscode.commands.executeCommand(ask, uri, found.range)).map(({ title }) => title);
"""


def test_the_installation_names_the_extension_that_is_built() -> None:
    assert build_vsix().name == promised(PAGE, r"code --install-extension (\S+)")


def test_the_tutorial_works(window: Window, project_file: Path) -> None:
    name = promised(PAGE, r"create the file `(.*?)`")
    window.show(name, "")
    window.focus()
    window.page("await page.keyboard.type(args[0], {delay: 5})", sentence(PAGE))
    counted = window.wait_status(promised(PAGE, "The status bar shows `(.*?)`"))
    window.page("await page.keyboard.press('Control+Shift+ArrowLeft')")
    wait_for(lambda: "selected" in (window.status() or ""), "the count of the selection")
    window.page("await page.keyboard.press('End')")
    wait_for(lambda: window.status() == counted, "the selection to disappear")

    window.page(RUN, promised(PAGE, r"Run \*\*(Token Sidecar: Select .*?)\*\*"))
    window.page("await page.locator('.quick-input-widget input:focus').waitFor()")
    window.page("await page.keyboard.type(args[0])", promised(PAGE, "and choose `(.*?)`"))
    window.page("await page.keyboard.press('Enter')")
    try:
        window.wait_status("~")
        window.page("await page.locator(`[id='${args[0]}'] a`).hover()", STATUS_ITEM)
        window.page("await page.locator('.monaco-hover', { hasText: '±' }).first().waitFor()")

        assert project_file.name == promised(PAGE, r"Create the file `(.*?)`")
        project_file.write_text(sample(PAGE, "toml"), "utf-8")
        window.page("await page.locator('.squiggly-warning').first().waitFor()")
        item = "page.locator(`[id='${args[0]}']`).getAttribute('class')"
        wait_for(
            lambda: "warning-kind" in window.page(f"return await {item}", STATUS_ITEM),
            "the yellow status item",
        )
        offered = "\n".join(window.host(FIXES))
        assert "Fit to budget: keep the start" in offered
        assert "Raise the budget" in offered
    finally:
        window.host("await vscode.commands.executeCommand('tokenSidecar.selectModel', 'gpt-5')")
