"""Tests `check --diff BASE` in a real git repository."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli.check import check


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.chdir(root)
    git("init", "-q", "-b", "main")
    Path("CLAUDE.md").write_text("one two three\n")
    Path("same.md").write_text("same\n")
    Path("gone.md").write_text("gone\n")
    Path("old näme.md").write_text("a b c d e f g h i j k l m n o p q r s t\n" * 3)
    Path("binary").write_bytes(b"\0\1")
    git("add", ".")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "base")
    return root


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(check, arguments, catch_exceptions=False)


def grown(*arguments: str) -> dict[str, Any]:
    report = json.loads(run("--json", *arguments).stdout)
    return {growth["path"]: growth for growth in report["growth"]}


def test_growth_of_changed_new_renamed_and_deleted_files(repository: Path) -> None:
    Path("CLAUDE.md").write_text("one two three\n" + "four five six\n" * 4)
    Path("new.md").write_text("new words\n")
    Path("gone.md").unlink()
    git("mv", "old näme.md", "moved.md")
    with Path("moved.md").open("a") as file:
        file.write("and more\n")
    found = grown("--diff", "main", ".")
    assert {path: (one["before"], one["tokens"], one["added"]) for path, one in found.items()} == {
        "CLAUDE.md": (4, 20, 16),
        "gone.md": (2, 0, -2),
        "moved.md": (63, 66, 3),
        "new.md": (0, 3, 3),
    }
    assert found["CLAUDE.md"]["message"] == "16 tokens more than in main (4 → 20)"
    lines = run("--diff", "main", ".").stdout.splitlines()
    assert "CLAUDE.md: information: 16 tokens more than in main (4 → 20) [budget-growth]" in lines
    assert run("--diff", "main", ".").exit_code == 0


def test_shrinking_and_one_token(repository: Path) -> None:
    Path("CLAUDE.md").write_text("one two\n")
    message = grown("--diff", "HEAD", "CLAUDE.md")["CLAUDE.md"]["message"]
    assert message == "1 token fewer than in HEAD (4 → 3)"


@pytest.mark.parametrize("path", [".", "gone.md", "./gone.md"])
def test_a_deleted_file_with_a_budget_shrinks_to_nothing(repository: Path, path: str) -> None:
    Path(".token-sidecar.toml").write_text('[[budget]]\nfiles = "gone.md"\nmax-tokens = 1\n')
    git("rm", "-q", "gone.md")
    result = run("--diff", "main", path)
    assert result.exit_code == 0
    *_, line, summary = result.stdout.splitlines()
    assert line == "gone.md: information: 2 tokens fewer than in main (2 → 0) [budget-growth]"
    assert "no budget matches" not in summary
    assert run(path).exit_code == (0 if path == "." else 1), "without --diff, it is unreadable"


def test_deleted_links_submodules_and_files_elsewhere_are_not_growth(repository: Path) -> None:
    Path("sub").mkdir()
    Path("sub/a.md").write_text("a b c\n")
    Path("sub/link.md").symlink_to("a.md")
    Path("sub/empty.md").touch()
    git("add", ".")
    git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub/module")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "sub")
    git("rm", "-rq", "sub")
    Path("gone.md").unlink()
    Path("sub").mkdir()
    assert set(grown("--diff", "HEAD", "sub")) == {"sub/a.md"}
    assert set(grown("--diff", "HEAD", "same.md")) == set()
    assert grown("--diff", "HEAD", str(repository / "sub")).keys() == {f"{repository}/sub/a.md"}


def test_a_file_that_git_no_longer_tracks_is_not_deleted(repository: Path) -> None:
    git("rm", "-q", "--cached", "gone.md")
    assert grown("--diff", "main", ".") == {}


def test_growth_in_a_subfolder_of_the_repository(repository: Path) -> None:
    sub = repository / "sub"
    sub.mkdir()
    (sub / ".token-sidecar.toml").write_text("")
    (sub / "a.md").write_text("a b c\n")
    assert set(grown("--diff", "main", "sub")) == {"sub/a.md"}, "an empty file has no growth"


def test_github_and_sarif_report_growth(repository: Path) -> None:
    Path("same.md").write_text("same same\n")
    assert run("--format", "github", "--diff", "main", ".").stdout == (
        "::notice file=same.md,title=Token budget::1 token more than in main (2 → 3)\n"
    )
    log = json.loads(run("--format", "sarif", "--diff", "main", ".").stdout)
    (result,) = log["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("budget-growth", "note")


@pytest.mark.parametrize("base", ["no-such-branch", "--output=planted", "main:CLAUDE.md", ""])
def test_unknown_revision_is_an_error(repository: Path, base: str) -> None:
    result = run(f"--diff={base}", ".")
    assert result.exit_code == 2
    assert "--diff" in result.stderr
    assert not Path("planted").exists()


def test_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "a.md").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert run("--diff", "main", ".").exit_code == 2


def shared(limit: int, **fields: str) -> None:
    more = "".join(f'{name} = "{value}"\n' for name, value in fields.items())
    Path(".token-sidecar.toml").write_text(
        f'[[budget]]\nfiles = ["*.md"]\nmax-tokens = {limit}\nsum = true\n{more}'
    )


def over(*arguments: str) -> tuple[str, str]:
    """Return the path and message of the only finding in a text report."""
    lines = run(*arguments).stdout.splitlines()
    (line,) = [line for line in lines if line.endswith("[budget-exceeded]")]
    path, _, _, _, message = line.split(":", 4)
    return path, message


def test_a_shared_budget_is_reported_at_the_file_that_grew_most(repository: Path) -> None:
    shared(60)
    assert over(".")[0] == "CLAUDE.md", "without --diff, at the first file"
    assert over("--diff", "main", ".")[0] == "CLAUDE.md", "no file has grown"
    Path("CLAUDE.md").write_text("one two\n")
    Path("same.md").write_text("same and a little\n")
    with Path("old näme.md").open("a") as file:
        file.write("and more\n")
    Path("new.md").write_text("one two three four five six seven\n")
    path, message = over("--diff", "main", ".")
    assert path == "new.md"
    assert "; since main, new.md grew by 8, old näme.md grew by 3, same.md grew by 3" in message
    assert message.endswith(" [budget-exceeded]")
    assert "CLAUDE.md grew" not in message
    (annotation,) = [
        line
        for line in run("--format", "github", "--diff", "main", ".").stdout.splitlines()
        if "together" in line
    ]
    assert annotation.startswith("::warning file=new.md,line=1,")
    log = json.loads(run("--format", "sarif", "--diff", "main", ".").stdout)
    (result,) = [one for one in log["runs"][0]["results"] if one["ruleId"] == "budget-exceeded"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "new.md"
    assert "new.md grew by 8" in result["message"]["text"]
    report = json.loads(run("--json", "--diff", "main", ".").stdout)
    findings = {file["path"]: file["findings"] for file in report["files"]}
    assert findings["new.md"][0]["added"] == 8
    assert {"path": "new.md", "tokens": 8, "added": 8} in findings["CLAUDE.md"][0]["members"]


def test_a_deletion_counts_for_a_shared_budget(repository: Path) -> None:
    shared(70)
    Path("same.md").write_text("same and\n")
    assert "72 tokens, 2 over" in over("--diff", "main", ".")[1]
    Path("CLAUDE.md").unlink()
    lines = run("--diff", "main", ".").stdout.splitlines()
    assert "CLAUDE.md: information: 4 tokens fewer than in main (4 → 0) [budget-growth]" in lines
    assert not [line for line in lines if "[budget-exceeded]" in line]


def test_growth_of_files_that_are_not_checked_is_named(repository: Path) -> None:
    shared(60, model="gpt-4")
    Path("same.md").write_text("same and a little\n")
    path, message = over("--diff", "main", "CLAUDE.md")
    assert path == "CLAUDE.md"
    assert "; since main, same.md grew by 3" in message
    assert set(grown("--diff", "main", "CLAUDE.md")) == set()
