"""Determines the paths of configuration, state and cache files, and the root folder of a project.

Hooks also use this module. It imports little, because a prompt waits for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sidecar.operating_system import IS_LINUX

APP = "token-sidecar"
LIMIT_VARIABLE = "CONTEXT_MAX_TOKENS"
"""The environment variable that limits the context window, in tokens."""
STATE_VARIABLE = "TOKEN_SIDECAR_STATE"
"""The environment variable that contains the state folder's path."""
PROJECT_FILE = ".token-sidecar.toml"
PYPROJECT = "pyproject.toml"


def config_file(env: Mapping[str, str] = os.environ) -> Path:
    """Return the user's configuration path. `TOKEN_SIDECAR_CONFIG` overrides the default."""
    if named := env.get("TOKEN_SIDECAR_CONFIG"):
        return Path(named).expanduser()
    return _user_folder("config") / "config.toml"


def system_config_file(env: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the machine's configuration, which an administrator can deploy."""
    if IS_LINUX:
        folder = env.get("XDG_CONFIG_DIRS", "").partition(":")[0] or "/etc/xdg"
        return Path(folder, APP, "config.toml")
    from platformdirs import PlatformDirs

    return Path(PlatformDirs(APP, appauthor=False).site_config_dir, "config.toml")


def state_dir() -> Path:
    """Return the folder that contains the ledger and the calibration file.

    The environment variable `TOKEN_SIDECAR_STATE` overrides the default.
    """
    if named := os.environ.get(STATE_VARIABLE):
        return Path(named).expanduser()
    return _user_folder("state")


def cache_dir() -> Path:
    """Return the cache folder, which may be deleted at any time.

    If `TOKEN_SIDECAR_STATE` is set, the cache is a subfolder of the state folder.
    """
    if named := os.environ.get(STATE_VARIABLE):
        return Path(named).expanduser() / "cache"
    return _user_folder("cache")


_XDG = {
    "config": ("XDG_CONFIG_HOME", ".config"),
    "state": ("XDG_STATE_HOME", ".local/state"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
}
"""The environment variable and the default location of each folder on Linux."""
_PLAIN = re.compile(r"(?:/[\w.-]+)+").fullmatch
"""Matches an absolute path that needs no expansion."""


def _user_folder(kind: Literal["config", "state", "cache"]) -> Path:
    variable, usual = _XDG[kind]
    if IS_LINUX:
        # This usually avoids importing platformdirs, which would slow down startup.
        named = os.environ.get(variable, "") or os.path.join(os.environ.get("HOME", ""), usual)
        if _PLAIN(named):
            return Path(named, APP)
    from platformdirs import PlatformDirs

    folders = PlatformDirs(APP, appauthor=False, roaming=kind == "config")
    return Path(getattr(folders, f"user_{kind}_dir"))


STORED_LIST = "prices.json"
"""The file name of the price list that `cost update-prices` saves in the state folder."""
LEDGER_FILES = ("ledger.db", "ledger.db-wal")
"""The files to watch for changes to the ledger: the database and its write-ahead log."""


def project_files(root: Path) -> tuple[Path, Path]:
    """Return the files that may contain a project's settings. The first with settings is used."""
    return root / PROJECT_FILE, root / PYPROJECT


def settings_files(root: Path | None) -> tuple[Path, ...]:
    """Return all files that may affect a project's settings, including missing files."""
    own = own_config_files()
    return own if root is None else (*own, *project_files(root))


def own_config_files() -> tuple[Path, Path]:
    """Return the machine's and the user's configuration. The second takes precedence."""
    return system_config_file(), config_file()


def find_root(start: Path) -> Path:
    """Return the nearest project folder at or above a path.

    If there is none, return the path itself if it is a folder, or its parent if it is not.
    """
    folder = start if os.path.isdir(start) else start.parent
    return next(filter(is_root, (folder, *folder.parents)), folder)


def is_root(folder: Path) -> bool:
    """Return whether a folder contains a project configuration or `.git`. Never raises."""
    return os.path.exists(folder / ".git") or has_configuration(folder)


def has_configuration(folder: Path) -> bool:
    """Return whether a folder contains a project configuration. Never raises."""
    # Unlike pathlib, os.path does not raise for overlong or inaccessible paths.
    own, pyproject = project_files(folder)
    return os.path.isfile(own) or (os.path.isfile(pyproject) and has_section(pyproject))


def has_section(pyproject: Path) -> bool:
    """Return whether a `pyproject.toml` has a `[tool.token-sidecar]` section.

    Returns True for an invalid file that mentions the section, so that its error is reported.
    """
    from sidecar.config.safe_files import read_file

    try:
        text = read_file(pyproject, pyproject.parent).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return False
    if "token-sidecar" not in text:
        return False
    from sidecar.config.toml import InvalidTomlError, parse

    try:
        tools = parse(text).get("tool")
    except InvalidTomlError:
        return True
    return isinstance(tools, dict) and "token-sidecar" in tools
