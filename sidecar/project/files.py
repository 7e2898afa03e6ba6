"""Finds and reads text files for the command line and for budgets that cover several files.

In a git work tree, git lists the files of a folder: the tracked ones, and the untracked ones that
it does not ignore. Elsewhere, folders are searched, and `.gitignore` files apply as in git. Other
repositories inside the folder are then listed by git. Binary files and symbolic links are skipped.
Files that the user names explicitly are always included.

Folders may be hostile, so the number and length of `.gitignore` patterns are limited.
"""

from __future__ import annotations

import codecs
import errno
import os
import stat
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sidecar.config.safe_files import RefusedError, read_regular
from sidecar.text.globs import IgnoreGlobs, path_glob_problem

if TYPE_CHECKING:
    from sidecar.project.git import GitFile

NAME = ".gitignore"
MAX_LINES = 10_000
MAX_WILDCARDS = 500
"""Maximum number of wildcards in the `.gitignore` files of a folder and its parents.

The asterisk in patterns such as `*.log` does not count because these patterns are fast.
"""


class IgnoreRules(NamedTuple):
    """The patterns of one `.gitignore`. They apply to paths that start with `prefix`.

    `problem` explains why some of the patterns were skipped.
    """

    prefix: str
    globs: IgnoreGlobs
    problem: str | None = None
    lines: int = 0
    wildcards: int = 0


def read_rules(folder: str, above: Sequence[IgnoreRules] = ()) -> list[IgnoreRules]:
    """Read a folder's `.gitignore`. Patterns in parent folders count towards the limits."""
    path = os.path.join(folder, NAME)
    if os.path.islink(path):
        return []
    prefix = with_slashes(os.path.abspath(folder)).rstrip("/") + "/"
    try:
        data = read_regular(path)
    except RefusedError as error:
        return [IgnoreRules(prefix, IgnoreGlobs(()), error.strerror)]
    except OSError:
        return []
    return [_parse_rules(prefix, _split_lines(data), above)]


def is_ignored_at(absolute: str, folder: bool, rules: list[IgnoreRules]) -> bool:
    """Return whether an absolute path (with `/` as the separator) is ignored."""
    for rule in reversed(rules):
        verdict = rule.globs.verdict(absolute[len(rule.prefix) :], folder=folder)
        if verdict is not None:
            return verdict
    return False


def _split_lines(data: bytes) -> list[str]:
    text = os.fsdecode(data).removeprefix("\ufeff")
    return [line.removesuffix("\r") for line in text.split("\n")]


def _parse_rules(prefix: str, lines: list[str], above: Sequence[IgnoreRules]) -> IgnoreRules:
    most_lines = MAX_LINES - sum(rule.lines for rule in above)
    most_wildcards = MAX_WILDCARDS - sum(rule.wildcards for rule in above)
    problem = f"it has more than {MAX_LINES:,} lines" if len(lines) > most_lines else None
    kept, used = [], 0
    for line in lines[: max(0, most_lines)]:
        if line.startswith("#"):
            continue
        wrong, more = path_glob_problem(line), _count_wildcards(line)
        if used + more > most_wildcards:
            wrong = wrong or f"it has more than {MAX_WILDCARDS:,} wildcards"
        problem = problem or wrong
        if not wrong:
            kept.append(line)
            used += more
    cut = problem and f"not read in full: {problem}"
    return IgnoreRules(prefix, IgnoreGlobs(kept), cut, min(len(lines), max(0, most_lines)), used)


def _count_wildcards(line: str) -> int:
    pattern = line.removeprefix("!")
    known = "/" not in pattern[:-1] and pattern.startswith("*")
    return sum(pattern.count(wildcard) for wildcard in "*?[") - known


def with_slashes(path: str) -> str:
    return path.replace(os.sep, "/")


STDIN = "-"
_BINARY_CHECK_BYTES = 8_000  # in bytes, as in git
# Reading an endless device stops after this many bytes.
_MAX_STREAM_BYTES = 256 * 1024 * 1024
# UTF-32 comes first because its little-endian BOM starts with the UTF-16 BOM.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class File(NamedTuple):
    """A file and its size in bytes. Standard input has the path `-` and size 0.

    `named` means that the user named the file itself rather than a folder above it.
    """

    path: str
    size: int
    named: bool
    is_stdin: bool = False
    """Whether this is standard input. A file can also be called `-`."""


class SkippedPath(NamedTuple):
    """A path that was skipped, with the reason. `failed` is true if the user named the path
    explicitly.
    """

    path: str
    reason: str
    failed: bool


class Text(NamedTuple):
    """A file's text. `damaged` means that undecodable bytes were replaced with U+FFFD."""

    text: str
    damaged: bool


class SymbolicLink(NamedTuple):
    """A symbolic link found in a folder."""

    path: str


class AbsentFile(NamedTuple):
    """A tracked file that a sparse checkout leaves out."""

    path: str


_Entry = str | SymbolicLink | AbsentFile | SkippedPath


class _Folder(NamedTuple):
    path: str
    rules: list[IgnoreRules]


def find(paths: Iterable[str]) -> Iterator[File | SkippedPath]:
    """Yield the given files, all files in the given folders, and paths that cannot be read."""
    for path in paths:
        if path == STDIN:
            yield File(STDIN, 0, named=True, is_stdin=True)
        else:
            yield from _find_at(os.path.normpath(path))


def _find_at(path: str) -> Iterator[File | SkippedPath]:
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        yield SkippedPath(path, _reason_of(error), failed=True)
        return
    if stat.S_ISDIR(status.st_mode):
        for entry in walk(path):
            if isinstance(entry, str | SkippedPath):
                yield _file_or_skipped(entry)
    else:
        yield File(path, status.st_size, named=True)


def _file_or_skipped(path: str | SkippedPath) -> File | SkippedPath:
    if isinstance(path, SkippedPath):
        return path
    try:
        return File(path, os.lstat(path).st_size, named=False)
    except OSError as error:
        return SkippedPath(path, _reason_of(error), failed=False)


def read(file: File) -> Text | SkippedPath:
    """Read a file or standard input. Returns SkippedPath if it is binary or unreadable."""
    try:
        data = sys.stdin.buffer.read() if file.is_stdin else read_bytes(file.path)
    except OSError as error:
        return SkippedPath(file.path, _reason_of(error), failed=file.named)
    return decode(data) or report_binary(file.path)


def report_binary(path: str) -> SkippedPath:
    return SkippedPath(path, "binary file", failed=False)


def read_bytes(path: str) -> bytes:
    """Read a file or a pipe. Raises OSError if it is unreadable or endless."""
    with open(path, "rb") as stream:
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return stream.read()
        data = stream.read(_MAX_STREAM_BYTES + 1)
    if len(data) > _MAX_STREAM_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def decode(data: bytes) -> Text | None:
    """Decode a file's contents. Line endings are preserved.

    Returns None for binary files.
    """
    encoding = encoding_of(data)
    if encoding is None:
        return None
    try:
        return Text(data.decode(encoding), damaged=False)
    except UnicodeDecodeError:
        return Text(data.decode(encoding, "replace"), damaged=True)


def encoding_of(data: bytes) -> str | None:
    """Return the encoding of a file's contents, or None for binary files.

    A file is binary if its first 8,000 bytes contain a NUL (as in git), unless it starts with
    a byte order mark.
    """
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    if encoding is None and b"\0" not in data[:_BINARY_CHECK_BYTES]:
        return "utf-8"
    return encoding


def walk(top: str, names: Container[str] | None = None) -> Iterator[_Entry]:
    """Yield the files and links in a folder and its subfolders, sorted by name.

    Not recursive, because folders may be nested deeper than Python's recursion limit.

    Args:
        top: The folder.
        names: The names that the caller looks for. Files of other names that git lists are left
            out, and not looked at.
    """
    stack = [_list_folder(_Folder(top, []), names, is_top=True)]
    seen: set[_Entry] = set()
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
        elif isinstance(entry, _Folder):
            stack.append(_list_folder(entry, names, is_top=False))
        elif entry not in seen:
            seen.add(entry)
            yield entry


def _list_folder(
    folder: _Folder, names: Container[str] | None, *, is_top: bool
) -> Iterator[_Entry | _Folder]:
    from sidecar.project.git import GitError, list_files

    listing = None
    if is_top or os.path.lexists(os.path.join(folder.path, ".git")):
        try:
            listing = list_files(folder.path)
        except GitError as error:
            reason = f"git cannot list its files ({error})"
            yield SkippedPath(folder.path, reason, failed=True)
            return
    if listing is None or listing.is_ignored:
        # The user named an ignored folder, so git's rules must not exclude its files.
        yield from _search_folder(folder, is_top=is_top)
    if listing is not None:
        wanted = (one for one in listing.files if _is_wanted(one.path, names))
        yield from _git_entries(folder.path, wanted)


def _is_wanted(path: str, names: Container[str] | None) -> bool:
    return names is None or os.path.basename(path) in names


def _git_entries(folder: str, files: Iterable[GitFile]) -> Iterator[_Entry]:
    """Yield the entries for files that git lists. Deleted files and submodules are left out."""
    lead = "" if folder == os.curdir else os.path.join(folder, "")
    real = os.path.realpath(folder)
    is_linked: dict[str, bool] = {"": False}
    for file in sorted(files, key=lambda file: file.path.split(os.sep)):
        path, parent = lead + file.path, os.path.dirname(file.path)
        if parent not in is_linked:
            below = os.path.join(real, parent)
            is_linked[parent] = file.is_tracked and os.path.realpath(below) != below
        try:
            mode = os.lstat(path).st_mode
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                yield SkippedPath(path, _reason_of(error), failed=False)
            elif file.is_skipped:
                yield AbsentFile(path)
            continue
        if stat.S_ISLNK(mode) or is_linked[parent]:
            yield SymbolicLink(path)
        elif stat.S_ISREG(mode):
            yield path
        elif not stat.S_ISDIR(mode):
            yield SkippedPath(path, IRREGULAR, failed=False)


def _search_folder(folder: _Folder, *, is_top: bool) -> Iterator[_Entry | _Folder]:
    path, rules = folder
    try:
        with os.scandir(path) as scan:
            entries = sorted(scan, key=attrgetter("name"))
    except OSError as error:
        yield SkippedPath(path, _reason_of(error), failed=is_top)
        return
    if any(entry.name == NAME for entry in entries):
        own = read_rules(path, rules)
        rules = [*rules, *own]
        name = os.path.normpath(os.path.join(path, NAME))
        yield from (SkippedPath(name, one.problem, failed=False) for one in own if one.problem)
    lead = "" if path == os.curdir else os.path.join(path, "")
    absolute = with_slashes(os.path.join(os.path.abspath(path), ""))
    for entry in entries:
        name, inner = entry.name, entry.is_dir(follow_symlinks=False)
        if name == ".git" or is_ignored_at(absolute + name, inner, rules):
            continue
        if inner:
            yield _Folder(lead + name, rules)
        elif entry.is_file(follow_symlinks=False):
            yield lead + name
        elif entry.is_symlink():
            yield SymbolicLink(lead + name)


def _reason_of(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


OUTSIDE = "not followed: the link points outside the project"
LINKED_FOLDER = "not followed: the link points to a folder"
IRREGULAR = "not a regular file"


class Target(NamedTuple):
    """A file to check, with the requested path and the path relative to the root.

    `relative` uses `/` as the separator. It ends in `/` if the path is an unreadable folder.
    """

    path: str
    relative: str
    link: bool = False
    """Whether the path is a symbolic link in a folder. Only links with a budget are checked."""
    fault: SkippedPath | None = None
    """The reason for skipping the file, or None."""


def group_by_root(paths: Sequence[str], fixed: Path | None) -> dict[Path, list[str]]:
    """Group paths by root folder.

    Args:
        paths: The paths.
        fixed: The root of all paths, if given by the user.

    Raises:
        ValueError: A path is outside `fixed`.
    """

    from sidecar.config.paths import find_root, is_root  # imported late to keep server startup fast

    here = find_root(Path.cwd())
    current = here if fixed is None and is_root(here) else fixed
    roots: dict[Path, list[str]] = {}
    for path in paths:
        root, absolute = current, Path(os.path.abspath(path))
        if root is None or not absolute.is_relative_to(root):
            if fixed is not None:
                raise ValueError(f"{path} is not inside {fixed}")
            root = find_root(absolute)
        roots.setdefault(root, []).append(path)
    return roots


class Targets:
    """Lists the files that `check` reads in one root."""

    def __init__(self, root: Path) -> None:
        self._real = os.path.realpath(root)
        self._top = f"{with_slashes(str(root)).rstrip('/')}/"
        self.absent: list[Target] = []
        """The tracked files that a sparse checkout leaves out."""

    def of(self, paths: Sequence[str]) -> Iterator[Target]:
        """Yield all files at or below the given paths, without duplicates."""
        seen: set[str] = set()
        for path in paths:
            for target in self._targets_below(os.path.normpath(path)):
                if target.relative not in seen:
                    seen.add(target.relative)
                    yield target

    def below(self, paths: Sequence[str], names: Iterable[str]) -> Iterator[Target]:
        """Yield the files at or below the given paths. They need not exist.

        Args:
            paths: The requested files and folders.
            names: The files, relative to the root.
        """
        starts = [os.path.normpath(path) for path in paths]
        folders = [(start, self._relative_name(start)) for start in starts]
        for name in names:
            for start, folder in folders:
                if name == folder:
                    yield Target(start, name)
                elif not folder or name.startswith(f"{folder}/"):
                    inner = name.removeprefix(f"{folder}/") if folder else name
                    yield Target(os.path.normpath(os.path.join(start, inner)), name)
                else:
                    continue
                break

    def _targets_below(self, start: str) -> Iterator[Target]:
        if os.path.isdir(start) and self._is_inside(start):
            yield from self._targets_in_folder(start)
            return
        for entry in _find_at(start):
            if isinstance(entry, File):
                yield self._link_target(start, self._relative_name(start))
            else:
                yield Target(start, self._relative_name(start), fault=entry)

    def _targets_in_folder(self, start: str) -> Iterator[Target]:
        strip = 0 if start == os.curdir else len(os.path.join(start, ""))
        below = f"{self._relative_name(start)}/".removeprefix("/")
        for entry in walk(start):
            path = entry if isinstance(entry, str) else entry.path
            relative = below + with_slashes(path[strip:])
            if isinstance(entry, str):
                yield Target(path, relative)
            elif isinstance(entry, SymbolicLink):
                yield self._link_target(path, relative, is_link=True)
            elif isinstance(entry, AbsentFile):
                self.absent.append(Target(path, relative))
            else:  # the path can be a folder that cannot be listed
                end = "/" if os.path.isdir(path) else ""
                yield Target(path, f"{relative}{end}", fault=entry)

    def _link_target(self, path: str, relative: str, *, is_link: bool = False) -> Target:
        folder = os.path.isdir(path)
        fault = None
        if not self._is_inside(path):
            fault = SkippedPath(path, OUTSIDE, failed=False)
        elif folder:
            fault = SkippedPath(path, LINKED_FOLDER, failed=False)
        elif os.path.exists(path) and not os.path.isfile(path):  # reading a FIFO may block
            fault = SkippedPath(path, IRREGULAR, failed=False)
        return Target(path, f"{relative}/" if folder else relative, link=is_link, fault=fault)

    def _is_inside(self, path: str) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._real)

    def _relative_name(self, path: str) -> str:
        absolute = with_slashes(os.path.abspath(path))
        return f"{absolute.rstrip('/')}/".removeprefix(self._top).rstrip("/")


def drop_duplicate_links(targets: Iterable[Target]) -> list[Target]:
    """Drop links to files that are also in the list, so each file is counted once.

    This call blocks.
    """
    every = list(targets)
    files = [one for one in every if not one.link]
    if len(files) == len(every):
        return files
    known = {os.path.realpath(one.path) for one in files}
    for one in every:
        if one.link and (real := os.path.realpath(one.path)) not in known:
            known.add(real)
            files.append(one)
    return files
