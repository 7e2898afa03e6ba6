"""Tests reading what the files of a real git repository contained."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sidecar.project import source_files
from sidecar.project.git import GitError
from sidecar.project.source_files import (
    OUTSIDE,
    TOO_LARGE,
    TOO_MUCH,
    Contents,
    Unread,
    read_old_files,
)


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


@pytest.mark.parametrize("base", ["none", "--output=planted", ""])
def test_an_unknown_revision_is_an_error(top: Path, base: str) -> None:
    Path("a").write_text("x")
    commit()
    with pytest.raises(GitError):
        read_old_files(top, base)
    assert not Path("planted").exists()


def test_outside_of_a_repository(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="not a git repository"):
        read_old_files(tmp_path, "main")
