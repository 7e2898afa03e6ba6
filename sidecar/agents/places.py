"""The user's folders, from the settings, the environment and the platform's defaults."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from sidecar.config.settings import Agents


class Places(msgspec.Struct, frozen=True):
    """The user's folders and the configured paths. Opens no files."""

    home: Path
    env: Mapping[str, str] = {}
    paths: Mapping[str, str] = {}
    platform: str = sys.platform

    @classmethod
    def of(cls, settings: Agents, env: Mapping[str, str] | None = None) -> Places:
        """Return the places of the current user."""
        env = dict(os.environ if env is None else env)
        home = env.get("USERPROFILE" if os.name == "nt" else "HOME")
        return cls(Path(home) if home else Path.home(), env, settings.paths)

    def folders(self, agent: str, variable: str | None, *defaults: Path) -> tuple[Path, ...]:
        """Return an agent's folders without duplicates.

        These are the configured folder, and those that an environment variable names (separated
        by commas) or else the defaults.
        """
        named = [self.expand(part) for part in self.variable(variable).split(",") if part.strip()]
        extra = [self.expand(self.paths[agent])] if agent in self.paths else []
        return tuple(dict.fromkeys((*extra, *(named or defaults))))

    def variable(self, name: str | None) -> str:
        """Return an environment variable, or "" if it is not set."""
        return self.env.get(name, "") if name else ""

    def expand(self, path: str) -> Path:
        """Expand `~` in a path."""
        path = path.strip()
        return self.home / path[2:] if path[:2] in ("~/", "~\\") else Path(path)

    @property
    def config(self) -> Path:
        """The platform's folder for configuration."""
        if self.platform == "win32":
            return self._variable_or("APPDATA", self.home / "AppData" / "Roaming")
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        return self.xdg_config

    @property
    def xdg_config(self) -> Path:
        """`$XDG_CONFIG_HOME`, which command-line tools use on all platforms."""
        return self._variable_or("XDG_CONFIG_HOME", self.home / ".config")

    @property
    def data(self) -> Path:
        """`$XDG_DATA_HOME`, which command-line tools use on all platforms."""
        return self._variable_or("XDG_DATA_HOME", self.home / ".local" / "share")

    @property
    def local_data(self) -> Path:
        """The platform's folder for data."""
        if self.platform == "win32":
            return self._variable_or("LOCALAPPDATA", self.home / "AppData" / "Local")
        return self.config if self.platform == "darwin" else self.data

    def _variable_or(self, name: str, default: Path) -> Path:
        value = self.variable(name)
        return Path(value) if value else default
