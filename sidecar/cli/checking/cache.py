"""The cache of `check`: counts by content, and findings of unchanged files.

It contains counts, hashes, names, positions and times, but no text. A file with unchanged size,
times and inode is not read again, unless it was changed shortly before the last read: a later
change could then have the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection
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
    from sidecar.workspace.files import SkippedPath, Target

FORMAT = f"7/{__version__}"
_KEPT_FACTOR = 4
_MIN_KEPT = 10_000
"""Least number of files and contents to keep; otherwise four times those of the last run."""
RACY_NS = 2_000_000_000
"""Resolution of the coarsest file times (FAT), in nanoseconds."""

FullStamp = tuple[int, int, int, int]
"""Size, modification time and change time in nanoseconds, and inode."""

stamp_of: Callable[[os.stat_result], FullStamp] = attrgetter(
    "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What the last read of a file returned. `digest` is empty if the file is not text."""

    stamp: FullStamp
    is_stamp_reliable: bool
    """Whether any later change of the file also changes its stamp."""
    digest: bytes = b""
    tokens: int = 0
    """Count for the run's default model."""
    method: Method = "exact"
    error_percent: float | None = 0.0
    is_ignored: bool = True
    sum_rules: tuple[int, ...] = ()
    """Indices of the rules over several files that apply to the file."""
    findings: tuple[ReportedFinding, ...] = ()
    """Findings of the whole file."""
    has_part_findings: bool = False
    """Whether a section or region has a finding. Its message needs the file's text."""


class Checked(NamedTuple):
    """A target's report, or the reason why it was skipped."""

    target: Target
    entry: Entry
    report: FileReport | None
    skipped: SkippedPath | None = None


class CheckCache(msgspec.Struct, kw_only=True):
    """The cache of one root."""

    format: str = FORMAT
    fingerprint: str = ""
    """Identifies the rules and tokenizers that `entries` depend on."""
    calibration: FullStamp | None = None
    """Stamp of the calibration used for estimates in `entries`; None if none was used."""
    entries: dict[str, Entry] = {}
    """By path relative to the root."""
    packed: msgspec.Raw = msgspec.Raw(b"\x80")
    """The encoded `ContentCounts`, which are only decoded to count something."""


ContentCounts = dict[bytes, dict[str, int]]
"""Tokens by content digest and counter identity, before calibration."""


def decode_counts(cache: CheckCache) -> ContentCounts:
    return msgspec.msgpack.decode(cache.packed, type=ContentCounts)


def drop_unused(cache: CheckCache, contents: ContentCounts | None, seen: Collection[str]) -> None:
    """Drop unused files and contents if there are too many.

    A run may cover only some files, and users switch branches, so unused entries are kept for a
    while.
    """
    if len(cache.entries) > _KEPT_FACTOR * len(seen) + _MIN_KEPT:
        cache.entries = {path: cache.entries[path] for path in seen if path in cache.entries}
    if contents is None:
        return
    if len(contents) > _KEPT_FACTOR * len(cache.entries) + _MIN_KEPT:
        used = {entry.digest for entry in cache.entries.values()}
        contents = {digest: counts for digest, counts in contents.items() if digest in used}
    cache.packed = msgspec.Raw(msgspec.msgpack.encode(contents))


def load_cache(root: Path) -> CheckCache:
    """Return the cache of a root; an empty one if none is usable."""
    try:
        cache = msgspec.msgpack.decode(_cache_file(root).read_bytes(), type=CheckCache)
    except (OSError, msgspec.DecodeError, RecursionError):
        return CheckCache()
    return cache if cache.format == FORMAT else CheckCache()


def save_cache(root: Path, cache: CheckCache) -> None:
    """Save the cache, if possible."""
    path = _cache_file(root)
    # A name with bytes that are not UTF-8 cannot be encoded.
    with contextlib.suppress(OSError, UnicodeEncodeError):
        data = msgspec.msgpack.encode(cache)
        make_folder(cache_dir())
        make_folder(path.parent)
        write(path, data)


def is_stamp_reliable(stamp: FullStamp, read_at_ns: int) -> bool:
    """Return whether any change after that read also changes the file's stamp."""
    return max(stamp[1], stamp[2]) < read_at_ns - RACY_NS


def stamp(path: str) -> FullStamp | None:
    """Return the stamp of a file, None if it is missing."""
    try:
        return stamp_of(os.stat(path))
    except (OSError, ValueError):
        return None


def digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def calibration_stamp() -> FullStamp | None:
    return stamp(str(state_dir() / "calibration.json"))


def file_stamps(settings: Settings) -> str:
    """Return the stamps of the user's tokenizer files, as one text for cache keys."""
    files = [entry.file for entry in settings.tokenizers]
    return "".join(f"|{file}:{stamp(os.path.expanduser(file))}" for file in files)


def _cache_file(root: Path) -> Path:
    name = digest_of(os.fsencode(root)).hex()
    return cache_dir() / "check" / f"{name}.msgpack"
