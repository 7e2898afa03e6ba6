"""Objects shared by all workspaces of a process, both in the server and on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING

from sidecar.context.protocol import ContextWarning
from sidecar.text.printable import message as printable
from sidecar.workspace.calibrations import CalibrationStore
from sidecar.workspace.context_contents import ContentsReader
from sidecar.workspace.counts import Counts
from sidecar.workspace.documents import Documents
from sidecar.workspace.spending import Spending
from sidecar.workspace.state import State
from sidecar.workspace.windows import Windows
from sidecar.workspace.workers import Workers
from sidecar.workspace.workspace import Event, Workspaces

if TYPE_CHECKING:
    from sidecar.workspace.spending import SpendingSums
    from sidecar.workspace.workspace import Workspace


@dataclass(eq=False, repr=False)
class SharedServices:
    """The objects shared by all workspaces of a process."""

    roots: Workspaces = field(default_factory=Workspaces)
    documents: Documents = field(default_factory=Documents)
    state: State = field(default_factory=State)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)
    client: str = ""
    """The editor's name from the `initialize` request."""

    def __post_init__(self) -> None:
        self._reported_caps = set[tuple[date, str | None, str]]()
        self.workers = Workers()
        self.contents = ContentsReader(self.workers)
        self.windows = Windows(self.state)
        self.calibrations = CalibrationStore(self.state.folder)
        self.counts = Counts(
            self.workers,
            self.calibrations,
            self.windows,
            documents=self.documents,
            roots=self.roots,
            publish=self.publish,
        )

    def spending(self, workspace: Workspace) -> Spending:
        """Return an object that accesses the ledger for a workspace."""
        settings, model = workspace.settings, workspace.model
        return Spending(self.state, settings, workspace.uri, model, workspace.path)

    def update_costs(self, workspace: Workspace, spent: SpendingSums | None) -> None:
        """Update a workspace's costs with new sums from the ledger, and publish them."""
        workspace.costs.update(spent)
        self.publish(Event("ledger", workspace))
        if self._has_new_cap(workspace):
            warning = ContextWarning(
                workspace=workspace.uri,
                session=None,
                kind="cap",
                message=printable(workspace.costs.caps_text),
                usage=None,
            )
            self.publish(Event("warning", workspace, warning=warning))

    def _has_new_cap(self, workspace: Workspace) -> bool:
        """Return whether a cap is exceeded that has not been reported today."""
        today, before = datetime.now().astimezone().date(), len(self._reported_caps)
        for reason in workspace.costs.caps:
            # The amount changes with each call. The rest of the message names the cap.
            cap = reason.message.partition(" spent ")[2]
            place = None if cap.startswith("today ") else workspace.uri
            self._reported_caps.add((today, place, cap))
        return len(self._reported_caps) > before

    def publish(self, event: Event) -> None:
        """Pass an event to all listeners."""
        for listener in self.listeners:
            listener(event)
