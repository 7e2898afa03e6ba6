"""Adds the MCP server to the configuration of MCP clients, and removes it.

If an agent has a command for this, the command is run. Otherwise, the agent's configuration file is
edited.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from sidecar import typed
from sidecar.agents.folders import Places
from sidecar.config.paths import state_dir
from sidecar.config.safe_files import locked, write
from sidecar.config.settings import Agents
from sidecar.errors import BadParamsError, SidecarError
from sidecar.operating_system import PROGRAM_SUFFIX
from sidecar.project.mcp_servers import mcp_rules
from sidecar.text.json_objects import (
    NotAnObjectError,
    has_member,
    is_bare,
    remove_member,
    set_member,
)

Scope = Literal["user", "project"]
ClientName = Literal[
    "claude-code", "codex", "opencode", "gemini", "qwen", "vscode",
    "cline", "copilot", "kilo", "kimi", "pi",
]  # fmt: skip
CLIENTS: tuple[ClientName, ...] = get_args(ClientName)

NAME = "token-sidecar"
_ORIGINALS = "mcp-install.json"
"""The file in the state folder that says what to restore in each edited file."""
_LOCK_SECONDS = 5.0
_ATTEMPTS = 5
_COMMAND_SECONDS = 60.0


@dataclass(frozen=True)
class RunCommand:
    """Changes a client's configuration by running the client's own command."""

    command: tuple[str, ...]

    def describe(self) -> str:
        """Return a description of the change. It is shown before the change is applied."""
        import shlex

        return f"run: {shlex.join(self.command)}"

    def is_needed(self) -> bool:
        """Return True, because only the command knows whether it would change anything.

        Raises:
            BadParamsError: The command is missing.
        """
        self._program()
        return True

    def _program(self) -> str:
        program = shutil.which(self.command[0])
        if program is None:
            raise BadParamsError(f"{self.command[0]} is not on PATH; install it first")
        return program

    def apply(self) -> None:
        """Run the command.

        Raises:
            SidecarError: The command is missing or has failed.
        """
        program = self._program()
        try:
            done = subprocess.run(  # noqa: S603 - the client's own command, shown to the user
                [program, *self.command[1:]],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SidecarError(
                f"{self.command[0]} could not be run: {type(error).__name__}"
            ) from error
        if done.returncode != 0:
            last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise SidecarError(f"{self.command[0]} exited with status {done.returncode}: {last}")


@dataclass(frozen=True)
class EditFile:
    """Changes a client's configuration by setting or removing a value in a JSON file."""

    path: Path
    group: str
    value: object | None
    """The new value, or None to remove the existing value."""

    def describe(self) -> str:
        """Return a description of the change. It is shown before the change is applied."""
        if self.value is None:
            return f"edit {self.path}: remove {self.group}.{NAME}"
        return f"edit {self.path}: set {self.group}.{NAME} to {json.dumps(self.value)}"

    def is_needed(self) -> bool:
        """Return whether applying the change would alter the file.

        Raises:
            SidecarError: The file cannot be read, or is not a JSON object.
        """
        try:
            text = _read(self.path)
        except OSError as error:
            raise SidecarError(f"cannot read {self.path}: {error.strerror}") from error
        return self._changed(text) != text

    def apply(self) -> None:
        """Apply the change, and try again if another program changes the file at the same time.

        Raises:
            SidecarError: The file cannot be read or written, or is not a JSON object.
        """
        path = Path(os.path.realpath(self.path))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(state_dir() / "mcp-install.lock", _LOCK_SECONDS):
                for _ in range(_ATTEMPTS):
                    before, is_new = _read(path), not path.exists()
                    after = self._changed(before)
                    if after == before:
                        return
                    if _read(path) == before:
                        self._write(path, None if is_new else before, after)
                        return
        except OSError as error:
            raise SidecarError(f"cannot write {self.path}: {error.strerror}") from error
        raise SidecarError(f"{self.path} is being changed by another program; try again")

    def _changed(self, text: str) -> str:
        try:
            if self.value is None:
                original = _read_originals().get(_name_of(Path(os.path.realpath(self.path))))
                keeps_group = original is not None and original.has_group
                return remove_member(text, self.group, NAME, keeps_group=keeps_group)
            return set_member(text, self.group, NAME, self.value)
        except NotAnObjectError as error:
            raise SidecarError(f"{self.path} is not a JSON object: {error}") from error

    def _write(self, path: Path, before: str | None, after: str) -> None:
        originals, name = _read_originals(), _name_of(path)
        if self.value is None:
            _restore(path, after, originals.pop(name, None))
        else:
            _write_text(path, after)
            if not has_member(before or "", self.group, NAME):
                originals.pop(name, None)
                original = _Original.of(before, self.group)
                originals |= {} if original is None else {name: original}
        write(state_dir() / _ORIGINALS, msgspec.json.encode(originals))


class _Original(msgspec.Struct, frozen=True):
    """What uninstalling must restore in a file, beside removing the server."""

    text: str | None
    """The text of a file without members, or None if the file did not exist."""
    has_group: bool
    """Whether the file contained the object to which the server was added."""

    @classmethod
    def of(cls, text: str | None, group: str) -> _Original | None:
        """Return what to restore, or None if removing the server restores the file."""
        if text is not None and has_member(text, group):
            return cls(None, has_group=True)
        return cls(text, has_group=False) if text is None or is_bare(text) else None


def _restore(path: Path, text: str, original: _Original | None) -> None:
    """Write a file without the server. If nothing else was added to it, restore the file."""
    if original is None or original.has_group or not is_bare(text):
        _write_text(path, text)
    elif original.text is not None:
        _write_text(path, original.text)
    else:
        path.unlink()
        with contextlib.suppress(OSError):  # the folder contains other files
            path.parent.rmdir()


def _name_of(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _read_originals() -> dict[str, _Original]:
    try:
        return typed.decode((state_dir() / _ORIGINALS).read_bytes(), dict[str, _Original])
    except (OSError, msgspec.DecodeError):
        return {}


Change = RunCommand | EditFile


def own_command() -> list[str]:
    """Return the command that starts this program, with its full path if it is not on PATH."""
    if shutil.which(NAME) is not None:
        return [NAME]
    script = Path(sys.executable).with_name(NAME + PROGRAM_SUFFIX)
    return [str(script)] if script.exists() else [sys.executable, "-P", "-m", "sidecar"]


_COMMANDS: dict[ClientName, tuple[str, str]] = {
    "claude-code": (
        f"claude mcp add --scope {{scope}} {NAME} --",
        f"claude mcp remove -s {{scope}} {NAME}",
    ),
    "codex": (f"codex mcp add {NAME} --", f"codex mcp remove {NAME}"),
    "opencode": (f"opencode mcp add {NAME} --", ""),
    "gemini": (
        f"gemini mcp add --scope {{scope}} {NAME}",
        f"gemini mcp remove -s {{scope}} {NAME}",
    ),
    "qwen": (f"qwen mcp add --scope {{scope}} {NAME}", f"qwen mcp remove -s {{scope}} {NAME}"),
    "cline": (f"cline mcp install {NAME} --yes --", f"cline mcp uninstall {NAME}"),
    "copilot": (f"copilot mcp add {NAME} --", f"copilot mcp remove {NAME}"),
    "kilo": (f"kilo mcp add {NAME} --", ""),
    # By default, Pi shows the tools only to scripts that the model writes.
    "pi": (f"pi mcp add {{local}}--exposure direct {NAME} --", f"pi mcp remove {{local}}{NAME}"),
}
"""The commands with which each client adds and removes the server. The command that starts the
server is appended to the command that adds it.
"""
_USER_ONLY: frozenset[ClientName] = frozenset({"codex", "cline", "copilot"})
"""Clients that have no configuration per project, or no command that changes it."""


def plan_install(client: ClientName, scope: Scope, folder: Path) -> Change:
    """Return the change that adds the MCP server to a client.

    Args:
        client: The client.
        scope: Whether to add the server for all of the user's projects or for a single project.
        folder: The project folder.

    Raises:
        BadParamsError: The client does not support this scope.
    """
    _check_scope(client, scope)
    command = [*own_command(), "mcp"]
    if client == "vscode":
        server = {"type": "stdio", "command": command[0], "args": command[1:]}
        if scope == "user":
            return RunCommand(("code", "--add-mcp", json.dumps({"name": NAME, **server})))
        return EditFile(_file_to_edit(client, scope, folder), "servers", server)
    if client in ("opencode", "kilo") and scope == "project":
        server = {"type": "local", "command": command}
        return EditFile(_file_to_edit(client, scope, folder), "mcp", server)
    if client == "kimi":
        server = {"command": command[0], "args": command[1:]}
        return EditFile(_file_to_edit(client, scope, folder), "mcpServers", server)
    return RunCommand((*_client_command(client, 0, scope), *command))


def plan_uninstall(client: ClientName, scope: Scope, folder: Path) -> Change:
    """Return the change that removes the MCP server from a client. See `plan_install`."""
    _check_scope(client, scope)
    if client == "vscode":
        return EditFile(_file_to_edit(client, scope, folder), "servers", None)
    if client in ("opencode", "kilo"):
        return EditFile(_file_to_edit(client, scope, folder), "mcp", None)
    if client == "kimi":
        return EditFile(_file_to_edit(client, scope, folder), "mcpServers", None)
    return RunCommand(_client_command(client, 1, scope))


def _client_command(client: ClientName, number: int, scope: Scope) -> tuple[str, ...]:
    local = "--local " if scope == "project" else ""
    return tuple(_COMMANDS[client][number].format(scope=scope, local=local).split())


def _check_scope(client: ClientName, scope: Scope) -> None:
    if client in _USER_ONLY and scope == "project":
        raise BadParamsError(f"{client} cannot be configured per project; use --scope user")


def clients_with_server(folder: Path) -> list[tuple[ClientName, Path]]:
    """Return the client and path of each configuration file that contains the MCP server."""
    return [
        (client, path)
        for client in CLIENTS
        for scope in get_args(Scope)
        for paths in _configuration_files(client, folder, scope)
        for path in paths
        if _has_server(path)
    ]


def _has_server(path: Path) -> bool:
    try:
        text = _read(path)
    except OSError:
        return False
    return f'"{NAME}"' in text or f"[mcp_servers.{NAME}]" in text


def _file_to_edit(client: ClientName, scope: Scope, folder: Path) -> Path:
    """Return the file that has the server, else the first that exists, else the last one that is
    not in a folder of its own.

    If an agent reads several files, the one that overrides the others is edited.
    """
    paths = _configuration_files(client, folder, scope)[-1]
    named = min(reversed(paths), key=lambda path: len(path.parts))
    candidates = [*filter(_has_server, paths), *filter(Path.exists, paths), named]
    return candidates[0]


_AGENTS: dict[ClientName, str] = {
    "gemini": "gemini-cli",
    "qwen": "qwen-code",
    "copilot": "copilot-cli",
    "kilo": "kilo-code",
    "kimi": "kimi-code",
}
"""The agents whose clients have other names."""


def _configuration_files(client: ClientName, folder: Path, scope: Scope) -> list[tuple[Path, ...]]:
    """Return the possible paths of each of a client's files. Later files override earlier ones."""
    if client == "vscode":
        user = _vscode_folder() / "mcp.json"
        return [(user if scope == "user" else folder / ".vscode/mcp.json",)]
    places = Places.of(Agents())
    files = mcp_rules()[_AGENTS.get(client, client)].files
    return [
        file.find(folder, places)
        for file in files
        if file.is_own == (scope == "user") and "{start}" not in file.key
    ]


def _vscode_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_config_dir("Code", appauthor=False, roaming=True)) / "User"


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def _write_text(path: Path, text: str) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    write(path, text.encode("utf-8", "surrogateescape"))
    path.chmod(mode)
