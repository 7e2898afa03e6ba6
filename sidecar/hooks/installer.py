"""Adds hooks that check the caps to the user's configuration of coding agents, and removes them."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar import typed
from sidecar.agents.folders import Places
from sidecar.config.paths import state_dir
from sidecar.config.safe_files import locked, write
from sidecar.config.settings import Agents
from sidecar.errors import SidecarError
from sidecar.hooks.prompt_hook import AFTER_TURN, ANSWER
from sidecar.operating_system import IS_WINDOWS, PROGRAM_SUFFIX
from sidecar.text.json_objects import NotAnObjectError, add_item, remove_items

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = "token-sidecar"
_ADDITIONS = "hooks-install.json"
"""The file in the state folder that says what was added to which file."""
_LOCK_SECONDS = 5.0


class HookAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent whose hooks can stop a prompt."""

    files: tuple[str, ...]
    """The user's file to change, in the form of `known_agents.Agent.folders`."""
    form: str
    """What the file contains.

    `settings`: JSON whose `hooks` lists hooks by event. `toml`: a `[[hooks]]` table for each hook.
    `own-json`: a file of our own in Copilot's form. Else the name of a plugin in `plugins`, which
    is copied.
    """
    refusal: str
    """How a prompt is refused: the `decision` in the answer, or `exit-2`."""
    warning: Literal["systemMessage", "exit-2", "none"]
    """How the user is told about a soft cap."""
    before: str = ""
    """The event before a prompt is sent."""
    after: str = ""
    """The event after a turn."""
    timeout: int = 0
    """How long the agent waits, in its own unit."""
    note: str = ""
    """What the user has to do after installing."""


@cache
def hook_agents() -> dict[str, HookAgent]:
    """Return the agents by name."""
    return typed.read_table("sidecar.hooks", "agents.toml", dict[str, HookAgent])


def hook_command(agent: str) -> list[str]:
    """Return the command of an agent's hook, with an absolute path, as agents' `PATH` differs."""
    script = Path(sys.executable).with_name(_NAME + PROGRAM_SUFFIX)
    program = shutil.which(_NAME) or (str(script) if script.exists() else None)
    start = [os.path.abspath(program)] if program else [sys.executable, "-P", "-m", "sidecar"]
    return [*start, "hooks", ANSWER, agent]


def hook_file(name: str) -> Path:
    """Return the user's file in which an agent's hooks are installed."""
    return Places.of(Agents()).in_use(hook_agents()[name].files)[0]


def is_installed(name: str) -> bool:
    """Return whether an agent's file contains our hooks. Raises SidecarError."""
    return _mark(name) in (_read(hook_file(name)) or "")


@dataclass(frozen=True)
class HookChange:
    """Installs or removes the hooks of an agent."""

    name: str
    installs: bool

    @property
    def path(self) -> Path:
        return Path(os.path.realpath(hook_file(self.name)))

    def describe(self) -> str:
        """Return the change as a unified diff."""
        before = _read(self.path)
        after = self._changed(before)
        what = "edit" if before is not None and after is not None else "create"
        lines = difflib.unified_diff(
            (before or "").splitlines(), (after or "").splitlines(), lineterm="", n=2
        )
        diff = "\n".join(list(lines)[2:])
        return f"{what if after is not None else 'delete'} {self.path}:\n{diff}"

    def is_needed(self) -> bool:
        """Return whether applying the change would alter the file. Raises SidecarError."""
        before = _read(self.path)
        return self._changed(before) != before

    def apply(self) -> None:
        """Change the file. Raises SidecarError."""
        path = self.path
        try:
            with locked(state_dir() / "hooks-install.lock", _LOCK_SECONDS):
                before, known = _read(path), _read_additions()
                after = self._changed(before)
                if self.installs:
                    # Saved first: a file that is changed can then always be restored.
                    known[str(path)] = _Installed.plan(self.name, path, self._without_hooks(before))
                    write(state_dir() / _ADDITIONS, msgspec.json.encode(known))
                _write(path, after)
                if not self.installs and (installed := known.pop(str(path), None)):
                    for folder in installed.folders:
                        with contextlib.suppress(OSError):  # the folder contains other files
                            os.rmdir(folder)
                    write(state_dir() / _ADDITIONS, msgspec.json.encode(known))
        except OSError as error:
            raise SidecarError(f"cannot write {path}: {error.strerror}") from error

    def _changed(self, text: str | None) -> str | None:
        """Return the file's new text. None stands for a missing file."""
        try:
            without = self._without_hooks(text)
            return [*_with_hooks(self.name, without)][-1] if self.installs else without
        except NotAnObjectError as error:
            raise SidecarError(f"{self.path} cannot be edited: {error}") from error

    def _without_hooks(self, text: str | None) -> str | None:
        if text is None or _mark(self.name) not in text:
            return text
        installed, rest = _read_additions().get(str(self.path)), text
        for each in reversed(installed.steps if installed else []):
            if rest.count(each.added) != 1:  # another program has changed the file
                break
            rest = rest.replace(each.added, each.removed)
        if installed is None or _mark(self.name) in rest:
            return _remove_hooks(self.name, text)
        return None if installed.is_new and not rest else rest


class _Addition(msgspec.Struct, frozen=True):
    """What a step of installing did to a file."""

    added: str
    removed: str
    """The white space that stood in its place."""


class _Installed(msgspec.Struct, frozen=True):
    """What uninstalling has to restore."""

    steps: list[_Addition]
    is_new: bool
    """Whether the file did not exist."""
    folders: list[str]
    """The folders that did not exist, innermost first."""

    @classmethod
    def plan(cls, name: str, path: Path, before: str | None) -> _Installed:
        steps = list[_Addition]()
        for old, new in itertools.pairwise([before or "", *_with_hooks(name, before)]):
            start = _count_equal(old, new)
            end = _count_equal(old[start:][::-1], new[start:][::-1])
            steps.append(_Addition(new[start : len(new) - end], old[start : len(old) - end]))
        folders = [str(folder) for folder in path.parents if not folder.exists()]
        return cls(steps, before is None, folders)


def _count_equal(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _mark(name: str) -> str:
    """Return a text that every file with our hooks contains, and no other file."""
    return (
        f'"{ANSWER}", "{name}"' if hook_agents()[name].before == "" else f" hooks {ANSWER} {name}"
    )


def _with_hooks(name: str, before: str | None) -> Iterator[str]:
    """Yield a file's text after each step of installing. Raises NotAnObjectError."""
    agent, command, text = hook_agents()[name], hook_command(name), before or ""
    if not agent.before:
        plugin = typed.read_text("sidecar.hooks", f"plugins/{agent.form}")
        yield plugin.replace('["COMMAND"]', json.dumps(command))
        return
    events = {
        agent.before: _shell_text(command),
        agent.after: _shell_text([*command, AFTER_TURN]),
    }
    if agent.form == "own-json":
        own = {
            event: [{"type": "command", "bash": run, "timeoutSec": agent.timeout}]
            for event, run in events.items()
        }
        yield json.dumps({"version": 1, "hooks": own}, indent=2) + "\n"
        return
    for event, run in events.items():
        if agent.form == "settings":
            hook = {"type": "command", "command": run, "timeout": agent.timeout}
            text = add_item(text, "hooks", event, {"hooks": [hook]})
        else:
            lines = ["[[hooks]]", f"event = {_toml(event)}", f"command = {_toml(run)}"]
            gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
            text = "\n".join([text + gap + lines[0], *lines[1:], f"timeout = {agent.timeout}\n"])
        yield text


def _remove_hooks(name: str, text: str) -> str | None:
    """Return a file's text without our hooks, after another program has changed the file."""
    agent = hook_agents()[name]
    if agent.form == "settings":
        for event in (agent.before, agent.after):
            text = remove_items(text, "hooks", event, _mark(name))
        return text
    if agent.form == "toml":
        blocks = text.split("[[hooks]]")
        kept = [block for block in blocks[1:] if _mark(name) not in block]
        return "[[hooks]]".join([blocks[0], *kept])
    return None


def _shell_text(command: list[str]) -> str:
    return subprocess.list2cmdline(command) if IS_WINDOWS else shlex.join(command)


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SidecarError(f"cannot read {path}: {error.strerror}") from error


def _write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    write(path, text.encode("utf-8", "surrogateescape"))
    path.chmod(mode)


def _read_additions() -> dict[str, _Installed]:
    try:
        return typed.decode((state_dir() / _ADDITIONS).read_bytes(), dict[str, _Installed])
    except (OSError, msgspec.DecodeError):
        return {}
