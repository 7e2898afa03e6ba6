"""Tests that globs match the same paths as git and fnmatch do, and take linear time."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pathspec import PathSpec

from sidecar.text import globs
from sidecar.text.globs import (
    MAX_LENGTH,
    MAX_WILDCARDS,
    MAX_WILDCARDS_WITHOUT_RE2,
    IgnoreGlobs,
    PathGlobs,
    glob_problem,
    matches_any,
    path_glob_problem,
)

NAMES = st.text("ab-.", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PARTS = (
    *("a", "b", "-", ".", "/", "/", "*", "*", "**", "**/", "/**", "/**/", "?", "\\a", "\\*", " "),
    *("[ab]", "[!a]", "[^-b]", "[a-b]", "[b-a]", "[]a]", "[a-]", "[--b]", "[\\a-b]", "[a/b]"),
    *("[[:alpha:]]", "[![:punct:]]", "[[:nope:]]", "[[:a]", "[a", "\\ ", "\\", "!", "#", "\\/"),
)
LINES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=7).map("".join)


def git_says(line: str, paths: list[str]) -> list[str]:
    """Return the paths that git ignores because of a `.gitignore` line. Folders end with `/`."""
    with TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        Path(folder, ".gitignore").write_text(line + "\n")
        for path in paths:
            place = Path(folder, path)
            (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
            if not path.endswith("/"):
                place.touch()
        command = ["git", "-c", "core.excludesFile=", "-C", folder, "check-ignore", "-v", "-z"]
        run = subprocess.run(
            [*command, "--no-index", "--stdin"],
            input="\0".join(path.rstrip("/") for path in paths).encode(),
            capture_output=True,
            check=False,
        )
        assert run.returncode in (0, 1), run.stderr
    fields = run.stdout.decode().split("\0")
    return [path for pattern, path in zip(fields[2::4], fields[3::4], strict=True) if pattern]


def ours(lines: list[str], paths: list[str]) -> list[str]:
    """Return the paths that match the `.gitignore` lines, directly or through a parent folder."""
    found = IgnoreGlobs(lines)

    def is_ignored(path: str, *, folder: bool) -> bool:
        above = path.rpartition("/")[0]
        if above and is_ignored(above, folder=True):
            return True
        return found.verdict(path, folder=folder) is True

    return [
        path.rstrip("/") for path in paths if is_ignored(path.rstrip("/"), folder=path[-1] == "/")
    ]


@settings(max_examples=150, deadline=None)
@given(LINES, NAMES, NAMES, NAMES)
@example("a/**", "a", "b", "a")
@example("**/a/**/b", "a", "b", "b")
@example("[a/b]", "a", "b", "a")
@example("a/**/", "a", "b", "a")
def test_gitignore_lines_match_like_git(line: str, top: str, middle: str, deep: str) -> None:
    """Excludes a documented difference: git treats `**` next to other characters as `*`."""
    assume(path_glob_problem(line) is None)
    assume(not re.search(r"[^/]\*\*|\*\*[^/]", line))
    folders = [f"{top}/", f"{top}/{middle}/", f"{top}/{middle}/{deep}/"]
    paths = [*folders, f"{top}/{middle}/{deep}x", f"{top}x"]
    if not line.startswith("!"):
        assert ours([line], paths) == git_says(line, paths)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=5), PATHS)
@example(["aa", "a/**/"], "a/a")
@example(["!!"], "a")
def test_last_matching_glob_decides(lines: list[str], path: str) -> None:
    lines = [
        line
        for line in lines
        if path_glob_problem(line) is None and path_glob_problem(line.removeprefix("!")) is None
    ]
    expected = False
    for line in lines:
        if ours([line.removeprefix("!")], [path]):
            expected = not line.startswith("!")
    assert PathGlobs(lines).matches_file(path) == expected


@pytest.mark.parametrize(
    ("files", "meant", "others"),
    [
        (["AGENTS.md"], ["AGENTS.md", "a/b/AGENTS.md"], ["AGENTS.md.txt", "a/XAGENTS.md"]),
        (["/AGENTS.md"], ["AGENTS.md"], ["a/AGENTS.md"]),
        (["prompts/"], ["prompts/a.md", "a/prompts/b/c"], ["prompts"]),
        (["prompts/**/*.md"], ["prompts/a.md", "prompts/b/c.md"], ["a/prompts/a.md"]),
        (["prompts/*"], ["prompts/a", "prompts/b/c"], ["prompts", "a/prompts/b"]),
        (["prompts/**"], ["prompts/a", "prompts/b/c"], ["prompts", "a/prompts/b"]),
        (["prompts/**/"], ["prompts/a/b", "prompts/a/b/c"], ["prompts", "prompts/a"]),
        (["*.md", "!CHANGELOG.md"], ["a.md"], ["CHANGELOG.md", "a/CHANGELOG.md"]),
        (["*.md", "!docs/"], ["a.md"], ["docs/a.md", "a/docs/b.md"]),
        (["docs/", "!docs/old/"], ["docs/a"], ["docs/old/a"]),
        (["*.md"], ["a\nb/c\n.md", "no\udcff/c.md", "\ud800.md", "ü.md"], ["c.md\n"]),
        (["no\udcff*", "ü"], ["no\udcff.md", "ü"], ["no\udcfe.md", "u"]),
    ],
)
def test_globs_of_budgets(files: list[str], meant: list[str], others: list[str]) -> None:
    found = PathGlobs(files)
    assert [path for path in (*meant, *others) if found.matches_file(path)] == meant


UNLIKE_GIT = ("[!a]", "a[^b]", "[[:alpha:]]", "[a/b]", "[\\a-b]", "[--b]", "[a&&b]", "[]!a[]")


@pytest.mark.parametrize("pattern", [*UNLIKE_GIT, "a\\", "[b-a]", "!", "/", "!/"])
def test_patterns_that_pathspec_reads_differently_are_refused(pattern: str) -> None:
    assert path_glob_problem(pattern) is not None


@pytest.mark.parametrize(
    "pattern", ["*.py[cod]", "[Bb]in/", "*.s[a-v][a-z]", "[]a]", "[a-]", "[a", "\\[!a]", "\\#*\\#"]
)
def test_common_patterns_are_valid(pattern: str) -> None:
    assert path_glob_problem(pattern) is None


@settings(max_examples=2000, deadline=None)
@given(st.text("ab*?[]!-^/.\\", max_size=12), st.text("ab[]!-^/.\\", max_size=8))
def test_names_match_like_fnmatch(glob: str, name: str) -> None:
    assert matches_any([glob], [name]) == fnmatchcase(name, glob)


def test_the_case_of_a_name_makes_no_difference() -> None:
    assert matches_any(["Qwen-*"], ["qwen-3-Coder"])
    assert not matches_any(["qwen-*"], ["openrouter/qwen-3"])


BOMBS = (
    "*a" * 400 + "*z",
    "**/a/" * 200 + "z",
    "*" * 1000 + "z",
    "**" + "/**" * 300 + "/z",
    "*[ab]" * 190 + "z",
    "*?a" * 300 + "z",
    "*a/**/" * 150 + "z",
)


@pytest.mark.parametrize("pattern", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.parametrize("path", ["a" * 4000, "a/" * 2000 + "a", "ab" * 2000], ids=range(3))
def test_matching_takes_linear_time(pattern: str, path: str) -> None:
    assert not PathGlobs([pattern]).matches_file(path)
    assert IgnoreGlobs([pattern]).verdict(path, folder=False) is None
    assert not matches_any([pattern], [path + "-"])


def test_a_path_is_compared_once_with_many_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns are compiled in groups of up to 10,000 characters.

    Each path is matched at most once against each group.
    """
    compared: list[str] = []
    original = PathSpec.check_file

    def check_file(self: PathSpec[Any], path: str, separators: tuple[str, ...]) -> object:
        compared.append(path)
        return original(self, path, separators)

    monkeypatch.setattr(PathSpec, "check_file", check_file)
    lines = [f"*a{number}*b" for number in range(1_000)]
    assert IgnoreGlobs(lines).verdict("x" * 1_000, folder=False) is None
    assert len(compared) <= 1 + sum(map(len, lines)) // 9_000
    compared.clear()
    assert IgnoreGlobs(lines).verdict("xa999b", folder=False) is True
    assert len(compared) == 1


def test_ten_thousand_lines_are_all_matched() -> None:
    found = IgnoreGlobs(f"name{number}" for number in range(10_000))
    assert found.verdict("name0", folder=False) is True
    assert found.verdict("name9999", folder=True) is True
    assert found.verdict("name", folder=False) is None


def test_slow_patterns_are_refused_without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(globs, "_has_re2", lambda: False)
    most = "a" + "*a" * (MAX_WILDCARDS_WITHOUT_RE2 - 1) + "*b"
    assert path_glob_problem(most) is None
    assert "without google-re2" in (path_glob_problem("*" + most) or "")
    assert IgnoreGlobs([most]).verdict("a" * 255, folder=False) is None
    assert IgnoreGlobs([most]).verdict("a" * 255 + "b", folder=False) is True
    assert PathGlobs(["*.md", "!docs/"]).matches_file("docs/a.md") is False


def test_problem_of_an_invalid_pattern() -> None:
    assert glob_problem("prompts/**/*.[mt]d") is None
    assert glob_problem("*" * MAX_WILDCARDS) is None
    assert "wildcards" in (glob_problem("*a" * (MAX_WILDCARDS + 1)) or "")
    assert "characters" in (path_glob_problem("a" * (MAX_LENGTH + 1)) or "")
