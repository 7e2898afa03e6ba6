"""Tests that very deep folders and hostile `.gitignore` files cannot stop a search."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.config.safe_files import MAX_BYTES
from sidecar.project.files import MAX_LINES, MAX_WILDCARDS, File, SkippedPath, find, read_rules

DEPTH = 1_500


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / ".git").mkdir()
    (folder / "a.md").write_text("a")
    return folder


@pytest.fixture
def deep(root: Path) -> Iterator[Path]:
    """Create folders that are nested deeper than Python's recursion limit."""
    folders = [root]
    for _ in range(DEPTH):
        folders.append(folders[-1] / "d")
        os.mkdir(folders[-1])
    (folders[-1] / "last.md").write_text("words")
    yield root
    os.unlink(folders[-1] / "last.md")
    for folder in reversed(folders[1:]):
        os.rmdir(folder)


def walked(root: Path) -> tuple[set[str], list[SkippedPath]]:
    """Return the names of the files found, and the skipped paths."""
    found = list(find([str(root)]))
    files = {os.path.relpath(one.path, root) for one in found if isinstance(one, File)}
    skipped = [one for one in found if isinstance(one, SkippedPath)]
    return files, skipped


@pytest.mark.parametrize("kind", ["fifo", "huge", "folder"])
def test_a_gitignore_that_is_not_a_regular_file_is_reported(root: Path, kind: str) -> None:
    path = root / ".gitignore"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "huge":
        path.write_bytes(b"#" * (MAX_BYTES + 1))
    else:
        path.mkdir()
    files, skipped = walked(root)
    assert files == {"a.md", ".gitignore"} if kind == "huge" else {"a.md"}
    assert [one.path for one in skipped] == [str(path)]


@pytest.mark.parametrize("target", ["/dev/zero", "../outside", "inside"])
def test_a_gitignore_that_is_a_link_is_ignored_as_by_git(root: Path, target: str) -> None:
    (root.parent / "outside").write_text("*.md\n")
    (root / "inside").write_text("*.md\n")
    (root / ".gitignore").symlink_to(target)
    assert walked(root) == ({"a.md", "inside"}, [])


HOSTILE = (
    "*a" * 24 + "*b",
    "**/a/" * 20,
    "[" * 40,
    "a" * 900,
    "*[a" * 20,
    "**" + "/**" * 20 + "/b",
)


@pytest.mark.parametrize("pattern", HOSTILE, ids=range(len(HOSTILE)))
def test_no_gitignore_hangs(root: Path, pattern: str) -> None:
    (root / ".gitignore").write_text(f"{pattern}\n" * 50 + "b.md\n")
    (root / ("a" * 200)).write_text("a")
    (root / "b.md").write_text("b")
    assert walked(root)[0] == {".gitignore", "a.md", "a" * 200}


def test_patterns_over_the_limits_are_skipped_and_reported(root: Path) -> None:
    (root / ".gitignore").write_text("*a" * 60 + "\nb.md\n")
    (root / "b.md").write_text("b")
    files, (skipped,) = walked(root)
    assert files == {".gitignore", "a.md"}
    assert "wildcards" in skipped.reason
    (root / ".gitignore").write_text("\n" * MAX_LINES + "a.md\n")
    files, (skipped,) = walked(root)
    assert "a.md" in files
    assert "lines" in skipped.reason


TEN_THOUSAND = {
    "names": ("name{}", "name7", "a/name9999"),
    "ends": ("*.e{}", "x.e7", "a/y.e9999"),
    "paths": ("/a/x{}", "a/x7", "a/x9997"),
    "paths without a slash before": ("a/x{}", "a/x7", "a/x9997"),
    "folders": ("name{}/", "name7/b.md", "a/name9997/b.md"),
}


@pytest.mark.parametrize("kind", TEN_THOUSAND)
def test_ten_thousand_patterns_are_applied(root: Path, kind: str) -> None:
    line, *excluded = TEN_THOUSAND[kind]
    lines = [line.format(number) for number in range(MAX_LINES - 2)]
    (root / ".gitignore").write_text("\n".join([*lines, "name9999", "*.e9999"]))
    for path in (*excluded, "a/b.md"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("b")
    files, skipped = walked(root)
    assert files == {".gitignore", "a.md", "a/b.md"}
    assert skipped == []


@pytest.mark.parametrize("line", ["n*{}*x", "**/a{}/b*", "[ab][ab]{}", "/x{}/?"])
def test_wildcards_are_limited_for_a_folder_with_its_parents(root: Path, line: str) -> None:
    for name in (".", "d", "d/e"):
        folder = root / name
        folder.mkdir(exist_ok=True)
        lines = (line.format(number) for number in range(3_000))
        (folder / ".gitignore").write_text("\n".join(["b.md", *lines, "c.md"]))
        (folder / "b.md").write_text("b")
        (folder / "c.md").write_text("c")
    files, skipped = walked(root)
    assert {"c.md", "b.md", "d/b.md", "d/c.md"}.isdisjoint(files)
    assert len(skipped) == 3
    assert all(f"more than {MAX_WILDCARDS:,} wildcards" in one.reason for one in skipped[:2])
    top = read_rules(str(root))
    below = read_rules(str(root / "d"), top)
    assert sum(rule.wildcards for rule in (*top, *below)) <= MAX_WILDCARDS


def test_lines_are_limited_for_a_folder_with_its_parents(root: Path) -> None:
    for name in (".", "d"):
        (root / name).mkdir(exist_ok=True)
        (root / name / ".gitignore").write_text("name\n" * (MAX_LINES - 10) + "b.md\n")
        (root / name / "b.md").write_text("b")
    files, (skipped,) = walked(root)
    assert "b.md" not in files
    assert (skipped.path, "lines" in skipped.reason) == (str(root / "d" / ".gitignore"), True)


def test_folders_nested_deeper_than_the_recursion_limit_are_walked(deep: Path) -> None:
    name = "d/" * DEPTH + "last.md"
    assert walked(deep) == ({"a.md", name}, [])


@pytest.mark.parametrize("verb", ["count", "check"])
def test_the_command_line_walks_as_deep(deep: Path, verb: str) -> None:
    (deep / ".token-sidecar.toml").write_text('[[budget]]\nfiles = "last.md"\nmax-tokens = 9\n')
    run = subprocess.run(
        [sys.executable, "-P", "-m", "sidecar", verb, ".", "--json"],
        cwd=deep,
        env={**os.environ, "TOKEN_SIDECAR_STATE": str(deep.parent / "state")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.returncode, "Traceback" in run.stderr) == (0, False), run.stderr
    assert "d/" * DEPTH + "last.md" in run.stdout


@pytest.mark.parametrize(("verb", "code"), [("count", 2), ("fit", 2)])
def test_reading_an_endless_device_is_given_up(root: Path, verb: str, code: int) -> None:
    resource = pytest.importorskip("resource", reason="Windows has no limits of this kind")
    (root / "AGENTS.md").symlink_to("/dev/zero")
    limit = ["--max-tokens", "5"] if verb == "fit" else []
    run = subprocess.run(
        [sys.executable, "-P", "-m", "sidecar", verb, "AGENTS.md", *limit],
        cwd=root,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 * 10**9, 2 * 10**9)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, "too large" in run.stderr.lower()) == (code, True), run.stderr
