"""Tests that nothing in git, its environment, a name or a link lets `check` pass silently."""

# token-budget: ignore (sample budgets)

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.project import git as git_module
from sidecar.project.git import LOCAL_VARIABLES
from tests.cases import read_cases

BUDGET = '[[budget]]\nfiles = "*.md"\nmax-tokens = 5\n'
LONG = "word " * 50
FOUND = "[budget-exceeded]"
REFUSED = "git cannot list its files ("


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a repository as the current folder. The tracked `AGENTS.md` exceeds its budget."""
    for name in LOCAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = tmp_path / "root"
    write(root / ".token-sidecar.toml", BUDGET)
    write(root / "sub/AGENTS.md", LONG)
    git(root, "init", "-q")
    commit(root)
    monkeypatch.chdir(root)
    return root


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def git(folder: Path, *arguments: str, stdin: str = "") -> str:
    names = ["-c", "user.name=n", "-c", "user.email=e", "-c", "protocol.file.allow=always"]
    command = ["git", "-C", str(folder), *names, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, input=stdin).stdout


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "commit", "--allow-empty")


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments])


def checked(*arguments: str) -> list[str]:
    return sorted(file["path"] for file in json.loads(check("--json", *arguments).stdout)["files"])


def other_repository(root: Path) -> Path:
    other = root.parent / "other"
    write(other / "a.txt", "a")
    git(root.parent, "init", "-q", "other")
    commit(other)
    return other


class Setup(msgspec.Struct):
    """Shell commands that try to hide a file, and a part of what `check` still prints."""

    run: str
    text: str = FOUND


@pytest.mark.parametrize("setup", read_cases("git_setups", Setup))
def test_the_check_does_not_pass_silently(root: Path, setup: Setup) -> None:
    subprocess.run(
        ["sh", "-euc", setup.run], cwd=root, check=True, env={**os.environ, "LONG": LONG}
    )
    for path in (".", "sub"):
        result = check(path)
        assert setup.text in result.output, path
        assert result.exit_code == 1, path


EXCLUDED = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.excludesFile"}
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {"GIT_DIR": "../other/.git"},
    {"GIT_DIR": "../other/.git", "GIT_WORK_TREE": "../other"},
    {"GIT_DIR": ".git"},
    {"GIT_INDEX_FILE": "../other/.git/index"},
    {"GIT_COMMON_DIR": "../other/.git"},
    {**EXCLUDED, "GIT_CONFIG_VALUE_0": "../all"},
    {"GIT_CONFIG_PARAMETERS": "'core.bare=true'"},
    {"GIT_NAMESPACE": "x"},
    {"GIT_LITERAL_PATHSPECS": "1"},
    {"GIT_ICASE_PATHSPECS": "1"},
    {"GIT_TRACE": "1"},
    {"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"},
    {"GIT_CEILING_DIRECTORIES": "../root"},
)
"""Variables of git. Values that begin with a dot are paths from the repository."""


@pytest.mark.parametrize("variables", ENVIRONMENTS, ids=str)
def test_the_environment_does_not_hide_files(
    root: Path, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other_repository(root)
    write(root.parent / "all", "*\n")
    write(root / ".gitignore", "AGENTS.md\n")  # so that only git can find the tracked file
    write(root / "sub/untracked.md", LONG)
    for name, value in variables.items():
        monkeypatch.setenv(name, os.path.normpath(root / value) if value[0] == "." else value)
    for path, lead in ((".", ""), ("sub", "sub/")):
        result = check(path)
        assert result.exit_code == 1
        assert "sub/AGENTS.md:1" in result.stdout, lead
        assert "sub/untracked.md:1" in result.stdout
    monkeypatch.chdir(root / "sub")
    assert "AGENTS.md:1" in check(".").stdout


def test_all_variables_of_one_repository_are_removed(root: Path) -> None:
    assert set(git(root, "rev-parse", "--local-env-vars").split()) <= LOCAL_VARIABLES


def test_a_commit_hook_of_a_linked_worktree_is_checked(root: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(root, "worktree", "add", "-q", str(linked))
    write(linked / ".gitignore", "*.md\n")
    program = f"'{sys.executable}' -P -m sidecar check"
    hook = f"#!/bin/sh\nenv | grep ^GIT_DIR= >&2\ncd sub && exec {program} .\n"
    write(root / ".git/hooks/pre-commit", hook).chmod(0o755)
    command = ["git", "-C", str(linked), "-c", "user.name=n", "-c", "user.email=e"]
    done = subprocess.run(
        [*command, "commit", "-qm", "x", "--allow-empty"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "GIT_DIR=" in done.stderr
    assert done.returncode == 1
    assert "AGENTS.md is 51 tokens" in done.stdout + done.stderr


def refuse(root: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> str:
    """Make git refuse to work. Return the reason or remedy that it gives."""
    if way == "owner":
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        return "git config --global --add safe.directory"
    if way == "missing":
        monkeypatch.setenv("PATH", str(root))
        return "install git"
    write(root / ".git/index", b"junk")
    return "index file"


@pytest.mark.parametrize("way", ["owner", "missing", "index"])
def test_every_format_shows_why_git_refuses(
    root: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = refuse(root, monkeypatch, way)
    assert reason in check(".").stderr
    (skipped,) = json.loads(check("--json", ".").stdout)["skipped"]
    assert reason in skipped["reason"]
    annotation = check("--format", "github", ".").stdout
    assert annotation.startswith("::error title=Token budget::")
    assert reason in annotation
    (result,) = json.loads(check("--format", "sarif", ".").stdout)["runs"][0]["results"]
    assert reason in result["message"]["text"]
    for form in ("text", "json", "github", "sarif"):
        assert check("--format", form, ".").exit_code == 1
        assert check("--format", form, "sub/AGENTS.md").exit_code == 1
    write(root / ".token-sidecar.toml", "")
    assert check(".").exit_code == 1


@pytest.mark.parametrize("way", ["owner", "missing", "index"])
@pytest.mark.parametrize("verb", ["count", "map"])
def test_other_commands_show_why_git_refuses(
    root: Path, way: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = refuse(root, monkeypatch, way)
    result = CliRunner().invoke(main, [verb, "."])
    assert result.exit_code == 2
    assert reason in result.stderr


def test_a_comparison_shows_the_reason_on_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = refuse(root, monkeypatch, "owner")
    result = check("--diff", "HEAD", ".")
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if reason in line]
    assert "\\n" not in line
    assert "\\t" not in line


def test_git_that_never_answers_is_stopped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_module, "SLOW_SECONDS", 0.1)
    monkeypatch.setattr(git_module, "TIMEOUT_SECONDS", 0.3)
    deep = root / "/".join("a" * 40)
    write(deep / "b.md", LONG)
    write(root / ".gitignore", "**/" * 20 + "b\n")
    result = check(".")
    assert (result.exit_code, "git did not answer" in result.stderr) == (1, True)


def test_a_sum_is_not_passed_without_its_other_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / ".token-sidecar.toml", BUDGET.replace("= 5", "= 60") + "sum = true\n")
    write(root / "b.md", LONG)
    assert check("b.md").exit_code == 1
    (root / "sub/AGENTS.md").unlink()
    assert check("b.md").exit_code == 0
    refuse(root, monkeypatch, "owner")
    result = check("b.md")
    assert (result.exit_code, REFUSED in result.stderr) == (1, True)


def embed(root: Path, kind: str) -> None:
    """Put another repository with a long file into the folder `inner`."""
    other = other_repository(root)
    write(other / "b.md", LONG)
    commit(other)
    if kind == "clone":
        git(root, "clone", "-q", str(other), "inner")
    elif kind == "submodule":
        git(root, "submodule", "--quiet", "add", str(other), "inner")
    elif kind == "submodule folder":
        git(root, "submodule", "--quiet", "add", str(other), "inner")
        os.rename(root / "inner/.git", root / "dotgit")
        (root / "inner/.git").symlink_to("../dotgit")
    else:
        git(root, "worktree", "add", "-q", "-b", "more", "inner")
        write(root / "inner/b.md", LONG)
    if kind == "excluded worktree":
        write(root / ".git/info/exclude", "inner\n")


@pytest.mark.parametrize("kind", ["clone", "submodule", "worktree", "excluded worktree"])
def test_files_of_other_repositories_do_not_count(root: Path, kind: str) -> None:
    before = checked(".")
    embed(root, kind)
    assert set(checked(".")) - {".gitmodules"} == set(before)
    # A folder that is named is checked.
    assert "inner/b.md" in checked("inner")


def test_repositories_below_a_root_without_git_are_listed_by_git(
    tmp_path: Path, root: Path
) -> None:
    write(root / ".git/info/exclude", "private.md\n")
    write(root / "private.md", LONG)
    write(tmp_path / "notes/.gitignore", "*.log\n")
    write(tmp_path / "notes/a.md", "a")
    write(tmp_path / "notes/a.log", "a")
    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "-q", "--bare", str(bare))
    found = checked(str(tmp_path))
    assert str(root / "sub/AGENTS.md") in found
    assert str(root / "private.md") not in found
    assert str(tmp_path / "notes/a.md") in found
    assert str(tmp_path / "notes/a.log") not in found
    assert str(bare / "HEAD") in checked(str(bare))


def test_an_ignored_folder_that_is_named_is_checked(root: Path) -> None:
    write(root / ".git/info/exclude", "build/\n")
    write(root / "build/inner/a.md", LONG)
    write(root / "build/inner/tracked.md", LONG)
    write(root / "build/inner/.gitignore", "tracked.md\n")
    git(root, "add", "-f", "build/inner/tracked.md")
    assert "build/inner/a.md" not in checked(".")
    assert "build/inner/tracked.md" in checked(".")
    for path in ("build", "build/inner"):
        files = ["build/inner/.gitignore", "build/inner/a.md", "build/inner/tracked.md"]
        assert checked(path) == files


def test_a_sparse_checkout_names_what_it_leaves_out(root: Path) -> None:
    write(root / "other/a.txt", "a")
    commit(root)
    git(root, "sparse-checkout", "set", "other")
    assert not (root / "sub").exists()
    result = check(".")
    assert result.exit_code == 0
    assert "1 file with a budget is not in this sparse checkout and not checked" in result.stderr
    git(root, "sparse-checkout", "disable")
    assert check(".").exit_code == 1


def test_a_deleted_file_is_not_checked(root: Path) -> None:
    (root / "sub/AGENTS.md").unlink()
    assert checked(".") == [".token-sidecar.toml"]


@pytest.mark.parametrize("folder", [".", "sub", "sub/deep"])
@pytest.mark.parametrize("form", ["github", "sarif"])
def test_paths_are_relative_to_the_repository(
    root: Path, folder: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "sub/deep/ä b.md", LONG)
    write(root / "sub/deep/.token-sidecar.toml", f"{BUDGET}unknown = 1\n")
    git(root, "add", "-A")
    monkeypatch.chdir(root / folder)
    written = check("--format", form, str(root / "sub/deep")).stdout
    if form == "github":
        assert "::file" not in written
        assert "file=sub/deep/ä b.md,line=1,title" in written
        assert "file=sub/deep/.token-sidecar.toml,line=4," in written
    else:
        results = json.loads(written)["runs"][0]["results"]
        (location,) = results[0]["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == "sub/deep/%C3%A4%20b.md"


def test_a_folder_that_is_named_has_its_own_configuration(root: Path) -> None:
    write(root / "app/.token-sidecar.toml", '[[budget]]\nfiles = "*.txt"\nmax-tokens = 5\n')
    write(root / "app/a.txt", LONG)
    write(root / "app/a.md", LONG)
    assert "app/a.txt" not in check(".").stdout
    # The budgets of the current project still apply.
    both = check("app")
    assert both.stdout.count("[budget-exceeded]") == 2
    assert both.stdout.splitlines()[-1].startswith("3 files checked: 2 budgets exceeded")
    write(root / ".token-sidecar.toml", "")
    assert "app/a.txt:1" in check("app").stdout
    assert "app/a.md:1" not in check("app").stdout


NAMES = ["-", "--help", "--model=gpt-5", "-h", "--", "-a.md"]


@pytest.mark.parametrize("name", NAMES)
def test_the_hook_checks_files_with_any_name(root: Path, name: str) -> None:
    hooks = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"
    (hook,) = yaml.safe_load(hooks.read_text())
    write(root / ".token-sidecar.toml", BUDGET.replace("*.md", "*"))
    write(root / name, LONG)
    arguments = [*hook["entry"].split()[1:], *hook["args"]]
    result = CliRunner().invoke(main, [*arguments, f"./{name}" if name == "-" else name])
    assert result.exit_code == 1
    assert f"{name}:1:" in result.stdout


def test_the_readmes_command_passes_in_its_own_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert "`token-sidecar check .`" in Path("README.md").read_text()
    result = check(".")
    assert result.exit_code == 0, result.stdout
    assert "all within budget" in result.stdout or "No budgets are configured" in result.stdout
