"""Tests that folder searches follow git's rules, and list the files that cannot be counted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.project.files import File, SkippedPath, Text, decode, find, read
from tests.cases import read_rows

TREE = (
    *("a.txt", "b.md", "build/out.txt", "build/keep.md", "docs/a.txt", "docs/build/x.txt"),
    *("src/main.py", "src/build/gen.py", "src/deep/er/a.txt", "src/deep/b.md", "sp ace.txt"),
)
PATTERNS = (
    *("*.txt", "!a.txt", "build", "build/", "/build", "docs/", "src/*", "!src/deep", "**/a.txt"),
    *("deep/**", "src/**/b.md", "# comment", "", "!build/keep.md", "*.md", "!b.md", "[ab].txt"),
    *("sp\\ ace.txt", "er", "/src/main.py", "*/a.txt", "!*/", "*", "a.txt ", "\\!x"),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return an empty folder. `tmp_path` itself contains the tests' configuration."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def make(root: Path, files: tuple[str, ...] = TREE) -> None:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def found(*paths: Path | str) -> list[str]:
    return [one.path for one in find(map(str, paths)) if isinstance(one, File)]


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "core.excludesFile=", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def seen_by_git(root: Path) -> list[str]:
    """Return the files that git does not ignore in a folder that is not a repository."""
    with TemporaryDirectory() as folder:
        git(root, "init", "-q", "--separate-git-dir", f"{folder}/git")
        (root / ".git").unlink()
        seen = git(
            root, "--git-dir", f"{folder}/git", "--work-tree", str(root),
            "ls-files", "-coz", "--exclude-standard",
        )  # fmt: skip
    return sorted(seen.split("\0")[:-1])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(PATTERNS), max_size=5),
    st.lists(st.sampled_from(PATTERNS), max_size=3),
    st.lists(st.sampled_from(PATTERNS), max_size=3),
)
def test_folders_contain_the_files_that_git_sees(
    top: list[str], src: list[str], deep: list[str]
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        make(root)
        for where, lines in (("", top), ("src", src), ("src/deep", deep)):
            (root / where / ".gitignore").write_text("\n".join(lines))
        assert sorted(os.path.relpath(path, root) for path in found(root)) == seen_by_git(root)


@pytest.mark.parametrize(
    ("top", "src", "hidden"),
    [
        ("build/\n/*\n!/src/", "", "src/build/gen.py"),
        ("build\n!src/", "", "src/build/gen.py"),
        ("*.txt", "!*/", "src/deep/a.txt"),
        ("src/**\n!src/deep/", "", "src/deep/b.md"),
    ],
)
def test_folder_pattern_does_not_match_its_contents(
    root: Path, top: str, src: str, hidden: str
) -> None:
    make(root, ("src/build/gen.py", "src/deep/a.txt", "src/deep/b.md", "src/main.py"))
    (root / ".gitignore").write_text(top)
    (root / "src" / ".gitignore").write_text(src)
    seen = seen_by_git(root)
    assert hidden not in seen
    assert sorted(os.path.relpath(path, root) for path in found(root)) == seen


@pytest.mark.parametrize(("pattern", "name"), read_rows("files", "byte_patterns"))
def test_patterns_match_bytes_as_in_git(root: Path, pattern: str, name: str) -> None:
    make(root, (name, "other.md"))
    (root / ".gitignore").write_text(f"{pattern}\n")
    assert sorted(os.path.relpath(path, root) for path in found(root)) == seen_by_git(root)


def test_gitignore_of_parent_folders_applies(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / ".gitignore").write_text("*.txt\n")
    git(tmp_path, "init", "-q")
    assert found(tmp_path / "src") == [
        str(tmp_path / "src" / name) for name in ("build/gen.py", "deep/b.md", "main.py")
    ]


def test_gitignore_of_parents_is_ignored_outside_a_repository(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / "docs" / ".gitignore").write_text("build/\n")
    assert found(tmp_path / "docs") == [
        str(tmp_path / "docs" / name) for name in (".gitignore", "a.txt")
    ]


def test_named_files_are_always_counted(tmp_path: Path) -> None:
    make(tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("build/\na.txt\n")
    assert found(tmp_path / "a.txt") == [str(tmp_path / "a.txt")]
    assert found(tmp_path / "build") == [
        str(tmp_path / "build" / name) for name in ("keep.md", "out.txt")
    ]


@pytest.mark.parametrize("folder", [".", "sub"])
def test_a_file_called_dash_is_not_standard_input(
    root: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(root, ("-", "sub/-"))
    monkeypatch.chdir(root / folder)
    name = "-" if folder == "." else "sub/-"
    for path in (".", "./-", str(root / name)):
        texts = [read(one) for one in find([path]) if isinstance(one, File)]
        assert Text(name, damaged=False) in texts
    (stdin,) = find(["-"])
    assert isinstance(stdin, File)
    assert stdin.is_stdin


def test_links_are_not_followed_below_a_folder(tmp_path: Path) -> None:
    make(tmp_path, ("in/a.txt", "out/b.txt"))
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "file").symlink_to(tmp_path / "out" / "b.txt")
    (tmp_path / "in" / "broken").symlink_to(tmp_path / "nowhere")
    assert found(tmp_path / "in") == [str(tmp_path / "in" / "a.txt")]
    link = tmp_path / "in" / "file"
    assert found(link, tmp_path / "in" / "loop") == [
        str(link),
        str(tmp_path / "in" / "loop" / "a.txt"),
    ]


def test_special_files_are_skipped(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert found(root) == []


def test_order_and_names_are_as_given(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(root, ("b/2.txt", "b/1.txt", "a.txt"))
    monkeypatch.chdir(root)
    assert found(".") == ["a.txt", "b/1.txt", "b/2.txt"]
    assert found("b/", "./a.txt", "-") == ["b/1.txt", "b/2.txt", "a.txt", "-"]


def test_invalid_gitignore_patterns_are_ignored(root: Path) -> None:
    make(root, ("a.txt", "b.txt"))
    (root / ".gitignore").write_bytes(b"\xef\xbb\xbfb.txt\n!\n\xff\xfe\n")
    assert found(root) == [str(root / ".gitignore"), str(root / "a.txt")]


def test_missing_path_is_reported(tmp_path: Path) -> None:
    (missing,) = find([str(tmp_path / "nope")])
    assert missing == SkippedPath(str(tmp_path / "nope"), "no such file or directory", failed=True)
    (wrong,) = find(["a\0b"])
    assert isinstance(wrong, SkippedPath)
    gone = read(File(str(tmp_path / "gone"), 1, named=False))
    assert isinstance(gone, SkippedPath)
    assert not gone.failed


def test_text_and_binary() -> None:
    assert decode("größe\r\n".encode()) == Text("größe\r\n", damaged=False)
    assert decode(b"\xef\xbb\xbfa") == Text("a", damaged=False)
    assert decode(b"gr\xf6\xdfe") == Text("gr��e", damaged=True)
    assert decode(b"\x89PNG\0\0") is None
    assert decode(b"x" * 8_000 + b"\0") == Text("x" * 8_000 + "\0", damaged=False)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_byte_order_mark_selects_the_encoding(encoding: str) -> None:
    data = "\ufeffgröße\r\n😀".encode(encoding)
    assert decode(data) == Text("größe\r\n😀", damaged=False)
    damaged = decode(data[:-1])
    assert damaged is not None
    assert damaged.damaged
    assert damaged.text.startswith("größe\r\n")
