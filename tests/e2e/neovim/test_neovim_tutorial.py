"""Tests every step of docs/tutorial/neovim.md, using the commands and samples in the tutorial."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e import tutorials
from tests.e2e.neovim.harness import ROOT, SERVER, Editor, wait_for
from tests.e2e.tutorials import promised, sample, sentence

PAGE = tutorials.read("neovim")
PAGES = sorted(path.stem for path in tutorials.FOLDER.glob("*.md"))


def test_the_tutorial_works(tmp_path: Path) -> None:
    home = Path(os.environ["HOME"])
    (home / "src").mkdir()
    (home / "src/token-sidecar").symlink_to(ROOT)
    editor = Editor(tmp_path, lua=sample(PAGE, "lua"))
    try:
        editor.edit("prompt.md")
        editor.keys("i" + sentence(PAGE) + "<Esc>")
        shown = promised(PAGE, "The status line shows `(.*?)`")
        line = "return vim.api.nvim_eval_statusline(vim.o.statusline, {}).str"
        wait_for(lambda: shown in editor.lua(line), lambda: f"{shown}; {editor.describe()}")
        editor.command(promised(PAGE, "Type `:(.*?)`"))
        wait_for(lambda: "~" in editor.lua(line), editor.describe)
        editor.command(promised(PAGE, "`:(TokenSidecar count)`"))
        editor.wait_message("±")
        editor.command("write")
        editor.write(".token-sidecar.toml", sample(PAGE, "toml"))
        wait_for(lambda: editor.lua("return #vim.diagnostic.get(0)") == 1, editor.describe)
        shown = promised(PAGE, r"the status line shows `(~.*?)`")
        wait_for(lambda: shown in editor.lua(line), lambda: f"{shown}; {editor.describe()}")
    finally:
        editor.close()


@pytest.mark.parametrize("editor", PAGES)
def test_the_tutorials_figures_are_those_of_the_command_line(editor: str, tmp_path: Path) -> None:
    page = tutorials.read(editor)
    result = subprocess.run(
        [str(SERVER), "count", "-"], input=sentence(page).encode(), capture_output=True, check=True
    )
    assert f"shows `{result.stdout.split()[0].decode()} tokens`" in page
    (tmp_path / ".token-sidecar.toml").write_text(sample(page, "toml"), "utf-8")
    file = re.findall(r'files = "(.*?)"', page)[0]
    assert f"`{file}`" in page
    (tmp_path / file).write_text(sample(page, "text"), "utf-8")
    checked = subprocess.run([str(SERVER), "check", "."], cwd=tmp_path, capture_output=True)
    assert checked.returncode == 1, checked.stderr
