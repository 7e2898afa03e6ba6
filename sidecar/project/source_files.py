"""Reads the files of footprints: each file once, only inside some folders, and within limits.

What files contained in a git revision is read here, too, and can stand in for their contents.
Symbolic links are resolved before the folder is compared. A repository may be hostile, so it must
not make this process read a file outside of it, or read without an end.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from sidecar.errors import BadParamsError
from sidecar.operating_system import NO_FOLLOW, open_to_read
from sidecar.project import git
from sidecar.project.files import decode, walk
from sidecar.project.loading_rules import prompt_file_names
from sidecar.text.globs import PathGlobs, path_glob_problem

OUTSIDE = "not read: it is outside the project"
MAX_BYTES = 4 << 20
"""Maximum size of a file in bytes."""
TOO_LARGE = f"not read: it is larger than {MAX_BYTES >> 20} MB"
MAX_TEXT = 64 << 20
"""Maximum size of all files together in bytes."""
TOO_MUCH = f"not read: the files exceed {MAX_TEXT >> 20} MB"
MAX_ENTRIES = 20_000
"""Maximum number of files and folders that are listed in a folder and its subfolders."""
MAX_DEPTH = 12
"""Maximum number of levels of subfolders that are listed."""
MAX_BELOW = 100_000
"""Maximum number of files among which those that are sent later are looked for.

Of the files that git lists, only prompt files count.
"""


# The little-endian mark of UTF-32 begins with that of UTF-16.
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_DOTS = ("", ".", "..")


class SourceFile(NamedTuple):
    """A file. If it could not be read, `data` is empty and `note` explains why."""

    real: str
    """The path with all links resolved."""
    data: bytes
    """The contents. UTF-16 and UTF-32 with a byte order mark are converted to UTF-8, because it is
    not known what agents make of them."""
    note: str = ""
    head: bytes = b""
    """The beginning of a file that is too large to be read."""
    size: int = 0
    """The size of this file in bytes."""

    @property
    def text(self) -> str:
        """The text, in which bytes that are not UTF-8 are surrogates, so that offsets are exact."""
        return self.data.decode("utf-8", "surrogateescape")


class Unread(NamedTuple):
    """Stands in for the contents of a file that cannot be read."""

    note: str


Contents: TypeAlias = bytes | Unread | None
"""What stands in for a file. None stands for no file."""


class SourceFiles:
    """Reads files for the footprints of several agents, and remembers them.

    Args:
        replaced: Contents that stand in for those of files, by path.
        below: The paths of the project's files, if not all of those below the start folder are
            looked for. Listing them takes longest.
    """

    def __init__(
        self,
        replaced: Mapping[str, Contents] | None = None,
        *,
        below: Iterable[str] | None = None,
    ) -> None:
        self.opened = 0
        """The number of files that were opened."""
        self.listed = 0
        """The number of files and folders that were listed."""
        self._replaced = replaced or {}
        self._below_paths = below
        self._size = 0
        self._files: dict[str, SourceFile] = {}
        self._exists: dict[str, bool] = {}
        self._real: dict[str, str] = {}
        self._real_folders: dict[str, str] = {}
        self._real_tops: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._below: dict[str, tuple[str, ...]] = {}
        self._found: dict[tuple[str, int], tuple[str, ...]] = {}
        self._outside: dict[tuple[str, int], list[str]] = {}
        """The linked folders that are not listed, because they lead out of those that may be."""
        self.partly_listed: set[str] = set()
        """The folders with too many files to list."""
        self.folders: dict[str, int] = {}
        """The folders that were listed with their subfolders, and how many files are in each.

        They may not exist.
        """
        self._settings: dict[str, dict[str, Any]] = {}

    @property
    def looked_up(self) -> frozenset[str]:
        """The files that were looked for, except those in `folders`. They may not exist."""
        below = (os.path.join(top, name) for top, names in self._below.items() for name in names)
        return frozenset((*self._exists, *below))

    def exists(self, path: str) -> bool:
        """Return whether a path is a regular file, or a link to one."""
        replaced = self._replaced_path(path)
        if replaced is not None:
            self._exists[path] = self._replaced[replaced] is not None
        elif path not in self._exists:
            try:
                self._exists[path] = stat.S_ISREG(os.stat(path).st_mode)
            except (OSError, ValueError):  # ValueError: the path contains a NUL
                self._exists[path] = False
        return self._exists[path]

    def real(self, path: str) -> str:
        """Return a path with all links resolved."""
        if path not in self._real:
            try:
                folder, name = os.path.split(path)
                # What stands for a file is not a link.
                if path in self._replaced or (name not in _DOTS and not os.path.islink(path)):
                    self._real[path] = os.path.join(self._real_folder(folder), name)
                else:
                    self._real[path] = os.path.realpath(path)
            except (OSError, ValueError):
                self._real[path] = path
        return self._real[path]

    def _real_folder(self, folder: str) -> str:
        """Return a folder with all links resolved. Many files are in the same folder."""
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder)
        return self._real_folders[folder]

    def is_inside(self, path: str, folders: Iterable[str]) -> bool:
        """Return whether a path is inside one of some folders, after all links are resolved."""
        key = tuple(folders)
        if key not in self._real_tops:
            self._real_tops[key] = tuple(os.path.join(self.real(one), "") for one in key)
        return os.path.join(self.real(path), "").startswith(self._real_tops[key])

    def read(self, path: str, inside: Sequence[str]) -> SourceFile:
        """Read a file that exists, if it is inside one of some folders."""
        real = self.real(path)
        if not self.is_inside(path, inside):
            return SourceFile(real, b"", OUTSIDE)
        replaced = self._replaced_path(path)
        if replaced is not None:
            return _stand_in(real, self._replaced[replaced])
        if real not in self._files:
            self._files[real] = self._open(real)
        return self._files[real]

    def _replaced_path(self, path: str) -> str | None:
        """Return the path under which something stands for a file, or for what it links to."""
        if not self._replaced or path in self._replaced:
            return path if self._replaced else None
        real = self.real(path)
        return real if real in self._replaced else None

    def data(self, path: str) -> bytes:
        """Return the contents of a file that has been read."""
        replaced = self._replaced_path(path)
        if replaced is not None:
            return _stand_in(path, self._replaced[replaced]).data
        return self._files[self.real(path)].data

    def _open(self, real: str) -> SourceFile:
        if self._size > MAX_TEXT:
            return SourceFile(real, b"", TOO_MUCH)
        try:
            descriptor = open_to_read(real, NO_FOLLOW)
            with open(descriptor, "rb", buffering=0) as file:
                self.opened += 1
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    return SourceFile(real, b"", "not read: it is not a regular file")
                size = status.st_size
                # A buffer for the largest file would take longer than most files.
                data = file.read(min(max(size, 1 << 16), MAX_BYTES) + 1)
        except OSError as error:
            return SourceFile(real, b"", f"not read: {error.strerror or 'it cannot be opened'}")
        self._size += len(data)
        if len(data) > MAX_BYTES:
            return SourceFile(real, b"", TOO_LARGE, data[:MAX_BYTES], size)
        return SourceFile(real, _as_utf8(data))

    def find(self, folder: str, pattern: str, inside: Sequence[str]) -> list[str]:
        """Return the paths of the files in a folder that match a pattern, sorted.

        Linked folders that may not be listed are returned, too. Reading them says why.

        Args:
            folder: The folder.
            pattern: A path in which `*` stands for a name or a part of one, and `**/` for any
                folders.
            inside: The folders that may be listed.
        """
        names = pattern.split("/")
        fixed = next((index for index, name in enumerate(names) if _is_pattern(name)), len(names))
        top, rest = os.path.join(folder, *names[:fixed]), "/".join(names[fixed:])
        globs = _globs(rest)
        if globs is None:
            return []
        depth = MAX_DEPTH if "**" in rest else rest.count("/") + 1
        found = [name for name in self._list(top, depth, inside) if globs.matches_file(name)]
        for name in self._replaced_in(top) if self.is_inside(top, inside) else ():
            if name.count("/") < depth and globs.matches_file(name):
                is_file = self.exists(os.path.join(top, name))
                found = [one for one in found if one != name] + [name] * is_file
        found += self._outside[top, depth]
        return [os.path.join(top, name) if name else top for name in sorted(found)]

    def _replaced_in(self, top: str) -> Iterator[str]:
        """Yield the relative paths of what stands for files in a folder and its subfolders."""
        for prefix in {os.path.join(folder, "") for folder in (top, self.real(top))}:
            for path in self._replaced:
                if path.startswith(prefix):
                    yield path[len(prefix) :].replace(os.sep, "/")

    def _list(self, top: str, depth: int, inside: Sequence[str]) -> tuple[str, ...]:
        key = top, depth
        if key not in self._found:
            self._outside[key] = []
            self._found[key] = tuple(islice(self._walk(top, depth, inside), MAX_ENTRIES))
            if self.is_inside(top, inside):
                self.folders[top] = max(self.folders.get(top, 0), len(self._found[key]))
        return self._found[key]

    def _walk(self, top: str, depth: int, inside: Sequence[str]) -> Iterator[str]:
        """Yield the paths of files relative to a folder. Each real folder is listed once."""
        waiting, seen, listed = [("", 1)], set[str](), 0
        while waiting:
            folder, level = waiting.pop()
            path = os.path.join(top, folder)
            real = self.real(path)
            if real in seen:
                continue
            if not self.is_inside(path, inside):
                if os.path.isdir(path):
                    self._outside[top, depth].append(folder)
                continue
            seen.add(real)
            try:
                with os.scandir(path) as entries:
                    some = sorted(islice(entries, MAX_ENTRIES - listed), key=_name_of)
            except (OSError, ValueError):
                continue
            listed += len(some)
            if listed >= MAX_ENTRIES:
                self.partly_listed.add(top)
            self.listed += len(some)
            self._keep_real(path, real, some)
            inner = []
            for entry in some:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if not _is_folder(entry):
                    yield name
                elif level < depth:
                    inner.append((name, level + 1))
            waiting += reversed(inner)

    def _keep_real(self, path: str, real: str, entries: Iterable[os.DirEntry[str]]) -> None:
        """Keep the real paths of what is listed in a folder, so that it is not looked at again."""
        for entry in entries:
            if not entry.is_symlink():
                self._real[os.path.join(path, entry.name)] = os.path.join(real, entry.name)

    def below(self, start: str) -> tuple[str, ...]:
        """Return the relative paths of the prompt files in a project, as git lists its files."""
        if start not in self._below:
            names, prefix = prompt_file_names(), start.rstrip(os.sep) + os.sep
            entries = (
                _walk_project(start, names) if self._below_paths is None else self._below_paths
            )
            paths = [one for one in entries if os.path.basename(one) in names]
            if self._below_paths is None:
                replaced = (os.path.join(start, one) for one in self._replaced_in(start))
                paths += [path for path in replaced if os.path.basename(path) in names]
            self._below[start] = tuple(
                os.path.relpath(path, start)
                for path in dict.fromkeys(paths)
                if path.startswith(prefix)
                and (self._replaced_path(path) is None or self.exists(path))
            )
        return self._below[start]

    def settings(self, path: str, inside: Sequence[str]) -> Mapping[str, Any]:
        """Return the settings in a JSON, TOML or YAML file. Missing files have none."""
        if path not in self._settings:
            exists = self.exists(path)
            text = self.read(path, inside).data.decode("utf-8-sig", "replace") if exists else ""
            self._settings[path] = _parse_settings(path, text) if text else {}
        return self._settings[path]


def _stand_in(real: str, contents: Contents) -> SourceFile:
    if isinstance(contents, Unread):
        return SourceFile(real, b"", contents.note)
    return SourceFile(real, _as_utf8(contents or b""))


def _as_utf8(data: bytes) -> bytes:
    """Convert UTF-16 and UTF-32 with a byte order mark to UTF-8, as when files are counted."""
    if not data.startswith(_WIDE_MARKS):
        return data
    decoded = decode(data)
    return data if decoded is None else decoded.text.encode("utf-8", "replace")


def _walk_project(start: str, names: Container[str]) -> Iterator[str]:
    for entry in islice(walk(start, names), MAX_BELOW):
        yield entry if isinstance(entry, str) else getattr(entry, "path", "")


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name or "[" in name


@lru_cache(maxsize=256)
def _globs(pattern: str) -> PathGlobs | None:
    if not pattern or path_glob_problem(pattern) is not None:
        return None
    return PathGlobs([f"/{pattern}"])


def _name_of(entry: os.DirEntry[str]) -> str:
    return entry.name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _parse_settings(path: str, text: str) -> dict[str, Any]:
    from sidecar import typed
    from sidecar.agents.file_reading import without_comments
    from sidecar.config import toml
    from sidecar.text.prompt_markdown import read_yaml

    try:
        if path.endswith(".toml"):
            return toml.parse(text)
        if path.endswith((".yml", ".yaml")) and not text.lstrip().startswith("{"):
            return dict(read_yaml(text))
        return typed.decode(without_comments(text), dict[str, Any])
    except (ValueError, msgspec.DecodeError):
        return {}


_REGULAR = b"100"
_LINK = b"120000"
_SUBMODULE = b"160000"


class _Change(NamedTuple):
    path: str
    """The path relative to the folder that was compared."""
    mode: bytes
    blob: bytes | None
    """The id of the old object. None if the file is new."""


def read_old_texts(folder: Path, base: str, paths: Container[str]) -> dict[str, str]:
    """Return what each changed file contained in a revision, or "" for a new or binary file.

    A renamed file is compared with what it was renamed from.

    Args:
        folder: The root folder, which must be in a git work tree.
        base: The revision.
        paths: The files to compare, relative to the root folder. Deleted files are always compared.

    Raises:
        BadParamsError: git cannot compare the files with `base`.
    """
    try:
        changes = [
            change
            for change in _find_changes(folder, base, "-M")
            if (
                change.path in paths
                if os.path.lexists(folder / change.path)
                else change.mode.startswith(_REGULAR)
            )
        ]
        contents = _read_blobs(folder, (change.blob for change in changes))
    except git.GitError as error:
        raise BadParamsError(f"--diff: git cannot compare the files: {error}") from error
    texts = {change.path: decode(contents.get(change.blob, b"")) for change in changes}
    return {path: text.text if text else "" for path, text in texts.items()}


def read_old_files(folder: Path, base: str) -> dict[str, Contents]:
    """Return what each file of a repository that differs from a revision contained in it.

    Args:
        folder: A folder in the repository.
        base: The revision.

    Returns:
        The contents by absolute path, or None for a file that the revision does not have. A link
        has the contents of the file that it led to.

    Raises:
        GitError: The folder is not in a repository, or there is no such revision.
    """
    top = git.find_top(Path(os.path.abspath(folder)))
    if top is None:
        raise git.GitError("this is not a git repository")
    changes = [
        change for change in _find_changes(top, base, "--no-renames") if change.mode != _SUBMODULE
    ]
    contents = _read_small_blobs(top, (change.blob for change in changes))
    old = {
        change.path: contents.get(change.blob)
        for change in changes
        if change.blob is None or change.blob in contents
    }
    links = {
        change.path: os.fsdecode(target)
        for change in changes
        if change.mode == _LINK and isinstance(target := old.get(change.path), bytes)
    }
    old |= {path: _follow(top, path, links, old) for path in links}
    tops = dict.fromkeys((str(top), os.path.realpath(top)))
    return {os.path.join(each, path): data for each in tops for path, data in old.items()}


def _find_changes(folder: Path, base: str, renames: str) -> Iterator[_Change]:
    """Yield the files in a folder that differ from a revision. Raises GitError."""
    tree = git.resolve_tree(folder, base)
    options = ("--raw", "-z", "--no-abbrev", "--relative", renames)
    fields = iter(git.run(folder, "diff", *options, tree, "--").split(b"\0"))
    known = set[bytes]()
    for header in filter(None, fields):
        mode, _, blob, _, status = header.split(b" ")
        path = next(fields)
        if status[:1] in (b"R", b"C"):
            path = next(fields)
        known.add(path)
        yield _Change(os.fsdecode(path), mode[1:], blob if blob.strip(b"0") else None)
    new = git.run(folder, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    yield from (_Change(os.fsdecode(path), b"", None) for path in new if path and path not in known)


def _read_small_blobs(top: Path, ids: Iterable[bytes | None]) -> dict[bytes | None, Contents]:
    """Return the contents of objects by id. Those that are too large are `Unread`."""
    wanted = list(filter(None, dict.fromkeys(ids)))
    lines = b"".join(blob + b"\n" for blob in wanted)
    sizes = git.run(top, "cat-file", "--batch-check=%(objectsize)", stdin=lines) if wanted else b""
    left, small = MAX_TEXT, list[bytes]()
    found: dict[bytes | None, Contents] = {}
    sized = zip(sizes.split(b"\n"), wanted, strict=False)
    # Small files come first, because instructions are small.
    for size, blob in sorted((int(size), blob) for size, blob in sized if size.isdigit()):
        if size > min(MAX_BYTES, left):
            found[blob] = Unread(TOO_LARGE if size > MAX_BYTES else TOO_MUCH)
        else:
            left -= size
            small.append(blob)
    return found | _read_blobs(top, small)


def _read_blobs(folder: Path, ids: Iterable[bytes | None]) -> dict[bytes | None, bytes]:
    """Return the contents of objects by id. Other objects, such as commits, are left out."""
    # Object ids are used because file names can contain line breaks.
    wanted = list(filter(None, dict.fromkeys(ids)))
    lines = b"".join(blob + b"\n" for blob in wanted)
    answer, at = git.run(folder, "cat-file", "--batch", stdin=lines) if wanted else b"", 0
    found: dict[bytes | None, bytes] = {}
    for blob in wanted:
        header = answer[at : at + 4096].partition(b"\n")[0]
        at += len(header) + 1
        _, *kind = header.split(b" ")
        # The answer for a submodule has no size, because its commit is in another repository.
        if len(kind) == 2:
            if kind[0] == b"blob":
                found[blob] = answer[at : at + int(kind[1])]
            at += int(kind[1]) + 1
    return found


def _follow(
    top: Path, link: str, links: Mapping[str, str], old: Mapping[str, Contents]
) -> Contents:
    """Return the old contents of the file that a link led to, if it is in the repository."""
    path = os.path.normpath(os.path.join(os.path.dirname(link), links[link]))
    if path in links:  # to a link that has also changed
        return None
    if path in old:
        return old[path]
    real = os.path.realpath(top / path)
    if not os.path.isfile(real):
        return None
    if not Path(real).is_relative_to(os.path.realpath(top)):
        return Unread(OUTSIDE)
    try:
        with open(real, "rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return None
