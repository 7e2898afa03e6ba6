"""What `check` remembers between runs: counts by content, and what was found in unchanged files.

Counts, hashes, names, places and times are kept, and never a word of a file. A file whose size,
times and inode are as they were is not read again, unless it was changed so shortly before it was
last read that a later change may bear the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from sidecar import __version__
from sidecar.cli.checking.report import Place
from sidecar.config.paths import cache_dir
from sidecar.counting.count import Measure, Method

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from sidecar.config.settings import Settings

FORMAT = f"3/{__version__}"
RACY_NS = 2_000_000_000
"""Nanoseconds: the coarsest clock of a file system in use (FAT) ticks every two seconds."""

_KEPT = 4
_KEPT_AT_LEAST = 10_000
"""Four times as many files and contents as the last run checked, and some more, are kept."""

Stamp = tuple[int, int, int, int]
"""Size, modification and change time in nanoseconds, inode: what changes when a file does."""


class Way(msgspec.Struct, frozen=True, array_like=True):
    """How a model's counts are made, so that a run that counts nothing need load nothing.

    `identity` is what the counts are kept by: the tokenizer, and its file as it was.
    """

    identity: str
    tokenizer: str
    method: Method
    error_percent: float | None

    def measure(self, tokens: int) -> Measure:
        """Tokens with how they were counted; 0 is exact by any tokenizer."""
        if tokens == 0:
            return Measure(0, "exact", self.tokenizer)
        return Measure(tokens, self.method, self.tokenizer, self.error_percent)


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """A whole file's finding in numbers: the rule's index, the tokens, where to point."""

    rule: int
    tokens: int
    place: Place


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One file as it was when it was last read; `digest` is empty for what is no text."""

    stamp: Stamp
    settled: bool
    """Whether it was old enough when it was read for its stamp to be trusted."""
    digest: bytes = b""
    tokens: int = 0
    """By the default model of the run."""
    ignored: bool = True
    sums: tuple[int, ...] = ()
    """The indices of the rules that count it together with other files."""
    noted: tuple[Noted, ...] = ()
    parts: bool = False
    """Whether a section or region is near or over: then the words for it are in the file only."""


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """One folder as it was when it was last listed: what .gitignore leaves of it, by name."""

    stamp: Stamp
    settled: bool
    rules: bytes
    """A digest of the stamps of the .gitignore files that hold for it."""
    files: tuple[str, ...]
    folders: tuple[str, ...]


class Memory(msgspec.Struct, kw_only=True):
    """All that is remembered of one root."""

    format: str = FORMAT
    fingerprint: str = ""
    """Of the rules and tokenizers that `entries` were checked by."""
    ways: dict[str, Way] = {}
    """By model."""
    entries: dict[str, Entry] = {}
    """By path relative to the root."""
    listings: dict[str, Listing] = {}
    """By absolute path."""
    packed: msgspec.Raw = msgspec.Raw(b"\x80")
    """`Contents`, unpacked only when something is to be counted."""


Contents = dict[bytes, dict[str, int]]
"""Tokens by digest, and by the identity of a tokenizer."""


stamp_of: Callable[[os.stat_result], Stamp] = attrgetter(
    "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)
"""The stamp of a file's status."""


def settled(stamp: Stamp, read_at_ns: int) -> bool:
    """Whether a later change of what was read then is sure to have another stamp."""
    return max(stamp[1], stamp[2]) < read_at_ns - RACY_NS


def stamps(paths: Sequence[str]) -> list[Stamp | None]:
    """The stamp of each file, None for one that is not there."""
    try:
        return list(map(stamp_of, map(os.stat, paths)))
    except (OSError, ValueError):
        return [stamp(path) for path in paths]


def stamp(path: str) -> Stamp | None:
    """The stamp of one file."""
    try:
        return stamp_of(os.stat(path))
    except (OSError, ValueError):
        return None


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
    except (OSError, msgspec.DecodeError):
        return Memory()
    return memory if memory.format == FORMAT else Memory()


def remember(root: Path, memory: Memory) -> None:
    """Keep it for the next run; that it cannot be kept is no reason to fail."""
    path = _file(root)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.write_bytes(msgspec.msgpack.encode(memory))
        draft.replace(path)
    except (OSError, UnicodeEncodeError):  # a name that is not UTF-8 cannot be written down
        with contextlib.suppress(OSError):
            draft.unlink()


def digest_of(data: bytes) -> bytes:
    """The hash that contents are known by."""
    return hashlib.blake2b(data, digest_size=16).digest()


def file_stamps(settings: Settings) -> str:
    """The user's tokenizer files as they are now: what is counted by one must not outlive it."""
    files = [entry.file for entry in settings.tokenizers]
    return "".join(f"|{file}:{stamp(os.path.expanduser(file))}" for file in files)


def _file(root: Path) -> Path:
    name = digest_of(os.fsencode(root)).hex()
    return cache_dir() / "check" / f"{name}.msgpack"
