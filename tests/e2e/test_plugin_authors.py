"""Tests that the example clients in docs/how-to/plugin-authors.md run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import editors_setup
from tests.e2e.neovim.harness import NVIM

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/plugin-authors.md"
SAMPLES = dict(re.findall(r"```(lua|ts|python)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
MOST_LINES = 30
WATCH_LUA = """
local printed, write = false, print
function print(...) printed = true; write(...) end
"""
WAIT_FOR_LUA = """
vim.wait(30000, function() return printed and vim.g.chat_context ~= nil end)
print('\\n' .. vim.g.chat_context)
vim.cmd.qall({ bang = true })
"""


def command(language: str, folder: Path) -> list[str]:
    if language == "python":
        (folder / "client.py").write_text(SAMPLES["python"], "utf-8")
        return [sys.executable, "client.py"]
    if language == "ts":
        (folder / "client.mts").write_text(SAMPLES["ts"], "utf-8")
        node = editors_setup.ensure_vscode().node
        return [str(node), "--disable-warning=ExperimentalWarning", "client.mts"]
    (folder / "client.lua").write_text(WATCH_LUA + SAMPLES["lua"] + WAIT_FOR_LUA, "utf-8")
    return [str(NVIM), "--headless", "--clean", "-n", "-l", "client.lua"]


@pytest.mark.parametrize("language", ["lua", "ts", "python"])
def test_a_client_of_the_page_reports_a_conversation(language: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        command(language, tmp_path),
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert "1209 of 272000 tokens" in result.stdout + result.stderr
    assert language != "lua" or "0 %" in result.stdout + result.stderr, "the status is shown too"


@pytest.mark.parametrize("language", ["lua", "ts", "python"])
def test_a_client_is_short(language: str) -> None:
    code = [line for line in SAMPLES[language].splitlines() if line.strip()]
    assert len(code) <= MOST_LINES, language
