"""Tests the plugin as installed by plugin managers, which clone the whole repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.neovim.harness import NVIM, ROOT, environment

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
