"""What a run of `check` rests on: collected where it ran, looked at again by `again`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.cli.checking.again import Basis, NearMark, WalkedFolders, mark, names_in
from sidecar.config.paths import PROJECT_FILE, PYPROJECT, config_file, state_dir
from sidecar.workspace.ignoring import NAME
from sidecar.workspace.tracked import index_of

if TYPE_CHECKING:
    from sidecar.cli.checking.cache import Checked
    from sidecar.config.settings import Settings

_DECIDING = (PROJECT_FILE, PYPROJECT, ".git", NAME)
"""Which folder is the root, what its configuration is, and what is ignored above it."""


class Resting:
    """What a run rests on, collected while it runs. What configures it is looked at before it is
    read: what is changed or removed in the meantime is then found changed by the next run."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Before the configuration is looked for."""
        self.found: list[Basis] = []
        """Of each root; of none where that is more than files and folders as they are."""
        self._near: dict[str, NearMark] = {}
        self._mark(_deciding(paths))

    def begin(self, root: Path, paths: Sequence[str], settings: Settings) -> None:
        """Before the files of a root are looked for."""
        self._mark(_leading(root, paths, settings))

    def end(self, checked: Sequence[Checked], folders: WalkedFolders) -> None:
        """Of one root; nothing where a file changed only just now, could not be read or is a link,
        or where words of a file were printed, which are kept nowhere."""
        if any(
            not made.entry.settled or made.entry.parts or made.target.link or made.target.fault
            for made in checked
        ):
            return
        names = [made.target.path for made in checked]
        stamps = [made.entry.stamp for made in checked]
        self._mark(_ignoring(folders))
        try:
            held = [(folder, names_in(folder)) for folder, _ in folders]
        except OSError:
            return
        if all(_same_names(now, was) for (_, now), (_, was) in zip(held, folders, strict=True)):
            self.found.append(Basis(names, stamps, held, self._near))

    def _mark(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path not in self._near:
                self._near[path] = mark(path)


def _same_names(held: Sequence[str], names: Sequence[str]) -> bool:
    return sorted(name.partition("/")[0] for name in held) == list(names)


def _deciding(paths: Sequence[str]) -> Iterator[str]:
    for start in (Path.cwd(), *(Path(os.path.abspath(path)) for path in paths)):
        for folder in (start, *start.parents):
            yield from (os.path.join(folder, name) for name in _DECIDING)
    yield from map(os.path.abspath, paths)
    yield str(config_file())
    yield str(state_dir() / "calibration.json")


def _leading(root: Path, paths: Sequence[str], settings: Settings) -> Iterator[str]:
    """What the settings and git's files lead to."""
    yield from (os.path.expanduser(entry.file) for entry in settings.tokenizers)
    for path in (str(root), *paths):
        if index := index_of(os.path.abspath(path)):
            yield index


def _ignoring(folders: WalkedFolders) -> Iterator[str]:
    """The `.gitignore` of each folder, which may itself be ignored."""
    return (os.path.join(folder, NAME) for folder, names in folders if NAME in names)
