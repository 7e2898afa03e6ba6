"""Where agents keep their files on this machine: settings, environment, each agent's default."""

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
    """The user's folders, and the paths that the settings name. Look-ups only; nothing is opened.

    `platform` is as `sys.platform` has it.
    """

    home: Path
    env: Mapping[str, str] = {}
    paths: Mapping[str, str] = {}
    platform: str = sys.platform

    @classmethod
    def of(cls, settings: Agents, env: Mapping[str, str] | None = None) -> Places:
        """Those of the user who runs this process."""
        env = dict(os.environ if env is None else env)
        home = env.get("USERPROFILE" if os.name == "nt" else "HOME")
        return cls(Path(home) if home else Path.home(), env, settings.paths)

    def folders(self, agent: str, variable: str | None, *defaults: Path) -> tuple[Path, ...]:
        """The folders of an agent: what the settings name stands beside its own.

        Its own are those of the environment variable (several are separated by commas), else the
        defaults. Each comes once.
        """
        named = [self.expand(part) for part in self.variable(variable).split(",") if part.strip()]
        extra = [self.expand(self.paths[agent])] if agent in self.paths else []
        return tuple(dict.fromkeys((*extra, *(named or defaults))))

    def variable(self, name: str | None) -> str:
        """An environment variable; "" where it is not set."""
        return self.env.get(name, "") if name else ""

    def expand(self, path: str) -> Path:
        """A path as somebody wrote it, `~` resolved."""
        path = path.strip()
        return self.home / path[2:] if path[:2] in ("~/", "~\\") else Path(path)

    @property
    def config(self) -> Path:
        """Where programs of this platform keep their configuration."""
        if self.platform == "win32":
            return self._variable_or("APPDATA", self.home / "AppData" / "Roaming")
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        return self.xdg_config

    @property
    def xdg_config(self) -> Path:
        """`$XDG_CONFIG_HOME`, which command-line tools use on every platform."""
        return self._variable_or("XDG_CONFIG_HOME", self.home / ".config")

    @property
    def data(self) -> Path:
        """`$XDG_DATA_HOME`, which command-line tools use on every platform."""
        return self._variable_or("XDG_DATA_HOME", self.home / ".local" / "share")

    @property
    def local_data(self) -> Path:
        """Where programs of this platform keep their data."""
        if self.platform == "win32":
            return self._variable_or("LOCALAPPDATA", self.home / "AppData" / "Local")
        return self.config if self.platform == "darwin" else self.data

    def _variable_or(self, name: str, default: Path) -> Path:
        value = self.variable(name)
        return Path(value) if value else default
