"""What has changed or happened. Each listener works out again what depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.context.usage import ContextWarning
    from sidecar.endpoints.outcome import MissKind
    from sidecar.workspace.workspace import Workspace

EventKind = Literal[
    "document",
    "settings",
    "model",
    "context",
    "ledger",
    "endpoint",  # a count by an endpoint, or by what was learned from one
    "missed",  # an endpoint gave no count that it may give later
    "learned",  # something was learned that is to be written
    "warning",
]


class Missed(NamedTuple):
    """A count that an endpoint did not give."""

    model: str
    settings: Settings
    kind: MissKind


class Event(NamedTuple):
    """`workspace` None: all of them. `uri`: the document that was opened, edited or closed."""

    what: EventKind
    workspace: Workspace | None = None
    uri: str | None = None
    warning: ContextWarning | None = None
    missed: Missed | None = None

    @property
    def shows(self) -> bool:
        """Whether something that is shown may have changed."""
        return self.what not in ("missed", "learned", "warning")

    def concerns(self, workspace: Workspace) -> bool:
        """Whether a workspace may have changed."""
        return self.workspace is None or self.workspace is workspace
