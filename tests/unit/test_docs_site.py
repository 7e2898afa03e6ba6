"""Tests the documentation site as it is published."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    (tmp_path / "mkdocs.yml").write_text(config, "utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if f"- {page}\n" not in config} == set()
    program = Path(sys.executable).with_name("zensical")
    command = [str(program), "build", "--strict"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "site" / "how-to" / "mcp" / "index.html").is_file()
    assert "tokens" in (tmp_path / "site" / "search.json").read_text("utf-8")


def test_a_broken_link_fails(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Title\n\n[gone](#nowhere)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: test\nstrict: true\n")
    program = Path(sys.executable).with_name("zensical")
    command = [str(program), "build", "--strict"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode != 0
