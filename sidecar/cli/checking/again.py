"""What the last `check` of the same paths printed, while nothing that it rests on has changed.

A run rests on the files that it checked, on what each folder that it walked held, on what
configures it (`near`: the user's and the project's files, those that would make another folder the
root, `.gitignore`, git's index, what was learned), on its arguments, its folder and its
environment. Where all of that is as it was, it would print what it printed. To look at it all
takes a third of working it out again, so this module imports next to nothing.

Kept are names, places, times and what was printed, which holds counts and names.
"""

from __future__ import annotations

import json
import os
from array import array
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from sidecar import __version__
from sidecar.cli.checking.forking import cores, may_fork
from sidecar.cli.checking.stamps import FullStamp, stamp_of
from sidecar.config.paths import LIMIT_VARIABLE, STATE_VARIABLE, cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_FORMAT = f"1/{__version__}"
_VARIABLES = ("XDG_", "HOME", "PATH", STATE_VARIABLE, LIMIT_VARIABLE)
"""How those begin that configure a run and are no secrets."""
_OTHERS = ("TOKEN_SIDECAR_", "GIT_")
"""How those begin that may name another index or repository, or hold a key: nothing is kept, or
looked up, where one is set."""
_HARMLESS = (STATE_VARIABLE, "GIT_SSL_", "GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_PAGER", "GIT_EDITOR")
"""Those among them that are nothing to a list of files."""
_STAMP_BYTES = 32
_SUFFIX = ".again"
SHARED = 4_000
"""Of so many files it is worth a fork, which costs as much as to look at some hundreds."""
_OURS = 0.4
"""Our share of the files then: the folders and the fork are ours too."""
KEPT = 64
"""Of so many different calls, those of the last runs, what was printed is kept."""

NearMark = list[int] | list[list[int]] | str | None
"""Of what configures a run: a file's stamp, a link's and its file's, `folder`, or nothing."""
WalkedFolders = list[tuple[str, list[str]]]
"""Those that were walked, each with the sorted names of all that it holds (`names_in`)."""


class Printed(NamedTuple):
    """What a run printed, and its exit code."""

    code: int
    out: str
    err: list[str]
    """Lines."""


class Basis(NamedTuple):
    """What a run of one root rests on, beside its arguments."""

    files: list[str]
    stamps: list[FullStamp]
    folders: WalkedFolders
    near: dict[str, NearMark]
    """What configures it, as it was before it was read."""


def again(paths: Sequence[str]) -> Printed | None:
    """What `check` of these paths printed, if it would print that again."""
    if _is_unusual():
        return None
    key = _key(paths)
    try:
        head, _, body = _file(key).read_bytes().partition(b"\n")
        known = json.loads(head)
        size = known["files"] * _STAMP_BYTES
        files, *folders = os.fsdecode(body[size:]).split("\0\0")
        same = (
            known["key"] == key
            and all(mark(path) == was for path, was in known["near"])
            and _are_same(files.split("\0"), body[:size], folders)
        )
        return Printed(**known["printed"]) if same else None
    except (OSError, ValueError, TypeError, LookupError, OverflowError):
        return None


def keep(paths: Sequence[str], basis: Basis, printed: Printed, started_ns: int) -> None:
    """Keep what a run printed, unless what configures it changed so shortly before the run began
    that a later change may bear the same time. That it cannot be kept is no reason to fail."""
    from sidecar.cli.checking.stamps import RACY_NS
    from sidecar.config.private import make_folder, write

    key = _key(paths)
    if (
        not basis.files
        or _is_unusual()
        or any(_latest(made) > started_ns - RACY_NS for made in basis.near.values())
    ):
        return
    head = {
        "key": key,
        "files": len(basis.files),
        "near": [*basis.near.items()],
        "printed": printed._asdict(),
    }
    names = [*basis.files, ""]
    for folder, held in basis.folders:
        names += [folder, *held, ""]
    try:
        place = _file(key)
        data = json.dumps(head).encode() + b"\n" + _packed(basis.stamps)
        make_folder(cache_dir())
        make_folder(place.parent)
        write(place, data + os.fsencode("\0".join(names[:-1])))
        for old in sorted(place.parent.glob(f"*{_SUFFIX}"), key=os.path.getmtime)[:-KEPT]:
            old.unlink()
    except (OSError, ValueError, OverflowError):
        return


def mark(path: str) -> NearMark:
    """How a path that may configure a run is found. A folder's own times say nothing of it."""
    try:
        if not os.path.islink(path):
            return "folder" if os.path.isdir(path) else list(stamp_of(os.stat(path)))
        return [list(stamp_of(os.lstat(path))), list(stamp_of(os.stat(path)))]
    except (OSError, ValueError):
        return None


def _latest(made: NearMark) -> int:
    """The latest time of a mark, in nanoseconds."""
    if not isinstance(made, list):
        return 0
    return max(_latest(one) if isinstance(one, list) else one for one in _times(made))


def _times(made: list[int] | list[list[int]]) -> Iterable[int | list[int]]:
    return made if isinstance(made[0], list) else made[1:3]


def names_in(folder: str) -> list[str]:
    """What a folder holds, sorted: a folder's name ends on `/`, that of what is neither folder nor
    file, such as a link, on `/?`. Raises OSError."""
    with os.scandir(folder) as found:
        return sorted([entry.name + _ending(entry) for entry in found])


def _ending(entry: os.DirEntry[str]) -> str:
    if entry.is_file(follow_symlinks=False):
        return ""
    return "/" if entry.is_dir(follow_symlinks=False) else "/?"


def _is_same(written: str) -> bool:
    """Whether a folder holds what it held, each of the kind that it was."""
    folder, *held = written.split("\0")
    return names_in(folder) == held


def _are_same(files: Sequence[str], stamps: bytes, folders: Sequence[str]) -> bool:
    """Whether files and folders are as they were. Of many files another core looks at its share,
    where there is one. Raises OSError where something is gone."""
    first = len(files)
    if first >= SHARED and cores() > 1 and may_fork():
        first = int(len(files) * _OURS)
    size = first * _STAMP_BYTES
    others = _begun(files[first:], stamps[size:])
    try:
        same = all(map(_is_same, folders)) and _bear(files[:first], stamps[:size])
    finally:
        others_same = _ended(others)
    return same and others_same


def _bear(files: Sequence[str], stamps: bytes) -> bool:
    return _packed(map(stamp_of, map(os.stat, files))) == stamps


def _begun(files: Sequence[str], stamps: bytes) -> int | None:
    """A copy of this process that looks whether files bear stamps; None where there are none."""
    if not files:
        return None
    pid = os.fork()
    if pid:
        return pid
    same = False
    try:
        same = _bear(files, stamps)
    finally:  # whatever went wrong, the copy is not to go on with what this process does
        os._exit(0 if same else 1)


def _ended(pid: int | None) -> bool:
    return pid is None or os.waitpid(pid, 0)[1] == 0


def _is_unusual() -> bool:
    others = (name for name in os.environ if name.startswith(_OTHERS))
    return not all(name.startswith(_HARMLESS) for name in others)


def _packed(stamps: Iterable[FullStamp]) -> bytes:
    return array("q", chain.from_iterable(stamps)).tobytes()


def _key(paths: Sequence[str]) -> list[str]:
    names = sorted(name for name in os.environ if name.startswith(_VARIABLES))
    return [_FORMAT, os.getcwd(), *(f"{name}={os.environ[name]}" for name in names), "", *paths]


def _file(key: Sequence[str]) -> Path:
    from zlib import crc32

    return cache_dir() / "check" / f"{crc32(os.fsencode('|'.join(key))):08x}{_SUFFIX}"
