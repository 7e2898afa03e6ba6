"""One root folder: its settings, its conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sidecar.budget.rules import Rules
from sidecar.config.resolve import Loaded
from sidecar.config.settings import Settings
from sidecar.workspace.spending import Costs
from sidecar.workspace.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(eq=False)
class Workspace:
    """What is known of one root; `uri` and `path` are None for documents outside every root."""

    uri: str | None
    path: Path | None
    loaded: Loaded = field(default_factory=lambda: Loaded(Settings(), (), {}))
    rules: Rules = field(default_factory=lambda: Rules(Settings()))
    """The budgets of these settings, compiled."""
    editor: Mapping[str, Any] = field(default_factory=dict)
    """The editor's section `tokenSidecar`, as it last answered."""
    talk: Talk = field(default_factory=Talk)
    """The conversations."""
    costs: Costs = field(default_factory=Costs)
    """What was spent, as last read from the ledger."""

    def take(self, loaded: Loaded, rules: Rules) -> None:
        """Put newly read settings in force."""
        self.loaded, self.rules = loaded, rules

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.loaded.settings

    @property
    def model(self) -> str:
        """The default model: the active session's, else the setting."""
        return self.talk.current_model or self.settings.model
