"""Reads what the files of a repository contained in a git revision."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sidecar.project import git
from sidecar.project.source_files import (
    MAX_BYTES,
    MAX_TEXT,
    OUTSIDE,
    TOO_LARGE,
    TOO_MUCH,
    Contents,
    Unread,
)

_LINK = b"120000"
_SUBMODULE = b"160000"


class _Change(NamedTuple):
    path: str
    mode: bytes
    blob: bytes | None
    """The id of the old object. None if the file is new."""


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
    changes = list(_find_changes(top, base))
    contents = _read_blobs(top, (change.blob for change in changes if change.blob is not None))
    old: dict[str, Contents] = {
        change.path: None if change.blob is None else contents[change.blob]
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


def _find_changes(top: Path, base: str) -> Iterator[_Change]:
    tree = git.resolve_tree(top, base)
    options = ("--raw", "-z", "--no-abbrev", "--no-renames")
    fields = iter(git.run(top, "diff", *options, tree, "--").split(b"\0"))
    for header in fields:
        if not header:
            break
        mode, _, blob, _, _ = header.split(b" ")
        path = os.fsdecode(next(fields))
        if mode != b":" + _SUBMODULE:
            yield _Change(path, mode[1:], blob if blob.strip(b"0") else None)
    new = git.run(top, "ls-files", "--others", "--exclude-standard", "-z")
    yield from (_Change(os.fsdecode(name), b"", None) for name in new.split(b"\0") if name)


def _read_blobs(top: Path, ids: Iterable[bytes]) -> dict[bytes, bytes | Unread]:
    """Return the contents of objects by id. Those that are too large are `Unread`."""
    wanted = [blob + b"\n" for blob in dict.fromkeys(ids)]
    if not wanted:
        return {}
    sizes = git.run(top, "cat-file", "--batch-check=%(objectsize)", stdin=b"".join(wanted)).split(
        b"\n"
    )
    left, small = MAX_TEXT, []
    found: dict[bytes, bytes | Unread] = {}
    sized = zip(sizes, wanted, strict=False)
    # Small files come first, because instructions are small.
    for size, blob in sorted((int(size), blob) for size, blob in sized if size.isdigit()):
        if size > min(MAX_BYTES, left):
            found[blob.strip()] = Unread(TOO_LARGE if size > MAX_BYTES else TOO_MUCH)
        else:
            left -= size
            small.append(blob)
    answer = git.run(top, "cat-file", "--batch", stdin=b"".join(small)) if small else b""
    at = 0
    for blob in small:
        header = answer[at : at + 4096].partition(b"\n")[0]
        at += len(header) + 1
        end = at + int(header.rpartition(b" ")[2])
        found[blob.strip()] = answer[at:end]
        at = end + 1
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
