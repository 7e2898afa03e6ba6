"""Lists the files that `check` reads.

A pull request may be hostile: a root marker in a subfolder, a `.gitignore` for tracked files or
a symbolic link must not silently exclude a file from the check.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sidecar.config.load import find_root, is_root
from sidecar.workspace.files import File, Link, Skipped, find, walk
from sidecar.workspace.git import tracked_files
from sidecar.workspace.ignoring import with_slashes

OUTSIDE = "a link out of the project, not followed"
LINKED_FOLDER = "a link to a folder, not followed"
IRREGULAR = "not a regular file"


class Target(NamedTuple):
    """A file to check: the path as requested, and relative to the root with `/`.

    `relative` ends in `/` for a folder that cannot be read.
    """

    path: str
    relative: str
    link: bool = False
    """Whether it is a symbolic link in a folder. Links are only checked if they have a budget."""
    fault: Skipped | None = None
    """Why the file is not read."""


def group_by_root(paths: Sequence[str], fixed: Path | None) -> dict[Path, list[str]]:
    """Group paths by their root.

    Args:
        paths: The paths.
        fixed: The root of all paths, if the user named one.

    Raises:
        ValueError: A path is outside `fixed`.
    """
    here = find_root(Path.cwd())
    current = here if fixed is None and is_root(here) else fixed
    roots: dict[Path, list[str]] = {}
    for path in paths:
        roots.setdefault(root_of(path, current, only=fixed is not None), []).append(path)
    return roots


def root_of(path: str, current: Path | None, *, only: bool) -> Path:
    """Return a path's root: the current project if it contains the path, else the path's own.

    Raises:
        ValueError: With `only`, the path is outside the current project.
    """
    absolute = Path(os.path.abspath(path))
    if current is not None and absolute.is_relative_to(current):
        return current
    if only:
        raise ValueError(f"{path} is not inside {current}")
    return find_root(absolute)


class Targets:
    """Lists the files of one root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._real = os.path.realpath(root)
        self._top = f"{with_slashes(str(root)).rstrip('/')}/"
        self.git_failed = False
        """Whether git failed to list the tracked files."""

    def of(self, paths: Sequence[str]) -> Iterator[Target]:
        """Yield each file of these paths once."""
        seen: set[str] = set()
        for path in paths:
            for target in self._targets_below(os.path.normpath(path)):
                if target.relative not in seen:
                    seen.add(target.relative)
                    yield target

    def _targets_below(self, start: str) -> Iterator[Target]:
        if os.path.isdir(start) and self._is_inside(start):
            yield from self._targets_in_folder(start)
            return
        for entry in find([start]):
            if isinstance(entry, File):
                yield self._link_target(start, self._relative_name(start))
            else:
                yield Target(start, self._relative_name(start), fault=entry)

    def _targets_in_folder(self, start: str) -> Iterator[Target]:
        strip = 0 if start == os.curdir else len(os.path.join(start, ""))
        below = f"{self._relative_name(start)}/".removeprefix("/")
        walked: set[str] = set()
        for file in walk(start):
            if isinstance(file, str):
                walked.add(file)
                yield Target(file, below + with_slashes(file[strip:]))
            elif isinstance(file, Link):
                yield self._link_target(
                    file.path, below + with_slashes(file.path[strip:]), is_link=True
                )
            else:
                end = "/" if os.path.isdir(file.path) else ""  # else a .gitignore that is refused
                relative = f"{below}{with_slashes(file.path[strip:])}{end}"
                yield Target(file.path, relative, fault=file)
        yield from self._tracked_targets(start, below, walked)

    def _tracked_targets(self, start: str, below: str, walked: set[str]) -> Iterator[Target]:
        """Yield tracked files that walking leaves out, such as those in a `.gitignore`."""
        names = tracked_files(start)
        self.git_failed = self.git_failed or names is None
        for name in names or ():
            path = name if start == os.curdir else os.path.join(start, name)
            if path in walked:
                continue
            link = os.path.islink(path)
            if link or (os.path.exists(path) and not os.path.isdir(path)):
                yield self._link_target(path, below + with_slashes(name), is_link=link)

    def _link_target(self, path: str, relative: str, *, is_link: bool = False) -> Target:
        folder = os.path.isdir(path)
        fault = None
        if not self._is_inside(path):
            fault = Skipped(path, OUTSIDE, failed=False)
        elif folder:
            fault = Skipped(path, LINKED_FOLDER, failed=False)
        elif os.path.exists(path) and not os.path.isfile(path):  # reading a FIFO may block
            fault = Skipped(path, IRREGULAR, failed=False)
        return Target(path, f"{relative}/" if folder else relative, link=is_link, fault=fault)

    def _is_inside(self, path: str) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._real)

    def _relative_name(self, path: str) -> str:
        absolute = with_slashes(os.path.abspath(path))
        return f"{absolute.rstrip('/')}/".removeprefix(self._top).rstrip("/")


def drop_duplicates(targets: Iterable[Target]) -> list[Target]:
    """Drop links to other targets, so that each text counts once. Blocking."""
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


def other_targets(targets: Iterable[Target], path: str) -> list[Target]:
    """Return each file once, except the one at `path`. Blocking."""
    every = drop_duplicates(targets)
    if not os.path.islink(path):
        return [one for one in every if one.path != path]
    real = os.path.realpath(path)
    return [one for one in every if os.path.realpath(one.path) != real]
