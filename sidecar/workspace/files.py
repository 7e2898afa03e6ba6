"""Which files a command means: folders walked as git sees them, binary files told apart.

Below a folder, what a `.gitignore` in it or in a parent of the same repository excludes is left
out, as are `.git` and symbolic links (so loops cannot happen, and nothing is counted twice). A file
that is named itself is always taken, ignored or not, link or not.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator

    from pathspec import GitIgnoreSpec

STDIN = "-"
_BINARY_SEARCHED = 8_000  # bytes: as many as git looks at


class File(NamedTuple):
    """A file, or standard input (path `-`, size 0); `named` when the user asked for this very path.

    The size is in bytes.
    """

    path: str
    size: int
    named: bool


class Skipped(NamedTuple):
    """A path that is passed over; `failed` when the user asked for this very path in vain."""

    path: str
    reason: str
    failed: bool


class Text(NamedTuple):
    """What a file holds; `damaged` when U+FFFD stands for bytes in it that are not UTF-8."""

    text: str
    damaged: bool


class _Rules(NamedTuple):
    """The patterns of one `.gitignore`, for paths that begin with `prefix`."""

    prefix: str
    spec: GitIgnoreSpec


def find(paths: Iterable[str]) -> Iterator[File | Skipped]:
    """The files that `paths` mean, in their order, folders' files by name. Never raises OSError."""
    for path in paths:
        if path == STDIN:
            yield File(STDIN, 0, named=True)
            continue
        path = os.path.normpath(path)
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            yield Skipped(path, _reason(error), failed=True)
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path, _rules_above(path), named=True)
        else:
            yield File(path, status.st_size, named=True)


def read(file: File) -> Text | Skipped:
    """What a file or standard input holds; Skipped for a binary file, or when it cannot be read."""
    try:
        if file.path == STDIN:
            data = sys.stdin.buffer.read()
        else:
            with open(file.path, "rb") as stream:
                data = stream.read()
    except OSError as error:
        return Skipped(file.path, _reason(error), failed=file.named)
    return decode(data) or Skipped(file.path, "binary file", failed=False)


def decode(data: bytes) -> Text | None:
    """A file's text with its line ends as they are; None for a binary file.

    Binary is what has a NUL in its first 8,000 bytes, as for git. Bytes that are not UTF-8 become
    U+FFFD.
    """
    if b"\0" in data[:_BINARY_SEARCHED]:
        return None
    try:
        return Text(data.decode(), damaged=False)
    except UnicodeDecodeError:
        return Text(data.decode("utf-8", "replace"), damaged=True)


def _walk(folder: str, rules: list[_Rules], *, named: bool) -> Iterator[File | Skipped]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        yield Skipped(folder, _reason(error), named)
        return
    if any(entry.name == ".gitignore" for entry in found):
        rules = [*rules, *_rules_in(folder)]
    for entry in found:
        path = entry.name if folder == "." else os.path.join(folder, entry.name)
        try:
            yield from _take(entry, path, rules)
        except OSError as error:
            yield Skipped(path, _reason(error), failed=False)


def _take(entry: os.DirEntry[str], path: str, rules: list[_Rules]) -> Iterator[File | Skipped]:
    folder = entry.is_dir(follow_symlinks=False)
    if entry.name == ".git" or _ignored(path, folder, rules):
        return
    if folder:
        yield from _walk(path, rules, named=False)
    elif entry.is_file(follow_symlinks=False):
        yield File(path, entry.stat(follow_symlinks=False).st_size, named=False)


def _ignored(path: str, folder: bool, rules: list[_Rules]) -> bool:
    """As git decides: the deepest `.gitignore` that says anything about the path."""
    if not rules:
        return False
    absolute = _with_slashes(os.path.abspath(path)) + ("/" if folder else "")
    for prefix, spec in reversed(rules):
        verdict = _verdict(spec, absolute[len(prefix) :])
        if verdict is not None:
            return verdict
    return False


def _verdict(spec: GitIgnoreSpec, path: str) -> bool | None:
    """What the last pattern that matches says; None where none does."""
    for pattern in reversed(spec.patterns):
        regex = pattern.regex
        if pattern.include is not None and regex is not None and _matches(regex, path):
            return pattern.include
    return None


def _matches(regex: re.Pattern[str], path: str) -> bool:
    """Whether a pattern matches the path itself, as for git, and not only a folder above it.

    pathspec's expressions have the group `ps_d` where a folder may have been matched; folders
    above were judged on the way down. Those without it (`a/**`) mean what is in a folder.
    """
    if "ps_d" not in regex.groupindex:
        return regex.search(path.rstrip("/")) is not None
    return any(match.end("ps_d") in (-1, len(path)) for match in regex.finditer(path))


def _rules_above(folder: str) -> list[_Rules]:
    """Rules of the parents up to the repository's root; none outside a repository.

    None as well for a folder that they exclude: who names it wants what is in it.
    """
    if os.path.exists(os.path.join(folder, ".git")):
        return []
    parents, parent = [], os.path.dirname(os.path.abspath(folder))
    while True:
        parents.append(parent)
        if os.path.exists(os.path.join(parent, ".git")):
            break
        if parent == os.path.dirname(parent):
            return []
        parent = os.path.dirname(parent)
    rules = [rule for parent in reversed(parents) for rule in _rules_in(parent)]
    return [] if _ignored(folder, True, rules) else rules


def _rules_in(folder: str) -> list[_Rules]:
    try:
        with open(os.path.join(folder, ".gitignore"), "rb") as file:
            lines = file.read().decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
    except OSError:
        return []
    prefix = _with_slashes(os.path.abspath(folder)).rstrip("/") + "/"
    return [_Rules(prefix, _spec(lines))]


def _spec(lines: list[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:  # a pattern that git passes over in silence
        return GitIgnoreSpec.from_lines(line for line in lines if _is_pattern(line))


def _is_pattern(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def _with_slashes(path: str) -> str:
    return path.replace(os.sep, "/")


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
