"""Tests the plugin as plugin managers install it, and every step of docs/tutorial/neovim.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e import tutorials
from tests.e2e.neovim.harness import NVIM, ROOT, SERVER, Editor, environment, wait_for
from tests.e2e.tutorials import promised, sample, sentence

SHOW_STATUS = """
vim.o.swapfile = false
vim.api.nvim_create_autocmd('VimEnter', { callback = function()
  vim.schedule(function()
    vim.wait(30000, function() return require('token_sidecar').statusline() ~= '' end)
    io.stdout:write(require('token_sidecar').statusline(), '\\n')
    io.stdout:write(tostring(vim.lsp.config.token_sidecar.cmd ~= nil), '\\n')
    vim.cmd.qall({ bang = true })
  end)
end })
"""
WAYS = {
    # Neovim's built-in packages.
    "start": ("pack/plugins/start", ""),
    # In Neovim 0.12, vim.pack.add() clones into `opt` and calls `packadd`.
    "packadd": ("pack/core/opt", "vim.cmd.packadd('token-sidecar')"),
    # lazy.nvim adds the folder to 'runtimepath' and sources its `plugin` folder.
    "runtimepath": (
        "lazy",
        "local folder = vim.fn.stdpath('data') .. '/site/lazy/token-sidecar'\n"
        "vim.opt.runtimepath:prepend(folder)\n"
        "vim.cmd.source(folder .. '/plugin/token_sidecar.lua')",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_clone_of_the_repository_is_a_plugin(way: str, tmp_path: Path) -> None:
    folder, load = WAYS[way]
    env = environment(tmp_path)
    clone = Path(env["XDG_DATA_HOME"]) / "nvim/site" / folder / "token-sidecar"
    subprocess.run(["git", "clone", "-q", str(repository(tmp_path)), str(clone)], check=True)
    init = Path(env["XDG_CONFIG_HOME"]) / "nvim/init.lua"
    init.parent.mkdir(parents=True)
    init.write_text(load + SHOW_STATUS, "utf-8")
    file = tmp_path / "prompt.md"
    file.write_text("hello world", "utf-8")
    result = subprocess.run(
        [str(NVIM), "--headless", str(file)],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.stdout.splitlines() == ["2 tokens", "true"], result.stderr


def repository(folder: Path) -> Path:
    """Return a git repository with a copy of the files that Neovim reads."""
    made = folder / "repository"
    shutil.copytree(ROOT / "plugin", made / "plugin")
    shutil.copytree(ROOT / "editors/neovim", made / "editors/neovim")
    git = ["git", "-C", str(made), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "Add the plugin"]):
        subprocess.run([*git, *arguments], check=True)
    return made


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
