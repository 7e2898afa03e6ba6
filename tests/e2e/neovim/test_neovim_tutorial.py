"""Tests every step of docs/tutorial/neovim.md, using the commands and files in the tutorial."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.neovim.harness import ROOT, SERVER, Editor, wait_for

if TYPE_CHECKING:
    import pytest

TUTORIALS = ROOT / "docs/tutorial"
PAGE = (TUTORIALS / "neovim.md").read_text("utf-8")


def sample(language: str, page: str = PAGE) -> str:
    found = re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_tutorial_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(os.environ["HOME"])
    (home / "src").mkdir()
    (home / "src/token-sidecar").symlink_to(ROOT)
    editor = Editor(tmp_path, lua=sample("lua"))
    try:
        editor.edit("prompt.md")
        editor.keys("i" + sample("text").strip() + "<Esc>")
        shown = promised("The status line shows `(.*?)`")
        line = "return vim.api.nvim_eval_statusline(vim.o.statusline, {}).str"
        wait_for(lambda: shown in editor.lua(line), lambda: f"{shown}; {editor.describe()}")
        editor.command(promised("Type `:(.*?)`"))
        wait_for(lambda: "~" in editor.lua(line), editor.describe)
        editor.command(promised("`:(TokenSidecar count)`"))
        editor.wait_message("±")
        editor.command("write")
        editor.write(".token-sidecar.toml", sample("toml"))
        wait_for(lambda: editor.lua("return #vim.diagnostic.get(0)") == 1, editor.describe)
    finally:
        editor.close()


def promised(pattern: str) -> str:
    found = re.search(pattern, PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_all_tutorials_count_the_same_sentence(tmp_path: Path) -> None:
    for path in TUTORIALS.glob("*.md"):
        page = path.read_text("utf-8")
        done = subprocess.run(
            [str(SERVER), "count", "-"], input=sample("text", page).strip().encode(),
            capture_output=True, check=True,
        )  # fmt: skip
        assert f"shows `{done.stdout.split()[0].decode()} tokens`" in page
        (tmp_path / ".token-sidecar.toml").write_text(sample("toml", page), "utf-8")
        file = re.findall(r'files = "(.*?)"', page)[0]
        assert f"`{file}`" in page
        (tmp_path / file).write_text(sample("text", page), "utf-8")
        checked = subprocess.run([str(SERVER), "check", "."], cwd=tmp_path, capture_output=True)
        assert checked.returncode == 1, checked.stderr
