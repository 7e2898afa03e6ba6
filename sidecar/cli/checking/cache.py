"""What `check` remembers between runs: counts by content, and what was found in unchanged files.

Counts, hashes, names, places and times are kept, and never a word of a file. A file whose size,
times and inode are as they were is not read again, unless it was changed so shortly before it was
last read that a later change may bear the same time.
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
"""Four times as many files and contents as the last run checked, and some more, are kept."""
RACY_NS = 2_000_000_000
"""Nanoseconds: the coarsest clock of a file system in use (FAT) ticks every two seconds."""

FullStamp = tuple[int, int, int, int]
"""Size, modification and change time in nanoseconds, inode: what changes when a file does."""

stamp_of: Callable[[os.stat_result], FullStamp] = attrgetter(
    "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)
"""The stamp of a file's status."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One file as it was when it was last read; `digest` is empty for what is no text."""

    stamp: FullStamp
    settled: bool
    """Whether it was old enough when it was read for its stamp to be trusted."""
    digest: bytes = b""
    tokens: int = 0
    """By the default model of the run, as are the next two."""
    method: Method = "exact"
    error_percent: float | None = 0.0
    ignored: bool = True
    sums: tuple[int, ...] = ()
    """The indices of the rules that count it together with other files."""
    found: tuple[ReportedFinding, ...] = ()
    """What was found in the whole file."""
    parts: bool = False
    """Whether a section or region is near or over: then the words for it are in the file only."""


class Checked(NamedTuple):
    """What became of one target: no report for what is no text, but why it is passed over."""

    target: Target
    entry: Entry
    report: FileReport | None
    skipped: Skipped | None = None


class Memory(msgspec.Struct, kw_only=True):
    """All that is remembered of one root."""

    format: str = FORMAT
    fingerprint: str = ""
    """Of the rules and tokenizers that `entries` were checked by."""
    learned: FullStamp | None = None
    """Of the factors that estimates in `entries` were corrected by; None where nothing rests on
    any."""
    entries: dict[str, Entry] = {}
    """By path relative to the root."""
    packed: msgspec.Raw = msgspec.Raw(b"\x80")
    """`Contents`, unpacked only when something is to be counted."""


Contents = dict[bytes, dict[str, int]]
"""Tokens by digest, and by the identity of what counts; not corrected by what was learned."""


def unpacked(memory: Memory) -> Contents:
    """The counts by content."""
    return msgspec.msgpack.decode(memory.packed, type=Contents)


def forget_old(memory: Memory, contents: Contents | None, seen: Collection[str]) -> None:
    """Drop files that were not among the last checked, and contents, once they are too many.

    Not at once: a run may be about some files only, and branches come back.
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
    """What is remembered of a root; nothing when there is nothing that can be used."""
    try:
        memory = msgspec.msgpack.decode(_file(root).read_bytes(), type=Memory)
    except (OSError, msgspec.DecodeError, RecursionError):
        return Memory()
    return memory if memory.format == FORMAT else Memory()


def remember(root: Path, memory: Memory) -> None:
    """Keep it for the next run; that it cannot be kept is no reason to fail."""
    path = _file(root)
    # A name that is not UTF-8 cannot be written down.
    with contextlib.suppress(OSError, UnicodeEncodeError):
        data = msgspec.msgpack.encode(memory)
        make_folder(cache_dir())
        make_folder(path.parent)
        write(path, data)


def is_settled(stamp: FullStamp, read_at_ns: int) -> bool:
    """Whether every change after that read is sure to give the file another stamp."""
    return max(stamp[1], stamp[2]) < read_at_ns - RACY_NS


def stamps(paths: Sequence[str]) -> list[FullStamp | None]:
    """The stamp of each file, None for one that is not there."""
    try:
        return list(map(stamp_of, map(os.stat, paths)))
    except (OSError, ValueError):
        return [stamp(path) for path in paths]


def stamp(path: str) -> FullStamp | None:
    """The stamp of one file."""
    try:
        return stamp_of(os.stat(path))
    except (OSError, ValueError):
        return None


def digest_of(data: bytes) -> bytes:
    """The hash that contents are known by."""
    return hashlib.blake2b(data, digest_size=16).digest()


def factors_stamp() -> FullStamp | None:
    """The stamp of what was learned about estimates."""
    return stamp(str(state_dir() / "calibration.json"))


def file_stamps(settings: Settings) -> str:
    """The user's tokenizer files as they are now: what is counted by one must not outlive it."""
    files = [entry.file for entry in settings.tokenizers]
    return "".join(f"|{file}:{stamp(os.path.expanduser(file))}" for file in files)


def _file(root: Path) -> Path:
    name = digest_of(os.fsencode(root)).hex()
    return cache_dir() / "check" / f"{name}.msgpack"
