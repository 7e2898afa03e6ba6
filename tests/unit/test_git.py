"""Tests that git runs nothing of a hostile repository, and what files contained at a revision."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.project import git, source_files
from sidecar.project.source_files import (
    OUTSIDE,
    TOO_LARGE,
    TOO_MUCH,
    Contents,
    Unread,
    read_old_files,
)
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


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    root = tmp_path / "repository"
    (root / "pkg").mkdir(parents=True)
    monkeypatch.chdir(root)
    subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
    return root


def commit() -> None:
    subprocess.run(["git", "add", "-A"], check=True)
    options = ("-c", "user.name=n", "-c", "user.email=e")
    subprocess.run(["git", *options, "commit", "-qm", "x"], check=True)


def old(top: Path) -> dict[str, Contents]:
    found = read_old_files(top / "pkg", "main")
    return {Path(path).relative_to(top).as_posix(): data for path, data in found.items()}


def test_changed_new_removed_and_renamed_files(top: Path) -> None:
    for name in ("same.md", "changed.md", "gone.md", "from.md", "two\nlines é.md"):
        Path(name).write_text(f"old {name}\n" * 9)
    commit()
    Path("changed.md").write_text("new")
    Path("two\nlines é.md").write_text("new")
    Path("gone.md").unlink()
    Path("from.md").rename("pkg/to.md")
    assert old(top) == {
        "changed.md": b"old changed.md\n" * 9,
        "gone.md": b"old gone.md\n" * 9,
        "from.md": b"old from.md\n" * 9,
        "pkg/to.md": None,
        "two\nlines é.md": "old two\nlines é.md\n".encode() * 9,
    }


def test_a_file_that_git_no_longer_tracks_keeps_its_old_contents(top: Path) -> None:
    Path("kept.md").write_text("old")
    commit()
    subprocess.run(["git", "rm", "-q", "--cached", "kept.md"], check=True)
    Path("kept.md").write_text("new")
    assert old(top) == {"kept.md": b"old"}


def test_large_files_are_unread(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "MAX_BYTES", 10)
    monkeypatch.setattr(source_files, "MAX_TEXT", 12)
    for name, size in (("a", 11), ("b", 9), ("c", 8), ("d", 4)):
        Path(name).write_text(name * size)
    commit()
    for name in "abcd":
        Path(name).write_text("new")
    large, much = Unread(TOO_LARGE), Unread(TOO_MUCH)
    assert old(top) == {"a": large, "b": much, "c": b"c" * 8, "d": b"d" * 4}


@pytest.mark.skipif(os.name == "nt", reason="git for Windows writes links as files")
def test_a_link_has_the_contents_of_its_target(top: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    Path("changed.md").write_text("old")
    Path("same.md").write_text("same")
    targets = {
        "to-changed": "changed.md",
        "pkg/to-same": "../same.md",
        "out": str(tmp_path / "secret"),
        "up": "../secret",
        "nowhere": "none",
        "itself": "itself",
    }
    for link, target in targets.items():
        Path(link).symlink_to(target)
    commit()
    for name in ("changed.md", *targets):
        Path(name).unlink()
        Path(name).write_text("new")
    assert old(top) == {
        "changed.md": b"old",
        "to-changed": b"old",
        "pkg/to-same": b"same",
        **dict.fromkeys(("out", "up"), Unread(OUTSIDE)),
        **dict.fromkeys(("nowhere", "itself")),
    }


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_a_linked_repository_is_known_by_both_paths(top: Path, tmp_path: Path) -> None:
    Path("a").write_text("old")
    commit()
    Path("a").write_text("new")
    (tmp_path / "link").symlink_to(top)
    found = read_old_files(tmp_path / "link", "main")
    assert found == {str(tmp_path / "link/a"): b"old", str(top / "a"): b"old"}
