"""Reads what the files of a repository contained in a git revision."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sidecar.errors import BadParamsError
from sidecar.project import git
from sidecar.project.files import decode
from sidecar.project.source_files import (
    MAX_BYTES,
    MAX_TEXT,
    OUTSIDE,
    TOO_LARGE,
    TOO_MUCH,
    Contents,
    Unread,
)

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
