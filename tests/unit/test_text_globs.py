"""Globs mean what git and fnmatch say they mean, and none takes forever."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.text.globs import (
    MAX_LENGTH,
    MAX_WILDCARDS,
    PathGlob,
    PathGlobs,
    names_any,
    problem_of,
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
    """Those of `paths` (relative, folders with `/` at their end) that the line itself means."""
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


@settings(max_examples=150, deadline=None)
@given(LINES, NAMES, NAMES, NAMES)
@example("a/**", "a", "b", "a")
@example("**/a/**/b", "a", "b", "b")
@example("[a/b]", "a", "b", "a")
@example("***/b", "a", "b", "b")
@example("a**b/*", "a-b", "b", "b")
def test_a_line_means_what_git_says(line: str, top: str, middle: str, deep: str) -> None:
    glob = PathGlob(line)
    folders = [f"{top}/", f"{top}/{middle}/", f"{top}/{middle}/{deep}/"]
    paths = [*folders, f"{top}/{middle}/{deep}x", f"{top}x"]
    ours = []
    for path in paths:
        parents = path.rstrip("/").split("/")
        # What git says of a path it may have said of a folder above it.
        # What is ignored is ignored with all that is in it.
        lengths = range(1, len(parents)) if not glob.negated else ()
        above = [parents[:length] for length in lengths]
        if glob.means(parents, folder=path.endswith("/")) or any(
            glob.means(parent, folder=True) for parent in above
        ):
            ours.append(path.rstrip("/"))
    assert ours == git_says(line, paths)


@given(st.lists(LINES, max_size=4), PATHS)
def test_a_file_is_meant_with_the_folder_that_it_is_in(lines: list[str], path: str) -> None:
    """Told apart line by line and folder by folder, as the words have it."""
    parts = path.split("/")
    expected = False
    for line in lines:
        glob = PathGlob(line)
        upper = [parts[:length] for length in range(1, len(parts))]
        if glob.means(parts, folder=False) or any(glob.means(up, folder=True) for up in upper):
            expected = not glob.negated
    assert PathGlobs(lines).has_file(path) == expected


@settings(max_examples=2000, deadline=None)
@given(st.text("ab*?[]!-^/.\\", max_size=12), st.text("ab[]!-^/.\\", max_size=8))
def test_names_are_matched_as_by_fnmatch(glob: str, name: str) -> None:
    assert names_any([glob], [name]) == fnmatchcase(name, glob)


def test_the_case_of_a_name_makes_no_difference() -> None:
    assert names_any(["Qwen-*"], ["qwen-3-Coder"])
    assert not names_any(["qwen-*"], ["openrouter/qwen-3"])


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
def test_no_pattern_takes_forever(pattern: str, path: str) -> None:
    assert not PathGlobs([pattern]).has_file(path)
    assert PathGlobs([pattern]).verdict(path, folder=False) is None
    assert not names_any([pattern], [path + "-"])


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=12), PATHS, st.booleans())
def test_the_last_line_that_means_a_path_decides(lines: list[str], path: str, folder: bool) -> None:
    """As if each line were compared: the looked-up ones are no exception."""
    parts = path.split("/")
    globs = [PathGlob(line) for line in lines]
    meant = [not glob.negated for glob in globs if glob.means(parts, folder=folder)]
    assert PathGlobs(lines).verdict(path, folder=folder) == (meant[-1] if meant else None)


def test_what_is_wrong_with_a_pattern() -> None:
    assert problem_of("prompts/**/*.[mt]d") is None
    assert problem_of("*" * MAX_WILDCARDS) is None
    assert "wildcards" in (problem_of("*a" * (MAX_WILDCARDS + 1)) or "")
    assert "characters" in (problem_of("a" * (MAX_LENGTH + 1)) or "")
