"""A root folder with its settings, costs and shown context, and the events that announce
changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sidecar.budget.rules import Rules
from sidecar.config.options import Loaded
from sidecar.config.settings import Settings
from sidecar.context.window import NamedLimits
from sidecar.workspace.spending import Costs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sidecar.context.protocol import ContextUsage, ContextWarning
    from sidecar.endpoints.outcome import MissKind
    from sidecar.workspace.documents import FollowedSection


class ContextState(NamedTuple):
    """The shown context of a workspace. It is published after each change."""

    model: str | None = None
    """The shown session's model."""
    limits: NamedLimits = NamedLimits()
    """The context windows that the session names for its model."""
    usage: ContextUsage | None = None
    chosen: str | None = None
    """The model that a client named."""
    revision: int = 0
    """Increases with each change of any session."""
    followed: tuple[FollowedSection, ...] = ()
    """All sections that follow a document."""


class SettingsChange(NamedTuple):
    """New settings of a root. None leaves a part unchanged."""

    editor: Mapping[str, Any] | None = None
    """The editor's section `tokenSidecar`."""
    read: tuple[Loaded, Rules] | None = None
    """The options of all layers, and the compiled budgets."""


@dataclass(eq=False, repr=False)
class Workspace:
    """A root folder. `uri` and `path` are None for documents outside every root."""

    uri: str | None
    path: Path | None
    loaded: Loaded = field(default_factory=lambda: Loaded(Settings(), (), {}))
    rules: Rules = field(default_factory=lambda: Rules(Settings()))
    editor: Mapping[str, Any] = field(default_factory=dict)
    """The editor's section `tokenSidecar`, as it last sent it."""
    costs: Costs = field(default_factory=Costs)

    context: ContextState = field(default_factory=ContextState)
    """The shown context. Only `SessionRegistry` replaces it."""

    def limits_for(self, model: str) -> NamedLimits:
        """Return the context windows that the shown session names for a model."""
        same = model == (self.context.model or self.settings.model)
        return self.context.limits if same else NamedLimits()

    def apply_settings(self, change: SettingsChange) -> None:
        """Apply new settings."""
        if change.editor is not None:
            self.editor = change.editor
        if change.read is not None:
            self.loaded, self.rules = change.read

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @property
    def model(self) -> str:
        """The default model: the shown session's, else that of the settings."""
        return self.context.model or self.settings.model

    @property
    def budget_model(self) -> str:
        """The model for budgets that name none: the user's choice, else that of the settings.

        Agents' sessions have no influence, so that budgets agree with `check`.
        """
        return self.context.chosen or self.settings.model


EventKind = Literal[
    "document",
    "settings",
    "model",
    "context",
    "ledger",
    "endpoint",  # an endpoint's count, or a calibration, has changed counts
    "missed",  # an endpoint gave no count, but may give one later
    "learned",  # a calibration has changed and is not written yet
    "warning",
]


class Missed(NamedTuple):
    """A count that an endpoint failed to give."""

    model: str
    settings: Settings
    kind: MissKind


class Event(NamedTuple):
    """A change. `SidecarServer.react` updates everything that depends on it."""

    what: EventKind
    workspace: Workspace | None = None
    """The changed workspace, or None for all."""
    uri: str | None = None
    """The document that was opened, edited or closed."""
    warning: ContextWarning | None = None
    missed: Missed | None = None

    @property
    def shows(self) -> bool:
        """Whether a shown number may have changed."""
        return self.what not in ("missed", "learned", "warning")

    def concerns(self, workspace: Workspace) -> bool:
        """Return whether the event affects a workspace."""
        return self.workspace is None or self.workspace is workspace
