"""What the workspaces of one process share: made once, for the server and the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.workspace.calibrations import CalibrationStore
from sidecar.workspace.counts import Counts
from sidecar.workspace.documents import Documents
from sidecar.workspace.events import Event
from sidecar.workspace.roots import Workspaces
from sidecar.workspace.spending import Spending
from sidecar.workspace.state import State
from sidecar.workspace.windows import Windows
from sidecar.workspace.workers import Workers

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.workspace.spending import Spent
    from sidecar.workspace.workspace import Workspace


@dataclass(eq=False, repr=False)
class Shared:
    """Roots, open documents, counts, windows, state, and the threads that block for them."""

    roots: Workspaces = field(default_factory=Workspaces)
    workers: Workers = field(default_factory=Workers)
    documents: Documents = field(default_factory=Documents)
    state: State = field(default_factory=State)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)
    client: str = ""
    """The name of the editor that this serves, as it calls itself."""

    def __post_init__(self) -> None:
        self.windows = Windows(self.state)
        self.calibrations = CalibrationStore(self.state.folder)
        self.counts = Counts(
            self.workers, self.calibrations, self.windows, roots=self.roots, publish=self.publish
        )

    def spending(self, workspace: Workspace) -> Spending:
        """What a workspace spends: blocking, for worker threads."""
        settings, model = workspace.settings, workspace.model
        return Spending(self.state, settings, workspace.uri, model, workspace.path)

    def show_spent(self, workspace: Workspace, spent: Spent | None) -> None:
        """Show what the ledger says of a workspace now: the only place that updates its costs."""
        workspace.costs.take(spent)
        self.publish(Event("ledger", workspace))

    async def look_up(self, model: str, settings: Settings) -> None:
        """Have a model's window and price looked up, once. Asks nobody."""
        if not self.windows.is_loaded(model, settings):
            await self.workers.run(self.windows.looking_up(model, settings))
            self.windows.looked_up(model, settings)

    def publish(self, event: Event) -> None:
        """Let everybody who shows something of it work that out anew."""
        for listener in self.listeners:
            listener(event)
