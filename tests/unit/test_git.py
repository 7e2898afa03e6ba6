"""Tests that git in a hostile repository runs no programs from its configuration or folders."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.project import git
from tests import hostile
from tests.hostile import Hostile

# The traps that each command triggers when git runs without our protection.
ORDINARY = {
    ("status",): {"fsmonitor", "hook", "module-fsmonitor", "module-clean", "module-hook"},
    ("diff", "HEAD", "--", "CLAUDE.md"): {"external", "clean", "smudge"},
    ("diff", "--no-ext-diff", "HEAD", "--", "CLAUDE.md"): {"textconv"},
    ("add", "lazy.md"): {"process"},
    ("cat-file", "-p", "main:lazy.md"): {"fetch"},
    ("-C", "docs", "status"): {"bare-fsmonitor"},
}
VERBS = [
    ("status",),
    ("diff", "HEAD"),
    ("diff", "--name-status", "-z", "-M", "HEAD", "--", "CLAUDE.md"),
    ("cat-file", "-p", "main:lazy.md"),
    ("ls-files", "--modified", "--others", "--exclude-standard"),
    ("update-index", "--refresh"),
]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hostile:
    """Create the hostile repository, and make it the current folder."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    made = hostile.make(tmp_path)
    monkeypatch.chdir(made.root)
    return made


def poison_path(repository: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the repository and its subfolders to PATH, as relative and as absolute paths."""
    monkeypatch.setenv("PATH", f"{repository.path()}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("arguments", ORDINARY, ids=" ".join)
def test_the_traps_work(repository: Hostile, arguments: tuple[str, ...]) -> None:
    subprocess.run(["git", *arguments], capture_output=True, check=False)
    assert repository.fired() >= ORDINARY[arguments]


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
@pytest.mark.parametrize("folder", [".", "docs", "module"])
def test_no_trap_is_triggered(
    repository: Hostile, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], folder: str
) -> None:
    poison_path(repository, monkeypatch)
    with contextlib.suppress(git.GitError):
        git.run(repository.root / folder, *arguments)
    assert repository.fired() == set()


def test_a_check_against_a_revision_runs_nothing_else(
    repository: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison_path(repository, monkeypatch)
    program = Path(sys.executable).parent / "token-sidecar"
    command = [str(program), "check", "--diff", "main", "CLAUDE.md", "lazy.md"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert repository.fired() == set()
    # git is not allowed to fetch the missing blob, so the command fails.
    assert result.returncode == 2
    assert "git cannot compare" in result.stderr
    hostile.give_back(repository)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert repository.fired() == set()
    assert "more than in main" in result.stdout
    assert result.returncode == 0


def test_results_equal_those_of_ordinary_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(git.GitError, match="not a git repository"):
        git.run(tmp_path, "status")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "näme.md").write_text("x")
    out = git.run(tmp_path, "ls-files", "--others", "-z")
    assert "näme.md" in out.decode().split("\0")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(git.GitError, match="git is not on the PATH"):
        git.run(tmp_path, "status")


def test_a_folder_that_contains_the_home_belongs_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "home/bin/git"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    assert git.find_git(tmp_path / "home") is None
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert git.find_git(tmp_path / "home") == str(program)


def test_a_link_in_the_repository_to_an_outside_program_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also tests a link outside the repository that leads to a program inside the repository."""
    outside, inside = tmp_path / "outside", tmp_path / "repository/bin"
    for folder in (outside, inside):
        folder.mkdir(parents=True)
    (outside / "real").write_text("#!/bin/sh\n")
    (outside / "real").chmod(0o755)
    (inside / "git").symlink_to(outside / "real")
    monkeypatch.setenv("PATH", str(inside))
    assert git.find_git(tmp_path / "repository") is None
    (inside / "theirs").write_text("#!/bin/sh\n")
    (inside / "theirs").chmod(0o755)
    (outside / "git").symlink_to(inside / "theirs")
    monkeypatch.setenv("PATH", str(outside))
    assert git.find_git(tmp_path / "repository") is None
    (outside / "real").rename(outside / "git")
    assert git.find_git(tmp_path / "repository") == str(outside / "git")


def test_unreadable_path_entries_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PATH entry may be unreadable, or have a name that is invalid on every file system."""
    locked = tmp_path / "locked"
    (locked / "bin").mkdir(parents=True)
    locked.chmod(0)
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    entries = [str(locked / "bin"), str(tmp_path / ("x" * 300)), str(program.parent)]
    monkeypatch.setenv("PATH", os.pathsep.join(entries))
    try:
        assert git.find_git(tmp_path / "repository") == str(program)
    finally:
        locked.chmod(0o700)
