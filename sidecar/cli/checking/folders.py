"""The files below a folder, as `workspace.files` has them, with unchanged folders remembered.

A folder's own time changes when a name in it comes or goes. So where neither that nor a .gitignore
which holds for it has changed, the names are those that it had.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from sidecar.cli.checking.cache import Listing, digest_of, settled, stamp, stamp_of
from sidecar.workspace.files import Skipped, _ignored, _Rules, _rules_above, _rules_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.cli.checking.cache import Stamp

_IGNORE = ".gitignore"
_Chain = tuple["Stamp | None", ...]
"""The stamps of the .gitignore files that hold for a folder, its own last."""


class Folders:
    """Walks folders; `listings`, by absolute path, are what is known, and are kept up to date."""

    def __init__(self, listings: dict[str, Listing]) -> None:
        self._listings = listings
        self._rules: dict[str, list[_Rules]] = {}
        self.changed = False

    def below(self, folder: str) -> Iterator[str | Skipped]:
        """The files below a folder, as paths that begin with it, in the order of names."""
        absolute = os.path.abspath(folder)
        self._rules = {os.path.dirname(absolute): _rules_above(absolute)}
        above = tuple(stamp(os.path.join(parent, _IGNORE)) for parent in _parents(absolute))
        yield from self._walk(folder, absolute, above)

    def _walk(self, folder: str, absolute: str, above: _Chain) -> Iterator[str | Skipped]:
        chain = (*above, stamp(os.path.join(absolute, _IGNORE)))
        known = self._known(absolute, chain)
        if known is None:
            try:
                known = self._listed(absolute, chain)
            except OSError as error:
                yield Skipped(folder, (error.strerror or str(error)).lower(), failed=False)
                return
            self._listings[absolute] = known
            self.changed = True
        lead = "" if folder == os.curdir else os.path.join(folder, "")
        yield from [lead + name for name in known.files]
        for name in known.folders:
            yield from self._walk(lead + name, os.path.join(absolute, name), chain)

    def _known(self, absolute: str, chain: _Chain) -> Listing | None:
        """What the folder held, if that is surely what it holds."""
        known = self._listings.get(absolute)
        if known is None or not known.settled or known.rules != _digest(chain):
            return None
        return known if stamp(absolute) == known.stamp else None

    def _listed(self, absolute: str, chain: _Chain) -> Listing:
        """The folder as it is now. Raises OSError when it cannot be listed."""
        read_at = time.time_ns()
        own = stamp_of(os.stat(absolute))
        rules = self._rules_of(absolute)
        files: list[str] = []
        folders: list[str] = []
        with os.scandir(absolute) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                folder = entry.is_dir(follow_symlinks=False)
                if entry.name == ".git" or _ignored(entry.path, folder, rules):
                    continue
                if folder:
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
        sure = all(settled(each, read_at) for each in (own, *chain) if each)
        return Listing(own, sure, _digest(chain), tuple(files), tuple(folders))

    def _rules_of(self, absolute: str) -> list[_Rules]:
        """What is ignored in a folder: what its parent ignores, and its own."""
        if absolute not in self._rules:
            parent = self._rules_of(os.path.dirname(absolute))
            self._rules[absolute] = [*parent, *_rules_in(absolute)]
        return self._rules[absolute]


def _parents(folder: str) -> list[str]:
    """The folders above, from the top of the git work tree down; none outside of one."""
    parents: list[str] = []
    at = folder
    while not os.path.exists(os.path.join(at, ".git")):
        parent = os.path.dirname(at)
        if parent == at:
            return []
        parents.insert(0, parent)
        at = parent
    return parents


def _digest(chain: _Chain) -> bytes:
    return digest_of(repr(chain).encode())
