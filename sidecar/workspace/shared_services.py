"""Objects shared by all workspaces of a process, both in the server and on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from sidecar.conversations.context_protocol import ContextWarning
from sidecar.cost.context_costs import CapReason, SpendingSums
from sidecar.counting.calibration import CalibrationStore
from sidecar.counting.counts import Counts
from sidecar.counting.open_documents import Documents
from sidecar.counting.windows import Windows
from sidecar.tasks import Workers
from sidecar.text.printable import message as printable
from sidecar.workspace.spending import Spending
from sidecar.workspace.state_folder import State
from sidecar.workspace.workspace import Event, Workspace, Workspaces


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
        self._reported_caps = set[tuple[object, ...]]()
        self.workers = Workers()
        self.windows = Windows(self.state.estimate)
        self.calibrations = CalibrationStore(self.state.folder)
        self.counts = Counts(
            self.workers,
            self.calibrations,
            self.windows,
            documents=self.documents,
            roots=self.roots,
            publish=lambda what, missed: self.publish(Event(what, missed=missed)),
        )

    def spending(self, workspace: Workspace) -> Spending:
        """Return an object that accesses the ledger for a workspace."""
        settings, model = workspace.settings, workspace.model
        return Spending(self.state, settings, workspace.uri, model, workspace.path)

    def update_costs(self, workspace: Workspace, spent: SpendingSums | None) -> None:
        """Update a workspace's costs with new sums from the ledger, and publish them."""
        workspace.costs.update(spent)
        self.publish(Event("ledger", workspace))
        new = self.report_new_caps(workspace, workspace.costs.sums.caps, workspace.shown_session)
        if new:
            warning = ContextWarning(
                workspace=workspace.uri,
                session=None,
                kind="cap",
                message=printable(new),
                usage=None,
            )
            self.publish(Event("warning", workspace, warning=warning))

    def report_new_caps(
        self, workspace: Workspace, reasons: Iterable[CapReason], session: str | None
    ) -> str:
        """Return a message about the exceeded caps that have not been reported today.

        The message is empty if there are none. These caps then count as reported.
        """
        today, new = datetime.now().astimezone().date(), []
        places = {"day": None, "session": session, "workspace": workspace.uri}
        for reason in reasons:
            if reason.span is not None:
                key = today, reason.span, places[reason.span], reason.kind, reason.cap_usd
                if key not in self._reported_caps:
                    self._reported_caps.add(key)
                    new.append(reason.message)
        return " ".join(new)

    def publish(self, event: Event) -> None:
        """Pass an event to all listeners."""
        for listener in self.listeners:
            listener(event)
