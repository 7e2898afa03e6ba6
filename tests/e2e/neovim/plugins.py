"""The chat plugins that the tests run, at pinned commits."""

from __future__ import annotations

import functools
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.e2e.neovim.harness import ROOT

COMMITS = {
    "codecompanion.nvim": ("olimorris", "f1afd02537c68b3dd6e0d41d4adda5ef538e0473"),
    "CopilotChat.nvim": ("CopilotC-Nvim", "f0c2a23ab79dc295f5e0eef0d8b587a39020c852"),
    "avante.nvim": ("yetone", "a9334315e05ac750985c7d0b391e360e36e0278e"),
    "plenary.nvim": ("nvim-lua", "b9fd5226c2f76c951fc8ed5923d85e4de065e509"),
    "nui.nvim": ("MunifTanjim", "de740991c12411b663994b2860f1a4fd0937c130"),
    "lualine.nvim": ("nvim-lualine", "221ce6b2d999187044529f49da6554a92f740a96"),
}
CLONE_SECONDS = 60
PLENARY_READS_ALL = """
-- When a process exits, plenary ignores the output that it has not read yet. Sometimes this is a whole reply.
local Job = require('plenary.job')
Job._pipes_are_closed = function(job)
  for _, pipe in ipairs({ job.stdout, job.stderr }) do
    if pipe:is_active() and not pipe:is_closing() then return false end
  end
  return true
end"""

_kept: list[tempfile.TemporaryDirectory[str]] = []


def _archives() -> Path | None:
    """Return the folder with the plugins' archives, or None."""
    named = os.environ.get("TOKEN_SIDECAR_PLUGINS")
    folder = Path(named) if named else ROOT.parent / "shared/plugins"
    return folder if list(folder.glob("*.tar.gz")) else None


def _clone(name: str, into: Path) -> None:
    owner, commit = COMMITS[name]
    target = str(into / name)
    for arguments in (
        ["init", "-q", target],
        ["-C", target, "fetch", "-q", "--depth", "1", f"https://github.com/{owner}/{name}", commit],
        ["-C", target, "checkout", "-q", "FETCH_HEAD"],
    ):
        subprocess.run(
            ["git", *arguments],
            check=True,
            capture_output=True,
            timeout=CLONE_SECONDS,
            env=os.environ | {"GIT_TERMINAL_PROMPT": "0"},
        )


@functools.cache
def folder() -> Path | None:
    """Return a folder with a subfolder for each plugin, or None if they are not available."""
    kept = tempfile.TemporaryDirectory(prefix="plugins-")
    _kept.append(kept)
    into, archives = Path(kept.name), _archives()
    try:
        for name, (_, commit) in COMMITS.items():
            if archives is None:
                _clone(name, into)
                continue
            with tarfile.open(archives / f"{name}-{commit[:7]}.tar.gz") as archive:
                archive.extractall(into, filter="data")
    except (OSError, subprocess.SubprocessError, tarfile.TarError):
        return None
    return into


def on_path(*names: str) -> str:
    """Return Lua that adds these plugins to the runtimepath."""
    at = folder() or Path("no-plugins")
    paths = [f"vim.opt.runtimepath:append('{at / name}')" for name in names]
    return "\n".join([*paths, PLENARY_READS_ALL] if "plenary.nvim" in names else paths)
