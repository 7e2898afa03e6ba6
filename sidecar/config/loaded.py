"""Settings as they were read, with what was wrong on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.config.options import Origin, Problem
    from sidecar.config.settings import Settings


@dataclass(frozen=True)
class Loaded:
    """Settings, what was wrong on the way, and the origin of each value by its key."""

    settings: Settings
    problems: tuple[Problem, ...]
    origins: Mapping[str, Origin]
