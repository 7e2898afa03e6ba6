"""The cache of `token-sidecar check`: token counts by content, and findings for unchanged files.

`footprint` and `map` share the counts, so a text that several commands count is tokenized once.

The cache contains counts, hashes, names, positions and times, but no text. A file is not read
again if its size, times and inode are unchanged. A file that changed shortly before it was read
is always read again, because a later change could have the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar import __version__
from sidecar.budgets.check_report import FileReport, ReportedFinding
from sidecar.config.paths import cache_dir, state_dir
from sidecar.config.safe_files import FileStamp, make_folder, stamp_of, write
from sidecar.config.settings import Settings
from sidecar.counting.count_result import ContentCounts, Method

if TYPE_CHECKING:
    from sidecar.project.files import SkippedPath, Target

FORMAT = f"7/{__version__}"
_KEPT_FACTOR = 4
_MIN_KEPT = 10_000
"""Unused entries are dropped only above this number plus `_KEPT_FACTOR` times the entries in use.

Therefore, a run that checks only a few files does not empty a small cache.
"""
RACY_NS = 2_000_000_000
"""The resolution, in nanoseconds, of file times on FAT, the coarsest of all file systems."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """The cached result of checking a file. `digest` is empty if the file is not text."""

    stamp: FileStamp
    is_stamp_reliable: bool
    """Whether any later edit is certain to change the file's stamp."""
    digest: bytes = b""
    tokens: int = 0
    """The token count for the default model."""
    method: Method = "exact"
    error_percent: float | None = 0.0
    is_ignored: bool = True
    sum_rules: tuple[int, ...] = ()
    """Indices of the group rules that apply to the file."""
    findings: tuple[ReportedFinding, ...] = ()
    """The findings that apply to the whole file."""
    has_part_findings: bool = False
    """Whether there are findings for sections or regions. If so, the file must be read again."""


class Checked(NamedTuple):
    """The result of checking a file: the file's report, or why the file was skipped."""

    target: Target
    entry: Entry
    report: FileReport | None
    skipped: SkippedPath | None = None


class CheckCache(msgspec.Struct, kw_only=True):
    """A project's cache."""

    format: str = FORMAT
    fingerprint: str = ""
    """A hash of the rules and tokenizers that the entries depend on."""
    calibration: FileStamp | None = None
    """The calibration's stamp, or None if the entries do not depend on it."""
    entries: dict[str, Entry] = {}
    """The results, keyed by file path relative to the root."""
    packed: msgspec.Raw = msgspec.Raw(b"\x80")
    """The encoded `ContentCounts`, which are decoded only if a file must be counted."""


def decode_counts(cache: CheckCache) -> ContentCounts:
    return msgspec.msgpack.decode(cache.packed, type=ContentCounts)


def drop_unused(cache: CheckCache, contents: ContentCounts | None, seen: Collection[str]) -> None:
    """Remove entries that the last run did not use, if there are too many.

    Unused entries are kept for a while, because a run may check only a subset of the files, and
    users switch branches.
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
    """Load a project's cache, or return an empty cache."""
    try:
        cache = msgspec.msgpack.decode(_cache_file(root).read_bytes(), type=CheckCache)
    except (OSError, msgspec.DecodeError, RecursionError):
        return CheckCache()
    return cache if cache.format == FORMAT else CheckCache()


def save_cache(root: Path, cache: CheckCache) -> None:
    """Save a project's cache, ignoring errors."""
    path = _cache_file(root)
    # Names with bytes that are not valid UTF-8 cannot be encoded.
    with contextlib.suppress(OSError, UnicodeEncodeError):
        data = msgspec.msgpack.encode(cache)
        make_folder(cache_dir())
        make_folder(path.parent)
        write(path, data)


def is_stamp_reliable(stamp: FileStamp, read_at_ns: int) -> bool:
    """Return whether any edit after the file was read is certain to change its stamp."""
    return max(stamp[1], stamp[2]) < read_at_ns - RACY_NS


def digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def calibration_stamp() -> FileStamp | None:
    return stamp_of(state_dir() / "calibration.json")


def file_stamps(settings: Settings) -> str:
    """Return text for a cache key. It changes if a tokenizer file in the settings changes."""
    files = [entry.file for entry in settings.tokenizers]
    return "".join(f"|{file}:{stamp_of(os.path.expanduser(file))}" for file in files)


def _cache_file(root: Path) -> Path:
    name = digest_of(os.fsencode(root)).hex()
    return cache_dir() / "check" / f"{name}.msgpack"
