"""Cache of `check` between runs: counts by content, and findings of unchanged files.

It holds counts, hashes, names, positions and times, never text. A file with unchanged size, times
and inode is not read again, unless it was changed so shortly before the last read that a later
change could have the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar import __version__
from sidecar.cli.checking.report import FileReport, ReportedFinding
from sidecar.config.paths import cache_dir, state_dir
from sidecar.config.private import make_folder, write
from sidecar.counting.count import Method

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.config.settings import Settings
    from sidecar.workspace.files import Skipped
    from sidecar.workspace.targets import Target

FORMAT = f"6/{__version__}"
_KEPT = 4
_KEPT_AT_LEAST = 10_000
"""The cache keeps four times the files and contents of the last run, and at least this many."""
RACY_NS = 2_000_000_000
"""Nanoseconds; the coarsest clock of a file system in use (FAT) ticks every two seconds."""

FullStamp = tuple[int, int, int, int]
"""Size, modification and change time in nanoseconds, and inode, which change with the file."""

stamp_of: Callable[[os.stat_result], FullStamp] = attrgetter(
    "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)
"""Returns the stamp for a file's status."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A file when it was last read; `digest` is empty if it is not text."""

    stamp: FullStamp
    settled: bool
    """Whether the file was old enough at that read for its stamp to be reliable."""
    digest: bytes = b""
    tokens: int = 0
    """By the default model of the run, as the next two."""
    method: Method = "exact"
    error_percent: float | None = 0.0
    ignored: bool = True
    sums: tuple[int, ...] = ()
    """Indices of the rules that count it together with other files."""
    found: tuple[ReportedFinding, ...] = ()
    """Findings of the whole file."""
    parts: bool = False
    """Whether a section or region is near or over its budget: its message needs the file's text."""


class Checked(NamedTuple):
    """The result for one target: a report, or the reason why it was skipped."""

    target: Target
    entry: Entry
    report: FileReport | None
    skipped: Skipped | None = None


class Memory(msgspec.Struct, kw_only=True):
    """The cache of one root."""

    format: str = FORMAT
    fingerprint: str = ""
    """Identifies the rules and tokenizers that `entries` were checked by."""
    learned: FullStamp | None = None
    """Stamp of the calibration used for estimates in `entries`; None if none was used."""
    entries: dict[str, Entry] = {}
    """By path relative to the root."""
    packed: msgspec.Raw = msgspec.Raw(b"\x80")
    """`Contents`, decoded only if something has to be counted."""


Contents = dict[bytes, dict[str, int]]
"""Tokens by content digest and counter identity, before calibration."""


def unpacked(memory: Memory) -> Contents:
    """Decode the counts by content."""
    return msgspec.msgpack.decode(memory.packed, type=Contents)


def forget_old(memory: Memory, contents: Contents | None, seen: Collection[str]) -> None:
    """Drop files that were not checked last, and unused contents, once there are too many.

    They are kept for a while: a run may cover only some files, and branches are switched.
    """
    if len(memory.entries) > _KEPT * len(seen) + _KEPT_AT_LEAST:
        memory.entries = {path: memory.entries[path] for path in seen if path in memory.entries}
    if contents is None:
        return
    if len(contents) > _KEPT * len(memory.entries) + _KEPT_AT_LEAST:
        used = {entry.digest for entry in memory.entries.values()}
        contents = {digest: counts for digest, counts in contents.items() if digest in used}
    memory.packed = msgspec.Raw(msgspec.msgpack.encode(contents))


def recall(root: Path) -> Memory:
    """Return the cache of a root; an empty one if none is usable."""
    try:
        memory = msgspec.msgpack.decode(_file(root).read_bytes(), type=Memory)
    except (OSError, msgspec.DecodeError, RecursionError):
        return Memory()
    return memory if memory.format == FORMAT else Memory()


def remember(root: Path, memory: Memory) -> None:
    """Save the cache; failing to do so is not an error."""
    path = _file(root)
    # A name that is not UTF-8 cannot be encoded.
    with contextlib.suppress(OSError, UnicodeEncodeError):
        data = msgspec.msgpack.encode(memory)
        make_folder(cache_dir())
        make_folder(path.parent)
        write(path, data)


def is_settled(stamp: FullStamp, read_at_ns: int) -> bool:
    """Return whether every change after that read gives the file another stamp."""
    return max(stamp[1], stamp[2]) < read_at_ns - RACY_NS


def stamps(paths: Sequence[str]) -> list[FullStamp | None]:
    """Return the stamp of each file, None for a missing one."""
    try:
        return list(map(stamp_of, map(os.stat, paths)))
    except (OSError, ValueError):
        return [stamp(path) for path in paths]


def stamp(path: str) -> FullStamp | None:
    """Return the stamp of a file, None if it is missing."""
    try:
        return stamp_of(os.stat(path))
    except (OSError, ValueError):
        return None


def digest_of(data: bytes) -> bytes:
    """Return the hash that identifies contents."""
    return hashlib.blake2b(data, digest_size=16).digest()


def factors_stamp() -> FullStamp | None:
    """Return the stamp of the calibration file."""
    return stamp(str(state_dir() / "calibration.json"))


def file_stamps(settings: Settings) -> str:
    """Return the stamps of the user's tokenizer files, whose changes invalidate counts."""
    files = [entry.file for entry in settings.tokenizers]
    return "".join(f"|{file}:{stamp(os.path.expanduser(file))}" for file in files)


def _file(root: Path) -> Path:
    name = digest_of(os.fsencode(root)).hex()
    return cache_dir() / "check" / f"{name}.msgpack"
