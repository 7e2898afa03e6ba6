"""Compares the files on disk with those that an agent's first request contained.

Only if they are the same, what the files leave of the request is the system prompt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from sidecar import typed
from sidecar.config.safe_files import lock_state, make_folder, read_file, stamp_of, write
from sidecar.project.footprint import Footprint
from sidecar.project.git import find_top
from sidecar.project.loading_rules import loading_rules

_FILE_NAME = "system-prompts.json"
_MOST_KEPT = 500


class KeptPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a system prompt that was measured in a folder. It contains no text."""

    session: str
    files: str
    """The digest of the files that the request contained, from `digest_files`."""
    model: str
    tokens: int
    at_ms: int
    """The time of the request, in milliseconds since 1970."""


def digest_files(footprint: Footprint, start: Path) -> str:
    """Return a digest of what is sent of the files, with paths relative to a folder."""
    top = str(_up_to_root(start)[-1])
    sent = [
        (
            part.path if part.is_own else os.path.relpath(part.path, start),
            part.state,
            part.text.replace(top, ""),  # lists of skills contain their paths
        )
        for part in footprint.parts
        if part.state not in ("later", "hidden")
    ]
    return _digest(repr(sent))


def read_kept(folder: Path, agent: str, start: Path) -> KeptPrompt | None:
    """Return what was last measured for an agent in a folder. Never raises."""
    return _read_all(folder).get(_key(agent, start))


def keep(folder: Path, agent: str, start: Path, prompt: KeptPrompt) -> None:
    """Keep what was measured in the state folder. Raises OSError."""
    make_folder(folder)
    with lock_state(folder):
        kept = {**_read_all(folder), _key(agent, start): prompt}
        newest = sorted(kept.items(), key=lambda one: one[1].at_ms)[-_MOST_KEPT:]
        write(folder / _FILE_NAME, msgspec.json.encode(dict(newest)))


def _read_all(folder: Path) -> dict[str, KeptPrompt]:
    with suppress(OSError, msgspec.DecodeError):
        return typed.decode_leniently(read_file(folder / _FILE_NAME), dict[str, KeptPrompt])
    return {}


def _key(agent: str, start: Path) -> str:
    return _digest(repr((agent, str(start))))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def describe_changes(footprint: Footprint, start: Path, since_ms: int) -> str:
    """Return what may have changed in the files since a time, or an empty string.

    A file's status changes even if its old time is restored. That a file was deleted shows in its
    folder only.
    """
    since_ns = since_ms * 1_000_000
    files = {part.path for part in footprint.parts if part.text or part.kind == "rule"}
    # A file without a part is empty now, but may have had text.
    files |= set(_named_files(footprint.agent, start)) - {part.path for part in footprint.parts}
    changed = sum(_has_changed(path, since_ns) for path in files)
    if changed:
        return "1 file has changed" if changed == 1 else f"{changed:,} files have changed"
    folders = _folders(footprint.agent, start)
    if any((stamp := stamp_of(folder)) and stamp[1] > since_ns for folder in folders):
        return "Files may have been added or deleted"
    return ""


def _has_changed(path: str, since_ns: int) -> bool:
    stamp = stamp_of(path)
    return stamp is not None and max(stamp[1:3]) > since_ns


def _folders(agent: str, start: Path) -> Iterator[str]:
    """Yield the project's folders in which the agent looks for files."""
    names = [name for one in loading_rules()[agent].entries for name in one.files]
    names += loading_rules()[agent].names
    inner = {os.path.dirname(name.partition("*")[0]) for name in names if name[0] not in "~${"}
    for top in _up_to_root(start):
        yield from (os.path.join(top, name) for name in inner)


def _named_files(agent: str, start: Path) -> Iterator[str]:
    """Yield the paths of the project's instructions, which may not exist."""
    for top in _up_to_root(start):
        for name in loading_rules()[agent].names:
            if "*" not in name and name[0] not in "~${":
                yield os.path.join(top, name)


def _up_to_root(start: Path) -> list[Path]:
    """Return a folder and those above it, up to the repository's root if there is one."""
    top = find_top(start) or start
    return [one for one in (start, *start.parents) if one.is_relative_to(top)]
