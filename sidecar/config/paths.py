"""Determines the paths of configuration, state and cache files, without accessing them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from sidecar.operating_system import IS_LINUX

APP = "token-sidecar"
LIMIT_VARIABLE = "CONTEXT_MAX_TOKENS"
"""The environment variable that limits the context window, in tokens."""
STATE_VARIABLE = "TOKEN_SIDECAR_STATE"
"""The environment variable that contains the state folder's path."""
PROJECT_FILE = ".token-sidecar.toml"
PYPROJECT = "pyproject.toml"


def config_file(env: Mapping[str, str] | None = None) -> Path:
    """Return the user's configuration path. `TOKEN_SIDECAR_CONFIG` overrides the default."""
    named = _environ(env).get("TOKEN_SIDECAR_CONFIG")
    if named:
        return Path(named).expanduser()
    if found := _xdg_folder("XDG_CONFIG_HOME", ".config"):
        return found / "config.toml"
    from platformdirs import user_config_path

    return user_config_path(APP, appauthor=False, roaming=True) / "config.toml"


def state_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return the folder that contains the ledger and the calibration file.

    The environment variable `TOKEN_SIDECAR_STATE` overrides the default.
    """
    named = _environ(env).get(STATE_VARIABLE)
    if named:
        return Path(named).expanduser()
    if found := _xdg_folder("XDG_STATE_HOME", ".local/state"):
        return found
    from platformdirs import user_state_path

    return user_state_path(APP, appauthor=False)


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder, which may be deleted at any time.

    If `TOKEN_SIDECAR_STATE` is set, the cache is a subfolder of the state folder.
    """
    named = _environ(env).get(STATE_VARIABLE)
    if named:
        return Path(named).expanduser() / "cache"
    if found := _xdg_folder("XDG_CACHE_HOME", ".cache"):
        return found
    from platformdirs import user_cache_path

    return user_cache_path(APP, appauthor=False)


def _xdg_folder(variable: str, usual: str) -> Path | None:
    """Return the app's XDG folder, or None if only `platformdirs` can determine it.

    This usually avoids importing platformdirs, which would slow down every start.
    """
    if not IS_LINUX:
        return None
    named = os.environ.get(variable, "") or os.path.join(os.environ.get("HOME", ""), usual)
    return Path(named, APP) if _PLAIN(named) else None


_PLAIN = re.compile(r"(?:/[\w.-]+)+").fullmatch
"""Matches absolute paths that contain no variables, `~` or special characters."""


LEDGER_FILES = ("ledger.db", "ledger.db-wal")
"""The files to watch for changes to the ledger: the database and its write-ahead log."""


def project_files(root: Path) -> tuple[Path, Path]:
    """Return the files that may contain a project's settings. The first with settings is used."""
    return root / PROJECT_FILE, root / PYPROJECT


def settings_files(root: Path | None, env: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Return all files that may affect a project's settings, including missing files."""
    user = config_file(env)
    return (user,) if root is None else (user, *project_files(root))


def _environ(env: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if env is None else env
