"""One root folder: its settings, its conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sidecar.budget.rules import Rules
from sidecar.config.loaded import Loaded
from sidecar.config.settings import Settings
from sidecar.workspace.spending import Costs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sidecar.workspace.talk import Talk


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
    costs: Costs = field(default_factory=Costs)
    """What was spent, as last read from the ledger."""

    @cached_property
    def talk(self) -> Talk:
        """The conversations; their room is loaded when the first one is asked for."""

        from sidecar.workspace import talk

        return talk.Talk()

    @property
    def known_talk(self) -> Talk | None:
        """The conversations, if there have been any."""
        return self.__dict__.get("talk")

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
        talk = self.known_talk
        return (talk.current_model if talk else None) or self.settings.model
