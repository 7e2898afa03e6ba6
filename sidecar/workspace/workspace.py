"""One root folder: its settings, its conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.config.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(eq=False)
class Workspace:
    """What is known of one root; `uri` and `path` are None for documents outside every root."""

    uri: str | None
    path: Path | None
    settings: Settings = field(default_factory=Settings)
    model_chosen: str | None = None
    """The model that the person picked for this session; it wins over the settings."""

    @property
    def model(self) -> str:
        """The default model of this workspace."""
        return self.model_chosen or self.settings.model
