"""Locates the files of coding agents on this machine.

The locations come from the settings, environment variables and platform defaults. This module
does not import the readers, so a reader is loaded only if its agent has files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.operating_system import HOME_VARIABLE, PLATFORM

if TYPE_CHECKING:
    from sidecar.config.settings import Agents


class Places(msgspec.Struct, frozen=True):
    """The user's folders, based on the settings, the environment and the platform."""

    home: Path
    env: Mapping[str, str] = {}
    paths: Mapping[str, str] = {}
    platform: str = PLATFORM

    @classmethod
    def of(cls, settings: Agents, env: Mapping[str, str] | None = None) -> Places:
        """Return the folders of the current user."""
        env = dict(os.environ if env is None else env)
        home = env.get(HOME_VARIABLE)
        return cls(Path(home) if home else Path.home(), env, settings.paths)

    def folders(self, agent: str, variable: str | None, *defaults: Path) -> tuple[Path, ...]:
        """Return the folders of an agent, without duplicates.

        The folder from the settings comes first. It is followed by the folders in an environment
        variable (separated by commas), or by the defaults if the variable is not set.
        """
        named = [self.expand(part) for part in self.variable(variable).split(",") if part.strip()]
        extra = [self.expand(self.paths[agent])] if agent in self.paths else []
        return tuple(dict.fromkeys((*extra, *(named or defaults))))

    def variable(self, name: str | None) -> str:
        """Return the value of an environment variable, or an empty string if it is not set."""
        return self.env.get(name, "") if name else ""

    def expand(self, path: str) -> Path:
        """Replace a leading `~` with the home folder."""
        path = path.strip()
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
        """`$XDG_CONFIG_HOME` or its default, which command-line tools use on all platforms."""
        return self._variable_or("XDG_CONFIG_HOME", self.home / ".config")

    @property
    def data(self) -> Path:
        """`$XDG_DATA_HOME` or its default, which command-line tools use on all platforms."""
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


class _Home(NamedTuple):
    variable: str | None
    defaults: Callable[[Places], Iterable[Path]]


_HOMES = {
    "claude-code": _Home(
        "CLAUDE_CONFIG_DIR", lambda at: (at.home / ".claude", _xdg_folder(at, "claude"))
    ),
    "codex": _Home("CODEX_HOME", lambda at: [at.home / ".codex"]),
    "copilot-cli": _Home("COPILOT_HOME", lambda at: [at.home / ".copilot"]),
    "gemini-cli": _Home(None, lambda at: [at.home / ".gemini"]),
    "opencode": _Home("OPENCODE_DATA_DIR", lambda at: [at.data / "opencode"]),
    "kilo-code": _Home(None, lambda at: [at.data / "kilo"]),
    "goose": _Home(None, lambda at: [_goose_folder(at)]),
    "crush": _Home("CRUSH_GLOBAL_DATA", lambda at: [at.local_data / "crush"]),
    "zed": _Home(None, lambda at: [at.local_data / ("zed" if _is_free_unix(at) else "Zed")]),
    "amp": _Home("AMP_DATA_DIR", lambda at: [at.data / "amp"]),
    "vibe": _Home("VIBE_HOME", lambda at: [at.home / ".vibe"]),
    "continue": _Home("CONTINUE_GLOBAL_DIR", lambda at: [at.home / ".continue"]),
    "aider": _Home(None, lambda _: ()),
    "qwen-code": _Home("QWEN_DATA_DIR", lambda at: [at.home / ".qwen"]),
    "pi": _Home("PI_CODING_AGENT_DIR", lambda at: [at.home / ".pi" / "agent"]),
    "kimi-code": _Home("KIMI_CODE_HOME", lambda at: [at.home / ".kimi-code"]),
    "kimi-cli": _Home("KIMI_SHARE_DIR", lambda at: [at.home / ".kimi"]),
}
_DATABASES = {"opencode": "OPENCODE_DB", "kilo-code": "KILO_DB"}
"""Environment variables that name an additional database, by agent."""
_IN_EDITORS = ("copilot-chat", "cline", "roo-code", "kilo-code")
"""Editor extensions that keep files in the user data folders of VS Code and its forks."""
_CLINE = (
    ("CLINE_SESSION_DATA_DIR",),
    ("CLINE_DATA_DIR", "sessions"),
    ("CLINE_DIR", "data", "sessions"),
)
"""Environment variables that locate Cline's sessions, each with the subfolder to append.

The first variable that is set takes precedence.
"""
AIDER_FILE = ".aider.chat.history.md"

_APPS = (
    "Code", "Code - Insiders", "Code - Exploration", "VSCodium", "VSCodium - Insiders", "Cursor",
    "Windsurf", "Positron", "Kiro", "Trae",
)  # fmt: skip
EDITOR_SERVERS = (
    ".vscode-server", ".vscode-server-insiders", ".vscode-remote", ".vscodium-server",
)  # fmt: skip


def agent_folders(places: Places, agent: str) -> tuple[Path, ...]:
    """Return the data folders of an agent that runs outside of editors. They may not exist."""
    variable, defaults = _HOMES[agent]
    return places.folders(agent, variable, *defaults(places))


def editor_folders(places: Places, agent: str) -> tuple[Path, ...]:
    """Return the user data folders of VS Code and its forks. They may not exist."""
    local = [places.config / app / "User" for app in _APPS]
    portable = places.variable("VSCODE_PORTABLE")
    local += [Path(portable) / "user-data" / "User"] if portable else []
    served = [places.home / name / "data" / "User" for name in EDITOR_SERVERS]
    served.append(places.data / "code-server" / "User")
    return (*places.folders(agent, None, *local), *served)


def cline_sessions_folder(places: Places) -> Path:
    """Return the folder that Cline 4 and later store sessions in. It may not exist."""
    for variable, *inner in _CLINE:
        if named := places.variable(variable):
            return places.expand(named).joinpath(*inner)
    return places.home / ".cline" / "data" / "sessions"


def database_by_variable(places: Places, agent: str) -> Path | None:
    """Return the additional database from the agent's environment variable, if set."""
    named = places.variable(_DATABASES.get(agent))
    return places.expand(named) if named else None


def possible_paths(places: Places, agent: str, roots: Iterable[str]) -> tuple[str, ...]:
    """Return the agent's possible paths. If the agent has ever been used, at least one of them
    exists.
    """
    paths: list[Path] = []
    paths += agent_folders(places, agent) if agent in _HOMES else ()
    paths += editor_folders(places, agent) if agent in _IN_EDITORS else ()
    paths += [cline_sessions_folder(places)] if agent == "cline" else ()
    database = database_by_variable(places, agent)
    paths += [database.parent] if database else ()
    return (*map(str, paths), *project_files(agent, roots))


def project_files(agent: str, roots: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of the files that an agent keeps in projects."""
    return tuple(os.path.join(root, AIDER_FILE) for root in roots) if agent == "aider" else ()


def has_files(places: Places, agent: str, roots: Iterable[str]) -> bool:
    """Return whether an agent has any files on this machine or in one of the root folders."""
    return any(map(os.path.exists, possible_paths(places, agent, roots)))


def _xdg_folder(places: Places, name: str) -> Path:
    return places.xdg_config / name


def _goose_folder(places: Places) -> Path:
    named = places.variable("GOOSE_PATH_ROOT")
    if named:
        return places.expand(named) / "data"
    if places.platform == "win32":
        return places.config / "Block" / "goose" / "data"
    return places.data / "goose"


def _is_free_unix(places: Places) -> bool:
    return places.platform.startswith(("linux", "freebsd"))
