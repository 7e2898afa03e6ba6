"""Tests budgets for everything that an agent sends with every call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli.check import check
from sidecar.config.load import load
from sidecar.counting.exact_engines import FastEngine
from sidecar.project import footprint
from sidecar.project.source_files import MAX_BYTES
from tests.cases import read_rows

LINE = "Use short sentences.\n"
TOKENS = 4
"""The tokens of the line without its line break, which Claude Code does not send at the end."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = tmp_path / "repository"
    (root / ".claude/rules").mkdir(parents=True)
    monkeypatch.chdir(root)
    git("init", "-q", "-b", "main")
    write_budget(100)
    Path("CLAUDE.md").write_text(LINE)
    Path(".claude/rules/a.md").write_text(LINE)
    Path(".claude/rules/b.md").write_text(f"---\npaths: [src/**]\n---\n{LINE}")
    git("add", "-A")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "x")
    return root


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def write_budget(limit: int, agent: str = "claude-code", more: str = "") -> None:
    Path(".token-sidecar.toml").write_text(
        f'[[budget]]\nalways-loaded = "{agent}"\nmax-tokens = {limit}\n{more}'
    )


def run(*arguments: str) -> Result:
    return CliRunner().invoke(check, arguments, catch_exceptions=False)


def findings(*arguments: str) -> list[tuple[str, dict[str, Any]]]:
    files = json.loads(run("--json", *arguments).stdout)["files"]
    return [(file["path"], found) for file in files for found in file["findings"]]


def test_what_is_always_sent_is_counted_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "CLAUDE.md").write_text("<!-- a comment that is not sent -->\nand words that are\n")
    counted: list[str] = []
    original = FastEngine.count_many

    def count_many(self: FastEngine, texts: Sequence[str]) -> list[int]:
        counted.extend(texts)
        return original(self, texts)

    monkeypatch.setattr(FastEngine, "count_many", count_many)
    before = run(".", "--diff", "HEAD").stdout
    assert "and words that are" in counted
    counted.clear()
    assert run(".", "--diff", "HEAD").stdout == before
    assert counted == []


def test_what_is_always_sent_shares_the_budget(root: Path) -> None:
    write_budget(7)
    result = run(".")
    assert result.exit_code == 1
    assert [line for line in result.stdout.splitlines() if "budget" in line] == [
        ".claude/rules/a.md:1:1: warning: Every Claude Code call: .claude/rules/a.md and 1 other "
        "file together are 8 tokens, 1 over their budget of 7 (gpt-5, exact): "
        ".claude/rules/a.md 4, CLAUDE.md 4 [budget-exceeded]",
        "4 files checked: 1 budget exceeded, 0 near",
    ]
    write_budget(8)
    assert run(".").exit_code == 0


def test_a_budget_that_is_kept_is_a_matching_budget(root: Path) -> None:
    assert "4 files checked: all within budget\n" in run(".").stdout


def test_the_finding_is_in_the_file_that_grew_most(root: Path) -> None:
    write_budget(7)
    Path("CLAUDE.md").write_text(LINE * 2)
    (line, *_) = run("--diff", "main", ".").stdout.splitlines()
    assert line.startswith("CLAUDE.md:1:1: warning: Every Claude Code call: CLAUDE.md and 1 other")
    assert "; since main, CLAUDE.md grew by" in line


def test_a_new_import_counts(root: Path) -> None:
    write_budget(20)
    Path("more.md").write_text(LINE * 9)
    assert run(".").exit_code == 0
    Path("CLAUDE.md").write_text("@more.md\n")
    assert {"more.md", "CLAUDE.md"} <= {path for path, _ in findings(".")}


def test_only_checked_files_get_findings_but_all_files_count(root: Path) -> None:
    write_budget(7)
    assert [path for path, _ in findings("CLAUDE.md")] == ["CLAUDE.md"]
    assert findings("CLAUDE.md")[0][1]["tokens"] == 8


def test_a_sent_file_gets_the_finding_if_none_was_checked(root: Path) -> None:
    Path("a.txt").write_text("words\n")
    write_budget(7)
    result = run("a.txt")
    assert result.exit_code == 1
    (line, summary) = result.stdout.splitlines()
    assert line.startswith("CLAUDE.md:1:1: warning: Every Claude Code call: CLAUDE.md and 1 other")
    assert summary == "2 files checked: 1 budget exceeded, 0 near"
    Path(".claude/rules/a.md").write_text(LINE * 3)
    assert run("--diff", "main", "a.txt").stdout.startswith(".claude/rules/a.md:1:1: error: ")
    write_budget(99)
    assert run("a.txt").stdout == "1 file checked: all within budget\n"


@pytest.mark.parametrize("argument", [".", "a.txt"])
def test_a_budget_is_not_passed_because_all_sent_files_are_above(
    root: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    """Both budgets have one file each, which is above the folder with the configuration."""
    Path("AGENTS.md").write_text(LINE)
    inner = root / "pkg"
    inner.mkdir()
    monkeypatch.chdir(inner)
    (inner / "a.txt").write_text("words\n")
    write_budget(3, "codex", '[[budget]]\nalways-loaded = "opencode"\nmax-tokens = 3\n')
    result = run(argument)
    assert result.exit_code == 1
    first, second, _ = result.stdout.splitlines()
    assert first.startswith("../AGENTS.md:1:1: warning: Every Codex call: ../AGENTS.md is 4 ")
    assert second.startswith("../AGENTS.md:1:1: warning: Every opencode call: ../AGENTS.md is ")
    assert "file=AGENTS.md,line=1" in run("--format", "github", argument).stdout
    located = json.loads(run("--format", "sarif", argument).stdout)["runs"][0]["results"][0]
    place = located["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "AGENTS.md"}


@pytest.mark.parametrize("name", ["CLAUDE.md", ".claude/rules/new.md"])
def test_standard_input_counts_as_the_text_of_its_file(root: Path, name: str) -> None:
    write_budget(20)
    command = ["-", "--stdin-name", name]
    shown = CliRunner().invoke(check, command, input=LINE, catch_exceptions=False)
    assert shown.exit_code == 0
    assert "1 file checked: all within budget\n" in shown.stdout
    shown = CliRunner().invoke(check, command, input=LINE * 9, catch_exceptions=False)
    assert shown.exit_code == 1
    assert shown.stdout.startswith(f"{name}:1:1: error: Every Claude Code call: {name} and ")


def test_a_file_outside_of_a_sparse_checkout_is_counted_once(root: Path) -> None:
    write_budget(99, more='[[budget]]\nfiles = "docs/*"\nmax-tokens = 9\n')
    Path("docs").mkdir()
    Path("docs/a.md").write_text(LINE)
    git("add", "-A")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "y")
    git("sparse-checkout", "set", "src")
    assert "1 file with a budget is not in this sparse checkout" in run(".").stderr


@pytest.mark.parametrize("is_link", [False, True])
def test_a_budget_is_not_passed_because_a_sent_file_is_unread(root: Path, *, is_link: bool) -> None:
    Path("CLAUDE.md").unlink()
    outside = root.parent / "outside.md"
    outside.write_text("words\n")
    if is_link:
        Path("CLAUDE.md").symlink_to(outside)
    else:
        Path("CLAUDE.md").write_bytes(bytes(MAX_BYTES + 1))
    result = run(".")
    assert result.exit_code == 1
    reason = "it is outside the project" if is_link else "it is larger than 4 MB"
    assert f"CLAUDE.md: {reason}, so its budget was not checked" in result.stderr
    skipped = json.loads(run("--json", ".").stdout)["skipped"]
    assert {"path": "CLAUDE.md", "reason": reason, "budget": True} in skipped


def test_a_budget_is_not_passed_because_a_folder_leads_outside(root: Path) -> None:
    (root.parent / "rules").mkdir()
    shutil.rmtree(".claude/rules")
    Path(".claude/rules").symlink_to(root.parent / "rules")
    result = run(".")
    assert result.exit_code == 1
    assert ".claude/rules: it is outside the project, and is sent only after you" in result.stderr
    assert "so its budget was not checked" in result.stderr


def test_a_budget_is_not_passed_because_files_are_not_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_budget(1_000_000)
    assert run(".").exit_code == 0
    monkeypatch.setattr(footprint, "MAX_PARTS", 1)
    Path("CLAUDE.local.md").write_text(LINE)
    result = run(".")
    assert result.exit_code == 1
    assert "not looked at" in result.stderr


def test_the_users_files_and_ignored_files_do_not_count(root: Path) -> None:
    own = Path(os.environ["HOME"]) / ".claude"
    own.mkdir(parents=True, exist_ok=True)
    (own / "CLAUDE.md").write_text(LINE * 99)
    Path(".gitignore").write_text("CLAUDE.local.md\n")
    Path("CLAUDE.local.md").write_text(LINE * 99)
    (root.parent / "CLAUDE.md").write_text(LINE * 99)
    write_budget(8)
    assert run(".").exit_code == 0


def test_files_above_the_project_in_its_repository_count(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = root / "pkg"
    inner.mkdir()
    monkeypatch.chdir(inner)
    (inner / "CLAUDE.md").write_text(LINE)
    write_budget(11)
    (found,) = findings(".")
    assert found[0] == "CLAUDE.md"
    assert [member["path"] for member in found[1]["members"]] == [
        "../.claude/rules/a.md",
        "../CLAUDE.md",
        "CLAUDE.md",
    ]


def test_a_budget_can_name_its_model(root: Path) -> None:
    write_budget(1, more='model = "gpt-4"\n')
    assert {found["model"] for _, found in findings(".")} == {"gpt-4"}


def test_an_agent_that_sends_no_file_is_reported(root: Path) -> None:
    write_budget(1, "gemini-cli")
    result = run(".")
    assert result.exit_code == 0
    assert "budget[0]: the agent in `always-loaded` sends none of these files" in result.stderr
    assert "`files` matches no file" not in result.stderr


@pytest.mark.parametrize(("written", "problem"), read_rows("check", "always_loaded_problems"))
def test_invalid_budgets(tmp_path: Path, written: str, problem: str) -> None:
    (tmp_path / ".token-sidecar.toml").write_text(f"[[budget]]\n{written}\n")
    (found,) = load(tmp_path).problems
    assert found.severity == "error"
    assert problem in found.message
