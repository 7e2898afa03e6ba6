"""One root folder: its settings, and what is shown of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.budget.rules import Rules
from sidecar.config.options import Loaded
from sidecar.config.settings import Settings
from sidecar.context.window import NamedLimits
from sidecar.workspace.spending import Costs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from sidecar.context.thresholds import Severity
    from sidecar.context.usage import ContextUsage
    from sidecar.workspace.followed import FollowedSection


class ContextState(NamedTuple):
    """What is shown of a workspace's conversations: published after each change."""

    model: str | None = None
    """That a client named for the session shown, or its agent says."""
    limits: NamedLimits = NamedLimits()
    """The windows that were named for that model in that session."""
    usage: ContextUsage | None = None
    severity: Severity = "ok"
    chosen: str | None = None
    """The model that a client named; what an agent says is not one."""
    revision: int = 0
    """Another number after a change of any session, be it one that is not shown: no count."""


@dataclass(eq=False, repr=False)
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

    context: ContextState = field(default_factory=ContextState)
    """As its conversations published it last."""
    followed: Callable[[], Iterable[FollowedSection]] = tuple
    """The sections of its conversations that follow a document."""

    def limits_for(self, model: str) -> NamedLimits:
        """The windows that were named for the current session's model; none for another."""
        same = model == (self.context.model or self.settings.model)
        return self.context.limits if same else NamedLimits()

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
        return self.context.model or self.settings.model

    @property
    def budget_model(self) -> str:
        """What judges budgets that name no model: one that the user chose, else the setting, as for
        `check`. An agent's session that is open does not change a verdict."""
        return self.context.chosen or self.settings.model
