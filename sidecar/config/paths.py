"""Where configuration, state and caches live. Pure look-ups: nothing is created or opened."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

APP = "token-sidecar"
LIMIT_VARIABLE = "CONTEXT_MAX_TOKENS"
"""The environment's cap of the context window, in tokens."""
STATE_VARIABLE = "TOKEN_SIDECAR_STATE"
"""The environment's folder of what is kept."""
PROJECT_FILE = ".token-sidecar.toml"
PYPROJECT = "pyproject.toml"


def config_file(env: Mapping[str, str] | None = None) -> Path:
    """The user's configuration file; `TOKEN_SIDECAR_CONFIG` names another."""
    named = _environ(env).get("TOKEN_SIDECAR_CONFIG")
    if named:
        return Path(named).expanduser()
    if found := _xdg("XDG_CONFIG_HOME", ".config"):
        return found / "config.toml"
    from platformdirs import user_config_path

    return user_config_path(APP, appauthor=False, roaming=True) / "config.toml"


def state_dir(env: Mapping[str, str] | None = None) -> Path:
    """The user's state folder (ledger, calibration); `TOKEN_SIDECAR_STATE` names another."""
    named = _environ(env).get(STATE_VARIABLE)
    if named:
        return Path(named).expanduser()
    if found := _xdg("XDG_STATE_HOME", ".local/state"):
        return found
    from platformdirs import user_state_path

    return user_state_path(APP, appauthor=False)


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """What may be deleted at any time; inside the state folder when that was named."""
    named = _environ(env).get(STATE_VARIABLE)
    if named:
        return Path(named).expanduser() / "cache"
    if found := _xdg("XDG_CACHE_HOME", ".cache"):
        return found
    from platformdirs import user_cache_path

    return user_cache_path(APP, appauthor=False)


def _xdg(variable: str, usual: str) -> Path | None:
    """On Linux the folder as `platformdirs` has it, whose import every start would wait for (it
    takes `tempfile` and `shutil` along); None where it has to be asked."""
    if sys.platform != "linux":
        return None
    named = os.environ.get(variable, "") or os.path.join(os.environ.get("HOME", ""), usual)
    return Path(named, APP) if _PLAIN(named) else None


_PLAIN = re.compile(r"(?:/[\w.-]+)+").fullmatch
"""An absolute path with nothing in it that could be expanded or cut off."""


LEDGER_FILES = ("ledger.db", "ledger.db-wal")
"""The ledger in the state folder, and its write-ahead log, which each write changes first."""


def project_files(root: Path) -> tuple[Path, Path]:
    """The files a workspace root may be configured in; the first that has a section is read."""
    return root / PROJECT_FILE, root / PYPROJECT


def watched_paths(root: Path | None, env: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Every file whose change, appearance or removal changes the settings of `root`."""
    user = config_file(env)
    return (user,) if root is None else (user, *project_files(root))


def _environ(env: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if env is None else env
