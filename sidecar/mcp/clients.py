"""Adds the MCP server to the configuration of MCP clients, and removes it.

If an agent has a command for this, the command is run. Otherwise, the agent's configuration file is
edited.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import msgspec

from sidecar import typed
from sidecar.agents.folders import Places
from sidecar.config.edited_files import FileEdit, own_command, read_text
from sidecar.config.settings import Agents
from sidecar.errors import BadParamsError, SidecarError
from sidecar.project.mcp_servers import mcp_rules
from sidecar.text.json_objects import has_member, remove_member, set_member

Scope = Literal["user", "project"]

NAME = "token-sidecar"
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
class EditFile(FileEdit):
    """Changes a client's configuration by setting or removing a value in a JSON file."""

    file: Path
    name: str
    """The group to which the value belongs."""
    value: object | None
    """The new value, or None to remove the existing value."""

    @property
    def installs(self) -> bool:  # type: ignore[override]
        return self.value is not None

    @property
    def path(self) -> Path:
        return Path(os.path.realpath(self.file))

    def describe(self) -> str:
        """Return a description of the change. It is shown before the change is applied."""
        if self.value is None:
            return f"edit {self.file}: remove {self.name}.{NAME}"
        return f"edit {self.file}: set {self.name}.{NAME} to {json.dumps(self.value)}"

    def is_in(self, text: str) -> bool:
        return has_member(text, self.name, NAME)

    def add(self, text: str | None) -> Iterator[str]:
        yield set_member(text or "", self.name, NAME, self.value)

    def remove(self, text: str) -> str | None:
        return remove_member(text, self.name, NAME)


Change = RunCommand | EditFile


class McpClient(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """How the server is added to a client, and removed from it."""

    agent: str = ""
    """The agent that reads the client's configuration, if it has another name."""
    scopes: tuple[Scope, ...] = get_args(Scope)
    """Whether the client has a configuration per project, and a command that changes it."""
    add: str = ""
    """The command that adds the server. The command that starts the server is appended to it, or
    replaces `{entry}` as JSON.
    """
    adds_to: tuple[Scope, ...] = get_args(Scope)
    """Where `add` adds the server. Elsewhere, a file is edited."""
    remove: str = ""
    """The command that removes the server. Without it, a file is edited."""
    key: str = ""
    """The key of the servers in the file."""
    entry: dict[str, str] = {}
    """The server's entry. `{command}` is the command that starts the server, and `{program}` and
    `{arguments}` are its parts.
    """


@cache
def clients() -> dict[str, McpClient]:
    """Return the clients by name."""
    return typed.read_table("sidecar.mcp", "clients.toml", dict[str, McpClient])


def plan_install(client: str, scope: Scope, folder: Path) -> Change:
    """Return the change that adds the MCP server to a client.

    Args:
        client: The client.
        scope: Whether to add the server for all of the user's projects or for a single project.
        folder: The project folder.

    Raises:
        BadParamsError: The client does not support this scope.
    """
    rules = _rules_of(client, scope)
    command = [*([NAME] if shutil.which(NAME) else own_command()), "mcp"]
    parts = {"{command}": command, "{program}": command[0], "{arguments}": command[1:]}
    entry = {name: parts.get(value, value) for name, value in rules.entry.items()}
    if not rules.add or scope not in rules.adds_to:
        return EditFile(_file_to_edit(client, scope, folder), rules.key, entry)
    if "{entry}" in (words := _words(rules.add, scope)):
        return RunCommand((*words[:-1], json.dumps({"name": NAME, **entry})))
    return RunCommand((*words, *command))


def plan_uninstall(client: str, scope: Scope, folder: Path) -> Change:
    """Return the change that removes the MCP server from a client. See `plan_install`."""
    rules = _rules_of(client, scope)
    if rules.remove:
        return RunCommand(_words(rules.remove, scope))
    return EditFile(_file_to_edit(client, scope, folder), rules.key, None)


def _words(command: str, scope: Scope) -> tuple[str, ...]:
    local = "--local " if scope == "project" else ""
    return tuple(command.replace("{scope}", scope).replace("{local}", local).split())


def _rules_of(client: str, scope: Scope) -> McpClient:
    rules = clients()[client]
    if scope not in rules.scopes:
        raise BadParamsError(f"{client} cannot be configured per project; use --scope user")
    return rules


def clients_with_server(folder: Path) -> list[tuple[str, Path]]:
    """Return the client and path of each configuration file that contains the MCP server."""
    return [
        (client, path)
        for client in clients()
        for scope in get_args(Scope)
        for paths in _configuration_files(client, folder, scope)
        for path in paths
        if _has_server(path)
    ]


def _has_server(path: Path) -> bool:
    try:
        text = read_text(path) or ""
    except SidecarError:
        return False
    return f'"{NAME}"' in text or f"[mcp_servers.{NAME}]" in text


def _file_to_edit(client: str, scope: Scope, folder: Path) -> Path:
    """Return the file that has the server, else the first that exists, else the last one that is
    not in a folder of its own.

    If an agent reads several files, the one that overrides the others is edited.
    """
    paths = _configuration_files(client, folder, scope)[-1]
    named = min(reversed(paths), key=lambda path: len(path.parts))
    candidates = [*filter(_has_server, paths), *filter(Path.exists, paths), named]
    return candidates[0]


def _configuration_files(client: str, folder: Path, scope: Scope) -> list[tuple[Path, ...]]:
    """Return the possible paths of each of a client's files. Later files override earlier ones."""
    if client == "vscode":
        user = _vscode_folder() / "mcp.json"
        return [(user if scope == "user" else folder / ".vscode/mcp.json",)]
    places = Places.of(Agents())
    files = mcp_rules()[clients()[client].agent or client].files
    return [
        file.find(folder, places)
        for file in files
        if file.is_own == (scope == "user") and "{start}" not in file.key
    ]


def _vscode_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_config_dir("Code", appauthor=False, roaming=True)) / "User"
