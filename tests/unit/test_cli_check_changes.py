"""Tests that `check` prints the same results with and without a cache, no matter what has changed."""

# token-budget: ignore (sample budgets)

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.budgets import check_cache
from sidecar.cli.check import check
from sidecar.config.paths import STATE_VARIABLE, config_file, state_dir

CONFIGURATION = """\
[[budget]]
files = "*.md"
max-tokens = 5
[[budget]]
files = "*.txt"
max-tokens = 8
sum = true
"""


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a git repository as the working directory. Its files are old enough to be cached."""
    monkeypatch.setattr(check_cache, "RACY_NS", -(10**18))
    for name in [name for name in os.environ if name.startswith(("TOKEN_SIDECAR_", "GIT_"))]:
        if name != STATE_VARIABLE:
            monkeypatch.delenv(name)
    folder = tmp_path / "above" / "root"
    write(folder / ".token-sidecar.toml", CONFIGURATION)
    write(folder / "AGENTS.md", "far more than these five tokens are\n")
    write(folder / "docs" / "a.md", "short\n")
    write(folder / "docs" / "b.txt", "one of two that are summed up\n")
    write(folder / "docs" / "c.txt", "and the other one\n")
    write(folder / "a.bin", b"\0\1")
    write(folder / "secret" / "notes.md", "left out, though it is far too long\n")
    write(folder / ".gitignore", "secret/\n*.log\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    monkeypatch.chdir(folder)
    return folder


Outcome = tuple[str | int | None, str, str]


@pytest.fixture
def outcome(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Return a function that runs `check` with these options."""

    def run(*options: str) -> Outcome:
        with pytest.raises(SystemExit) as exit_:
            check([*options, "."])
        return exit_.value.code, *capfd.readouterr()

    return run


def test_an_unchanged_tree_gives_the_same_output(
    root: Path, outcome: Callable[..., Outcome]
) -> None:
    first = outcome()
    assert first[0] == 1
    assert "AGENTS.md:1:" in first[1]
    assert "a.bin: binary file, skipped" in first[2]
    assert first == outcome() == outcome("--no-cache")


def add_a_log(root: Path) -> None:
    write(root / "x.log", "no file of these budgets\n")
    git(root, "add", "-f", "x.log")


def folder_becomes_file(root: Path) -> None:
    (root / "docs").rename(root.parent / "docs")
    write(root / "docs", "a file now\n")


def folder_becomes_link(root: Path) -> None:
    (root / "docs").rename(root.parent / "docs")
    (root / "docs").symlink_to(root.parent / "docs")


def link_to_the_moved(root: Path) -> None:
    (root / "AGENTS.md").rename(root.parent / "AGENTS.md")
    (root / "AGENTS.md").symlink_to(root.parent / "AGENTS.md")


CHANGES: dict[str, Callable[[Path], object]] = {
    "longer": lambda root: write(root / "docs/a.md", "no longer as short as it was\n"),
    "same size": lambda root: write(root / "docs/a.md", "a b c\n"),
    "new": lambda root: write(root / "docs/new.md", "a new one, which is too long\n"),
    "new folder": lambda root: write(root / "more/new.md", "a new one, which is too long\n"),
    "gone": lambda root: (root / "AGENTS.md").unlink(),
    "renamed": lambda root: (root / "AGENTS.md").rename(root / "OTHER.md"),
    "moved": lambda root: (root / "AGENTS.md").rename(root / "docs/AGENTS.md"),
    "a text now": lambda root: write(root / "a.bin", "12"),
    "ignored": lambda root: write(root / ".gitignore", "secret/\nAGENTS.md\n"),
    "not ignored": lambda root: (root / ".gitignore").unlink(),
    "ignored below": lambda root: write(root / "docs/.gitignore", "b.txt\n"),
    "ignored above": lambda root: write(root.parent / ".gitignore", "AGENTS.md\n"),
    "another work tree": lambda root: git(root.parent, "init", "-q"),
    "added": add_a_log,
    "untracked": lambda root: git(root, "rm", "-q", "--cached", "AGENTS.md"),
    "project": lambda root: write(root / ".token-sidecar.toml", CONFIGURATION.replace("8", "80")),
    "no project": lambda root: (root / ".token-sidecar.toml").unlink(),
    "pyproject": lambda root: write(root / "docs/pyproject.toml", "[tool.token-sidecar]\n"),
    "mistaken": lambda root: write(root / ".token-sidecar.toml", "wrong = 1\n"),
    "user": lambda _: write(config_file(), 'model = "claude-sonnet-4-5"\n'),
    "learned": lambda _: write(state_dir() / "calibration.json", "{}"),
    "a link": lambda root: (root / "docs/l.md").symlink_to(root / "AGENTS.md"),
    "a file is a link": link_to_the_moved,
    "a folder is a link": folder_becomes_link,
    "a folder is a file": folder_becomes_file,
    "closed": lambda root: (root / "docs/a.md").chmod(0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_tree_gives_the_new_output(
    change: Callable[[Path], object], root: Path, outcome: Callable[..., Outcome]
) -> None:
    outcome()
    change(root)
    assert outcome() == outcome("--no-cache")
    assert outcome() == outcome("--no-cache")


def test_a_tracked_file_that_comes_back_is_checked(
    root: Path, outcome: Callable[..., Outcome]
) -> None:
    git(root, "add", "-f", "secret/notes.md")
    (root / "secret/notes.md").unlink()
    outcome()
    write(root / "secret/notes.md", "left out, though it is far too long\n")
    found = outcome()
    assert found == outcome("--no-cache")
    assert "secret/notes.md:1:" in found[1]


REMOVED = {
    "configuration": ("sidecar.config.load.load", ".token-sidecar.toml"),
    "git's index": ("sidecar.project.git.list_files", ".git/index"),
}


@pytest.mark.parametrize(("reads", "name"), REMOVED.values(), ids=REMOVED)
def test_file_removed_during_a_run_is_missing_in_the_next(
    reads: str,
    name: str,
    root: Path,
    outcome: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, _, function = reads.rpartition(".")
    read = getattr(sys.modules[module], function)

    def reading(*given: object, **named: object) -> object:
        found = read(*given, **named)
        (root / name).unlink()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(reads, reading)
        outcome()
    assert outcome() == outcome("--no-cache")


def test_rule_without_files_is_reported_until_a_file_matches(
    root: Path, outcome: Callable[..., Outcome]
) -> None:
    more = '[[budget]]\nfiles = "/rules/*"\nmax-tokens = 1\n'
    write(root / ".token-sidecar.toml", CONFIGURATION + more)
    first = outcome()
    assert "budget[2]: `files` matches no file" in first[2]
    assert outcome() == first == outcome("--no-cache")
    write(root / "rules" / "a.txt", "far too long\n")
    found = outcome()
    assert found == outcome("--no-cache")
    assert "no file" not in found[2]
