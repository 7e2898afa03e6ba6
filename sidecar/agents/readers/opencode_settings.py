"""Context windows that users set for models in opencode's settings."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.fields import Record, TokenCount
from sidecar.agents.file_reading import open_quietly

if TYPE_CHECKING:
    from sidecar.agents.places import Places

_NAMES = ("{0}.jsonc", "{0}.json", "config.json")
_LARGEST = 1 << 20
_COMMENTS = re.compile(r'("(?:[^"\\]|\\.)*+")|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)


class _Limit(Record):
    context: TokenCount = None


class _Model(Record):
    limit: _Limit | None = None


class _Provider(Record):
    models: dict[str, _Model] | None = None


class _Settings(Record):
    provider: dict[str, _Provider] | None = None


def own_window(places: Places, agent: str, folder: str, model: str) -> int | None:
    """Return a model's context window in the project's settings, or else in the user's.

    If several providers offer the model, the smallest window is returned.
    """
    for path in _settings_files(places, agent, folder):
        try:
            settings = _read_settings(path, os.stat(path).st_mtime_ns)
        except OSError:
            continue
        models = ((one.models or {}).get(model) for one in (settings.provider or {}).values())
        windows = [one.limit.context for one in models if one and one.limit and one.limit.context]
        if windows:
            return min(windows)
    return None


def _settings_files(places: Places, agent: str, folder: str) -> list[str]:
    folders = [folder, os.path.join(folder, f".{agent}"), str(places.xdg_config / agent)]
    named = places.variable(f"{agent.upper()}_CONFIG")
    paths = [os.path.join(one, name.format(agent)) for one in folders for name in _NAMES]
    return [named, *paths] if named else paths


@lru_cache(maxsize=32)
def _read_settings(path: str, _mtime_ns: int) -> _Settings:
    """Read settings in JSON with comments. The time is a key of the cache. Raises OSError."""
    with open_quietly(path) as file:
        text = file.read(_LARGEST).decode("utf-8", "replace")
    plain = _COMMENTS.sub(lambda found: found[1] or "", text)
    try:
        return typed.decode(plain, _Settings)
    except msgspec.DecodeError:
        return _Settings()
