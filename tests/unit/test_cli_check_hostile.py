"""Tests `check` on a hostile pull request, whose files must not suppress findings."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main

BUDGET = '[[budget]]\nfiles = "AGENTS.md"\nmax-tokens = 10\n'
LONG = "word " * 50


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = tmp_path / "project"
    write(root / ".token-sidecar.toml", BUDGET)
    monkeypatch.chdir(root)
    return root


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def check(*arguments: str | Path, cwd: Path = Path(), stdin: str = "") -> Result:
    with contextlib.chdir(cwd):
        return CliRunner().invoke(main, ["check", *map(str, arguments)], input=stdin)


def found(done: Result) -> dict[str, Any]:
    return {file["path"]: file for file in json.loads(done.stdout)["files"]}


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        (".token-sidecar.toml", ""),
        (".git/HEAD", "ref: refs/heads/main\n"),
        ("pyproject.toml", '# [tool.token-sidecar]\n[project]\nname = "x"\n'),
        ("pyproject.toml", "[tool.token-sidecar]\n"),
    ],
)
def test_root_marker_in_a_subfolder_does_not_hide_a_file(
    project: Path, marker: str, text: str
) -> None:
    write(project / "sub" / marker, text)
    write(project / "sub/AGENTS.md", LONG)
    assert check("sub/AGENTS.md").exit_code == 1
    assert check(project / "sub/AGENTS.md").exit_code == 1
    assert check("sub").exit_code == 1
    assert check("--stdin-name", "sub/AGENTS.md", "-", stdin=LONG).exit_code == 1
    absolute = project / "sub/AGENTS.md"
    assert check("--root", project, absolute, cwd=project.parent).exit_code == 1
    assert check("AGENTS.md", "--root", "..", cwd=project / "sub").exit_code == 1


def test_comment_in_pyproject_does_not_make_a_root(project: Path) -> None:
    write(project / "sub/pyproject.toml", '"x" = "[tool.token-sidecar]" # [tool.token-sidecar]\n')
    write(project / "sub/AGENTS.md", LONG)
    assert check(project / "sub/AGENTS.md", cwd=project.parent).exit_code == 1


def test_a_path_outside_of_the_root_is_wrong_use(project: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other/AGENTS.md", LONG)
    result = check("--root", project, other)
    assert result.exit_code == 2
    assert "is not inside" in result.stderr
    assert check("--root", tmp_path / "gone", ".").exit_code == 2


def test_given_configuration_replaces_that_of_the_checkout(project: Path, tmp_path: Path) -> None:
    trusted = write(tmp_path / "trusted.toml", BUDGET)
    write(project / ".token-sidecar.toml", "")
    write(project / "pyproject.toml", "[tool.token-sidecar]\nmodel = 'gpt-4'\n")
    write(project / "AGENTS.md", LONG)
    assert check(".").exit_code == 0
    result = check("--config", trusted, "--json", ".")
    assert result.exit_code == 1
    (finding,) = found(result)["AGENTS.md"]["findings"]
    assert (finding["budget"], finding["model"]) == (10, "gpt-5")
    elsewhere = check("--config", trusted, "--root", project, project, cwd=tmp_path)
    assert elsewhere.exit_code == 1
    assert check("--config", tmp_path / "gone.toml", ".").exit_code == 2


def test_a_pyproject_may_be_named(project: Path, tmp_path: Path) -> None:
    text = "[[tool.token-sidecar.budget]]\nfiles = '*.txt'\nmax-tokens = 1\n"
    trusted = write(tmp_path / "trusted/pyproject.toml", text)
    write(project / "x.txt", LONG)
    assert check("--config", trusted, ".").exit_code == 1


def test_a_named_configuration_has_no_more_rights(project: Path, tmp_path: Path) -> None:
    trusted = write(tmp_path / "trusted.toml", "[tokenize]\nuse-endpoint = true\n")
    assert "tokenize" in check("--config", trusted, ".").stderr


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-8-sig"])
def test_other_encodings_are_checked(project: Path, encoding: str) -> None:
    mark = "" if encoding in ("utf-16", "utf-32", "utf-8-sig") else "\ufeff"
    write(project / "AGENTS.md", (mark + LONG).encode(encoding))
    result = check("--json", "AGENTS.md")
    assert result.exit_code == 1
    plain = write(project / "AGENTS.md", LONG)
    assert found(result) == found(check("--json", plain.name))


def test_binary_file_with_a_budget_is_a_finding(project: Path) -> None:
    write(project / "AGENTS.md", b"\0" + LONG.encode())
    write(project / "picture.png", b"\0")
    line = "AGENTS.md: binary file, so its budget was not checked"
    for arguments in (["."], ["."], ["AGENTS.md"], ["--no-cache", "."]):
        done = check(*arguments)
        assert (done.exit_code, line in done.stderr) == (1, True)
    assert "picture.png: binary file, skipped" in check(".").stderr
    assert check("picture.png").exit_code == 0
    skipped = json.loads(check("--json", "AGENTS.md").stdout)["skipped"]
    assert skipped == [{"path": "AGENTS.md", "reason": "binary file", "budget": True}]
    assert check("--format", "github", ".").stdout.startswith("::error file=AGENTS.md,title=")
    (result,) = json.loads(check("--format", "sarif", ".").stdout)["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("budget-unchecked", "error")
    done = check("--stdin-name", "AGENTS.md", "-", stdin="\0")
    assert done.exit_code == 1


def test_binary_member_of_a_group_is_a_finding(project: Path) -> None:
    text = '[[budget]]\nfiles = "*.md"\nmax-tokens = 100\nsum = true\n'
    write(project / ".token-sidecar.toml", text)
    write(project / "a.md", "word")
    write(project / "b.md", b"\0")
    result = check("a.md")
    assert result.exit_code == 1
    assert "b.md: binary file, so its budget was not checked" in result.stderr


def test_a_link_inside_the_root_is_checked(project: Path) -> None:
    write(project / "docs/agents.txt", LONG)
    (project / "AGENTS.md").symlink_to("docs/agents.txt")
    (project / "other.txt").symlink_to("docs/agents.txt")
    for arguments in (["."], ["."], ["AGENTS.md"], ["--no-cache", "."]):
        result = check("--json", *arguments)
        assert result.exit_code == 1
        assert [len(found(result)["AGENTS.md"]["findings"]), "other.txt" in found(result)] == [
            1,
            False,
        ]


def test_a_link_out_of_the_root_is_named_and_not_read(project: Path, tmp_path: Path) -> None:
    write(tmp_path / "secret", "a secret " * 50)
    (project / "AGENTS.md").symlink_to("../secret")
    (project / "no-budget.txt").symlink_to("../secret")
    line = "AGENTS.md: not followed: the link points outside the project, so its budget was not checked"
    for arguments in (["."], ["AGENTS.md"], ["."]):
        result = check(*arguments)
        assert (result.exit_code, line in result.stderr) == (1, True)
        assert "0 files checked" in result.stdout or "1 file checked" in result.stdout
    assert "no-budget.txt" not in check(".").stderr
    assert check("no-budget.txt").exit_code == 0


def test_linked_folder_with_budgets_is_reported(project: Path, tmp_path: Path) -> None:
    text = '[[budget]]\nfiles = "prompts/**/*.md"\nmax-tokens = 10\n'
    write(project / ".token-sidecar.toml", text)
    write(tmp_path / "outside/a.md", LONG)
    write(project / "inside/a.md", LONG)
    (project / "else").symlink_to("inside")
    assert check(".").exit_code == 0
    for target in ("inside", "../outside"):
        (project / "prompts").symlink_to(target)
        result = check(".")
        assert result.exit_code == 1
        assert "prompts: not followed" in result.stderr
        (project / "prompts").unlink()


def test_a_link_to_another_member_counts_once_in_a_sum(project: Path) -> None:
    text = '[[budget]]\nfiles = ["AGENTS.md", "CLAUDE.md"]\nmax-tokens = 60\nsum = true\n'
    write(project / ".token-sidecar.toml", text)
    write(project / "AGENTS.md", LONG)
    (project / "CLAUDE.md").symlink_to("AGENTS.md")
    assert check(".").exit_code == 0
    (project / "CLAUDE.md").unlink()
    write(project / "CLAUDE.md", LONG)
    assert check(".").exit_code == 1


def test_names_with_newlines_do_not_confuse_git(project: Path) -> None:
    git("init", "-q")
    names = ["a\nb.txt", "c\n\nd.txt", "e.txt", "f\tg.txt", "ä.txt"]
    for index, name in enumerate(names):
        write(project / name, "one " * (index + 1))
    git("add", ".")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "base")
    for name in names:
        write(project / name, "one " * 20)
    growth = json.loads(check("--json", "--diff", "HEAD", ".").stdout)["growth"]
    before = {one["path"]: one["before"] for one in growth}
    assert before == {
        name: found(check("--json", "--stdin-name", "x", "-", stdin="one " * (index + 1)))["x"][
            "tokens"
        ]
        for index, name in enumerate(names)
    }


def test_a_named_fifo_with_a_budget_is_a_finding(project: Path) -> None:
    git("init", "-q")
    write(project / "AGENTS.md", LONG)
    git("add", "AGENTS.md")
    (project / "AGENTS.md").unlink()
    os.mkfifo(project / "AGENTS.md")
    result = check("AGENTS.md")
    assert result.exit_code == 1
    assert "AGENTS.md: not a regular file, so its budget was not checked" in result.stderr


def test_fifo_as_gitignore_does_not_block(project: Path) -> None:
    """git must not open the FIFO, because it would wait for data."""
    git("init", "-q")
    write(project / "sub/AGENTS.md", LONG)
    git("add", "sub/AGENTS.md")
    write(project / ".gitignore", "sub\n")
    os.mkfifo(project / "sub/.gitignore")
    result = check("--json", ".")
    assert "sub/AGENTS.md" in found(result)
    assert result.exit_code == 1
