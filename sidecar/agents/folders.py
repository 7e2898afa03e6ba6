"""The folders in which coding agents keep their sessions, for this user and for open roots.

The locations come from the settings, environment variables and platform defaults. This module does
not import the readers, so a reader is loaded only if its agent has files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from glob import glob
from itertools import chain
from pathlib import Path

import msgspec

from sidecar.agents.branches import resolve, worktrees_beside
from sidecar.agents.file_reading import read_setting
from sidecar.config.settings import Agents
from sidecar.known_agents import all_agents, editor_servers, editors
from sidecar.operating_system import HOME_VARIABLE, PLATFORM


class Roots(msgspec.Struct, frozen=True):
    """A workspace's root folders, and the other git worktrees of their repositories.

    All symbolic links are resolved.
    """

    paths: tuple[str, ...]

    @classmethod
    def of(cls, folders: Iterable[str | os.PathLike[str]]) -> Roots:
        """Find the other git worktrees of the folders' repositories, and return all roots."""
        found: dict[str, None] = {}
        for folder in folders:
            real = os.path.realpath(folder)
            found |= dict.fromkeys((real, *worktrees_beside(real)))
        return cls(tuple(found))

    def contains(self, folder: str | None) -> bool:
        """Return whether a folder is inside one of the roots.

        Args:
            folder: Paths, digests or names of folders, separated by line feeds, as in
                `StoredSession`. A digest (`md5:…`) matches a root, but not its subfolders. A
                name (`name:…`) matches if exactly one root has this name.
        """
        return any(self._contains(path) for path in (folder or "").split("\n") if path)

    def _contains(self, folder: str) -> bool:
        method, _, digest = folder.partition(":")
        if method in _DIGESTS:
            return any(folder_digest(method, root) == digest for root in self.paths)
        if method == "name":
            return [os.path.basename(root) for root in self.paths].count(digest) == 1
        real = resolve(folder)
        return any(
            real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in self.paths
        )


_DIGESTS = ("md5", "sha256")


def first_path(folders: str | None) -> str:
    """Return the first of `Roots.contains`' folders, or an empty string if it is not a path."""
    first = (folders or "").partition("\n")[0]
    return "" if first.partition(":")[0] in (*_DIGESTS, "name") else first


@lru_cache(maxsize=4096)
def folder_digest(method: str, folder: str) -> str:
    """Return the hexadecimal digest of a folder's path, which some agents use as its name."""
    digest = hashlib.new(method, usedforsecurity=False)
    digest.update(folder.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


class Places(msgspec.Struct, frozen=True, eq=False):
    """The user's folders, based on the settings, the environment and the platform."""

    home: Path
    env: Mapping[str, str] = {}
    paths: Mapping[str, str] = {}
    platform: str = PLATFORM
    projects: tuple[str, ...] = ()
    """The workspace folders, because agents also read settings from the project."""

    @classmethod
    def of(
        cls,
        settings: Agents,
        env: Mapping[str, str] | None = None,
        projects: Iterable[str | os.PathLike[str]] = (),
    ) -> Places:
        """Return the current user's folders."""
        env = dict(os.environ if env is None else env)
        home = Path(env.get(HOME_VARIABLE) or Path.home())
        return cls(home, env, settings.paths, projects=tuple(os.fspath(one) for one in projects))

    def from_settings(self, agent: str) -> tuple[Path, ...]:
        """Return an agent's folder from `agents.paths`, or an empty tuple if it is not set."""
        return (self.expand(self.paths[agent]),) if agent in self.paths else ()

    def defaults(self, agent: str) -> tuple[Path, ...]:
        """Return an agent's default folders, which an environment variable can override."""
        return self.in_use(all_agents()[agent].folders)

    def in_use(self, folders: Sequence[str]) -> tuple[Path, ...]:
        """Return the folders of the first variable that is set, or those without a variable."""
        named = filter(None, (self.named_paths(one) for one in folders if one.startswith("$")))
        plain = (
            path for one in folders if not one.startswith("$") for path in self.named_paths(one)
        )
        return next(named, None) or tuple(plain)

    def session_folders(self, agent: str) -> tuple[Path, ...]:
        """Return the folders that the agent's variables and settings name for its sessions."""
        found = [
            path for one in all_agents()[agent].session_folders for path in self.named_paths(one)
        ]
        for setting in all_agents()[agent].settings:
            paths = dict.fromkeys(path for file in setting.files for path in self.named_paths(file))
            for path in paths:
                value = read_setting(path, setting.key.split("."))
                if isinstance(value, str) and value.strip():
                    found += [one / setting.inner for one in self._in_projects(value)]
        return tuple(one for one in dict.fromkeys(found) if not self.home.is_relative_to(one))

    def named_paths(self, text: str) -> tuple[Path, ...]:
        """Return the paths that a path of `Agent.folders` stands for, if its variable is set."""
        paths = self.paths_or_patterns(text)
        if "*" not in text:
            return paths
        return tuple(map(Path, chain.from_iterable(map(glob, map(str, paths)))))

    def paths_or_patterns(self, text: str) -> tuple[Path, ...]:
        """Return the same as `named_paths`, but patterns as they stand. No file is looked for."""
        if not text:
            return ()
        name, *inner = text.split("/")
        if name.startswith("$"):
            return tuple(one.joinpath(*inner) for one in self.folders_in(name[1:]))
        names = ("config", "xdg_config", "data", "local_data")
        return self._in_projects(text.format_map({name: getattr(self, name) for name in names}))

    def _in_projects(self, text: str) -> tuple[Path, ...]:
        """Return a path. A relative path is returned for each project, where the agent runs."""
        path = self.expand(text)
        return (path,) if path.is_absolute() else tuple(Path(one, path) for one in self.projects)

    def folders_in(self, variable: str | None) -> tuple[Path, ...]:
        """Return the comma-separated folders in an environment variable."""
        value = self.variable(variable)
        parts = [value] if os.path.isdir(self.expand(value)) else value.split(",")
        return tuple(self.expand(part) for part in parts if part.strip())

    def variable(self, name: str | None) -> str:
        """Return an environment variable's value, or an empty string if it is not set."""
        return self.env.get(name, "") if name else ""

    def expand(self, path: str) -> Path:
        """Replace a leading `~` with the home folder."""
        path = path.strip()
        if path == "~":
            return self.home
        return self.home / path[2:] if path[:2] in ("~/", "~\\") else Path(path)

    @property
    def config(self) -> Path:
        """The platform's folder for configuration files."""
        if self.platform == "win32":
            return self._variable_or("APPDATA", self.home / "AppData" / "Roaming")
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        return self.xdg_config

    @property
    def xdg_config(self) -> Path:
        """`$XDG_CONFIG_HOME` or its default. Command-line tools use it on all platforms."""
        return self._variable_or("XDG_CONFIG_HOME", self.home / ".config")

    @property
    def data(self) -> Path:
        """`$XDG_DATA_HOME` or its default. Command-line tools use it on all platforms."""
        return self._variable_or("XDG_DATA_HOME", self.home / ".local" / "share")

    @property
    def local_data(self) -> Path:
        """The platform's folder for application data."""
        if self.platform == "win32":
            return self._variable_or("LOCALAPPDATA", self.home / "AppData" / "Local")
        return self.config if self.platform == "darwin" else self.data

    def _variable_or(self, name: str, default: Path) -> Path:
        value = self.variable(name)
        return Path(value) if value else default


@lru_cache(maxsize=128)
def agent_folders(places: Places, agent: str) -> tuple[Path, ...]:
    """Return an agent's data folders, excluding those of editors. The folders may not exist."""
    homes = (*places.from_settings(agent), *places.defaults(agent))
    database = database_by_variable(places, agent)
    beside = (database.parent,) if database else ()
    return tuple(dict.fromkeys((*homes, *beside)))


@lru_cache(maxsize=128)
def session_folders(places: Places, agent: str) -> tuple[Path, ...]:
    """Return `Places.session_folders`, which reads the agent's settings files, once."""
    return places.session_folders(agent)


@lru_cache(maxsize=128)
def editor_folders(places: Places, agent: str) -> tuple[Path, ...]:
    """Return the user data folders of VS Code and its forks. They may not exist."""
    local = [places.config / app / "User" for app in editors()]
    portable = places.variable("VSCODE_PORTABLE")
    local += [Path(portable) / "user-data" / "User"] if portable else []
    moved = places.variable("VSCODE_APPDATA")
    local += [Path(moved) / app / "User" for app in editors()] if moved else []
    served = [places.home / name / "data" / "User" for name in editor_servers()]
    server = places.variable("VSCODE_AGENT_FOLDER")
    served += [Path(server) / "data" / "User"] if server else []
    served.append(places.data / "code-server" / "User")
    return tuple(dict.fromkeys((*places.from_settings(agent), *local, *served)))


def database_by_variable(places: Places, agent: str) -> Path | None:
    """Return the database path in the agent's environment variable, or None if it is not set."""
    named = places.variable(all_agents()[agent].database_variable)
    if not named or named == ":memory:":
        return None
    return Path(*places.defaults(agent)[:1], places.expand(named))


def possible_paths(places: Places, agent: str, roots: Iterable[str]) -> tuple[str, ...]:
    """Return the paths where an agent may keep files.

    At least one of them exists once the agent has been used.
    """
    paths = [*agent_folders(places, agent), *session_folders(places, agent)]
    paths += editor_folders(places, agent) if all_agents()[agent].extension else ()
    return (*dict.fromkeys(map(str, paths)), *project_files(places, agent, roots))


def project_files(places: Places, agent: str, roots: Iterable[str]) -> tuple[str, ...]:
    """Return the path of the agent's project file in each root folder. The file may not exist."""
    name = all_agents()[agent].project_file
    named = places.variable(all_agents()[agent].project_file_variable)
    names = [name, *([str(places.expand(named))] if named else [])] if name else []
    return tuple(dict.fromkeys(os.path.join(root, one) for root in roots for one in names))


def has_files(places: Places, agent: str, roots: Iterable[str]) -> bool:
    """Return whether an agent has any files in its usual places or in one of the root folders."""
    return any(map(os.path.exists, possible_paths(places, agent, roots)))
