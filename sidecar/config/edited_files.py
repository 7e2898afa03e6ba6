"""Adds something to the configuration files of other programs, and removes it byte for byte."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sidecar import typed
from sidecar.config.paths import state_dir
from sidecar.config.safe_files import locked, write
from sidecar.errors import SidecarError
from sidecar.operating_system import PROGRAM_SUFFIX
from sidecar.text.json_objects import NotAnObjectError, is_bare

_ADDITIONS = "edited-files.json"
"""The file in the state folder that says what was added to which file."""
_LOCK_SECONDS = 5.0
_ATTEMPTS = 5


class _Step(msgspec.Struct, frozen=True):
    """What a step of an addition did to a file."""

    added: str
    removed: str
    """The white space that stood in its place."""


class _Addition(msgspec.Struct, frozen=True):
    """What must be known to restore a file."""

    steps: list[_Step]
    is_new: bool
    """Whether the file did not exist."""
    folders: list[str]
    """The folders that did not exist, innermost first."""


class FileEdit:
    """An addition to a configuration file of another program, or its removal."""

    name: str
    """Distinguishes the additions to a file."""
    installs: bool
    """Whether the edit adds something, instead of removing it."""

    @property
    def path(self) -> Path:
        """The file with all links resolved."""
        raise NotImplementedError

    def add(self, text: str | None) -> Iterator[str]:
        """Yield a file's text after each step of the addition. Raises NotAnObjectError."""
        raise NotImplementedError

    def is_in(self, text: str) -> bool:
        """Return whether a text contains the addition. Raises NotAnObjectError."""
        raise NotImplementedError

    def remove(self, text: str) -> str | None:
        """Return a file's text without the addition, after another program has changed the file.

        None stands for a missing file. Raises NotAnObjectError.
        """
        raise NotImplementedError

    def is_needed(self) -> bool:
        """Return whether applying the edit would change the file. Raises SidecarError."""
        before = read_text(self.path)
        return self.changed(before) != before

    def apply(self) -> None:
        """Change the file, and try again if another program changes it at the same time.

        Raises:
            SidecarError: The file cannot be read, understood or written.
        """
        path = self.path
        try:
            with locked(state_dir() / "edited-files.lock", _LOCK_SECONDS):
                for _ in range(_ATTEMPTS):
                    before = read_text(path)
                    after = self.changed(before)
                    if after == before:
                        return
                    if self.installs:  # saved first, so that a changed file can be restored
                        self._save(self._plan(before))
                    if read_text(path) == before:
                        self._write(after)
                        return
        except OSError as error:
            raise SidecarError(f"cannot write {path}: {error.strerror}") from error
        raise SidecarError(f"{path} is being changed by another program; try again")

    def changed(self, text: str | None) -> str | None:
        """Return the file's new text. None stands for a missing file. Raises SidecarError."""
        try:
            without = self._without(text)
            return [*self.add(without)][-1] if self.installs else without
        except NotAnObjectError as error:
            raise SidecarError(f"{self.path} cannot be edited: {error}") from error

    def _without(self, text: str | None) -> str | None:
        if text is None or not self.is_in(text):
            return text
        known, rest = self._known(), text
        for step in reversed(known.steps if known else []):
            if rest.count(step.added) != 1:  # another program has changed the file
                break
            rest = rest.replace(step.added, step.removed)
        is_restored = known is not None and not self.is_in(rest)
        left = rest if is_restored else self.remove(text)
        is_left_new = known is not None and known.is_new and left is not None and is_bare(left)
        return None if is_left_new else left

    def _plan(self, before: str | None) -> _Addition:
        known, without = self._known(), self._without(before)
        steps = list[_Step]()
        for old, new in itertools.pairwise([without or "", *self.add(without)]):
            start = _count_equal(old, new)
            end = _count_equal(old[start:][::-1], new[start:][::-1])
            steps.append(_Step(new[start : len(new) - end], old[start : len(old) - end]))
        folders = [str(folder) for folder in self.path.parents if not folder.exists()]
        if known is not None and without is None:
            folders = known.folders or folders
        return _Addition(steps, without is None, folders)

    def _write(self, text: str | None) -> None:
        path, known = self.path, self._known()
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
            write(path, text.encode("utf-8", "surrogateescape"))
            path.chmod(mode)
        if not self.installs and known is not None:
            for folder in known.folders:
                with contextlib.suppress(OSError):  # the folder contains other files
                    os.rmdir(folder)
            self._save(None)

    @property
    def _key(self) -> str:
        return f"{self.name}: {os.fsencode(self.path).decode('utf-8', 'replace')}"

    def _known(self) -> _Addition | None:
        return _read_additions().get(self._key)

    def _save(self, addition: _Addition | None) -> None:
        additions = _read_additions()
        additions.pop(self._key, None)
        if addition is not None:
            additions[self._key] = addition
        write(state_dir() / _ADDITIONS, msgspec.json.encode(additions))


def read_text(path: Path) -> str | None:
    """Return a file's text, or None if there is no file. Raises SidecarError."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SidecarError(f"cannot read {path}: {error.strerror}") from error


def _read_additions() -> dict[str, _Addition]:
    try:
        return typed.decode((state_dir() / _ADDITIONS).read_bytes(), dict[str, _Addition])
    except (OSError, msgspec.DecodeError):
        return {}


def _count_equal(first: str, second: str) -> int:
    return next(
        (number for number, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


def own_command() -> list[str]:
    """Return the command that starts this program, with an absolute path, as `PATH`s differ."""
    script = Path(sys.executable).with_name("token-sidecar" + PROGRAM_SUFFIX)
    program = shutil.which("token-sidecar") or (str(script) if script.exists() else None)
    return [os.path.abspath(program)] if program else [sys.executable, "-P", "-m", "sidecar"]
