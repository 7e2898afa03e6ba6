"""Finds and reads the text files that are named on the command line.

Files in a folder are left out if `.gitignore` excludes them, as are `.git`, binary files and
symbolic links. A file that the user names is always included.
"""

from __future__ import annotations

import codecs
import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple, TypeGuard

from sidecar.workspace.ignoring import (
    NAME,
    IgnoreRules,
    is_ignored_at,
    read_parent_rules,
    read_rules,
    with_slashes,
)

STDIN = "-"
_BINARY_SEARCHED = 8_000  # bytes: as many as git looks at
_ENDLESS = 256 * 1024 * 1024  # bytes: from here on what is no regular file is given up
# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class File(NamedTuple):
    """A file, with its size in bytes. Standard input has the path `-` and the size 0.

    `named` means that the user named this path rather than a folder.
    """

    path: str
    size: int
    named: bool


class Skipped(NamedTuple):
    """A path that is not read. `failed` means that the user named it."""

    path: str
    reason: str
    failed: bool


Stamp = tuple[int, int]
"""A file's modification time in ns and its size in bytes."""


class Text(NamedTuple):
    """A file's text. `damaged` means that undecodable bytes were replaced by U+FFFD."""

    text: str
    damaged: bool


class Link(NamedTuple):
    """A symbolic link in a folder."""

    path: str


class _Folder(NamedTuple):
    path: str
    rules: list[IgnoreRules]


def find(paths: Iterable[str]) -> Iterator[File | Skipped]:
    """Yield the files at some paths and in folders. Never raises OSError."""
    for path in paths:
        if path == STDIN:
            yield File(STDIN, 0, named=True)
            continue
        path = os.path.normpath(path)
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            yield Skipped(path, _reason_of(error), failed=True)
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from map(_file_or_skipped, filter(_is_no_link, walk(path)))
        else:
            yield File(path, status.st_size, named=True)


def _is_no_link(path: str | Link | Skipped) -> TypeGuard[str | Skipped]:
    return not isinstance(path, Link)


def _file_or_skipped(path: str | Skipped) -> File | Skipped:
    if isinstance(path, Skipped):
        return path
    try:
        return File(path, os.lstat(path).st_size, named=False)
    except OSError as error:
        return Skipped(path, _reason_of(error), failed=False)


def stamp_of(path: str | os.PathLike[str]) -> Stamp | None:
    """Return a file's stamp, or None if there is no file. Blocking."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in a name
        return None
    return status.st_mtime_ns, status.st_size


def read(file: File) -> Text | Skipped:
    """Read a file or standard input. Returns Skipped if it is binary or unreadable."""
    try:
        data = sys.stdin.buffer.read() if file.path == STDIN else read_bytes(file.path)
    except OSError as error:
        return Skipped(file.path, _reason_of(error), failed=file.named)
    return decode(data) or Skipped(file.path, "binary file", failed=False)


def read_bytes(path: str) -> bytes:
    """Read a file or a pipe. Raises OSError, also for a device without an end."""
    with open(path, "rb") as stream:
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return stream.read()
        data = stream.read(_ENDLESS + 1)
    if len(data) > _ENDLESS:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def decode(data: bytes) -> Text | None:
    """Decode a file without changing its line ends. Returns None for a binary file."""
    encoding = encoding_of(data)
    if encoding is None:
        return None
    try:
        return Text(data.decode(encoding), damaged=False)
    except UnicodeDecodeError:
        return Text(data.decode(encoding, "replace"), damaged=True)


def encoding_of(data: bytes) -> str | None:
    """Return the encoding, or None for a binary file.

    As in git, a file is binary if its first 8,000 bytes contain a NUL and no byte order mark.
    """
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    if encoding is None and b"\0" not in data[:_BINARY_SEARCHED]:
        return "utf-8"
    return encoding


def walk(top: str) -> Iterator[str | Link | Skipped]:
    """Yield the files and links in a folder, sorted by name.

    Uses a stack, because folders may be nested deeper than Python's recursion limit.
    """
    stack = [_walk_folder(top, read_parent_rules(top), named=True)]
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
        elif isinstance(entry, _Folder):
            stack.append(_walk_folder(entry.path, entry.rules, named=False))
        else:
            yield entry


def _walk_folder(
    folder: str, rules: list[IgnoreRules], *, named: bool
) -> Iterator[str | Link | Skipped | _Folder]:
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=attrgetter("name"))
    except OSError as error:
        yield Skipped(folder, _reason_of(error), named)
        return
    if any(entry.name == NAME for entry in entries):
        own = read_rules(folder, rules)
        rules = [*rules, *own]
        yield from refused_rules(own, folder)
    lead = "" if folder == os.curdir else os.path.join(folder, "")
    absolute = with_slashes(os.path.join(os.path.abspath(folder), ""))
    for entry in entries:
        name, inner = entry.name, entry.is_dir(follow_symlinks=False)
        if name == ".git" or is_ignored_at(absolute + name, inner, rules):
            continue
        if inner:
            yield _Folder(lead + name, rules)
        elif entry.is_file(follow_symlinks=False):
            yield lead + name
        elif entry.is_symlink():
            yield Link(lead + name)


def refused_rules(rules: list[IgnoreRules], folder: str) -> Iterator[Skipped]:
    """Yield the folder's `.gitignore` if some of its rules were not read."""
    path = os.path.normpath(os.path.join(folder, NAME))
    yield from [Skipped(path, rule.problem, failed=False) for rule in rules if rule.problem]


def _reason_of(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
