"""What changed, for who shows something: each listener works out again what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from sidecar.context.usage import ContextWarning
    from sidecar.workspace.workspace import Workspace

EventKind = Literal["document", "settings", "model", "context", "ledger", "endpoint", "warning"]


class Event(NamedTuple):
    """`workspace` None: all of them. `uri`: the document that was opened, edited or closed."""

    what: EventKind
    workspace: Workspace | None = None
    uri: str | None = None
    warning: ContextWarning | None = None

    def concerns(self, workspace: Workspace) -> bool:
        """Whether a workspace may have changed."""
        return self.workspace is None or self.workspace is workspace
