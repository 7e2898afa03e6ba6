"""The objects shared by all server features."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

from sidecar.models import catalogue
from sidecar.workspace.shared_services import SharedServices
from sidecar.workspace.workspace import Event, find_linked_root

if TYPE_CHECKING:
    from sidecar.budgets.budget_rules import Subject
    from sidecar.budgets.findings import Finding
    from sidecar.counting.counts import CountedPart, PartCounts
    from sidecar.counting.tokenizer_interface import Tokenizer
    from sidecar.models.window import Severity
    from sidecar.text.document import Encoding
    from sidecar.workspace.agent_sessions import AgentSessions
    from sidecar.workspace.conversations import Conversations
    from sidecar.workspace.document_budgets import Budgets
    from sidecar.workspace.instruction_checks import InstructionChecks
    from sidecar.workspace.sessions import SessionRegistry
    from sidecar.workspace.state_folder import SharedConversations
    from sidecar.workspace.workspace import Workspace


logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Services(SharedServices):
    """The objects shared by all server features.

    The modules for budgets, conversations and agents are imported on first use.
    """

    encoding: Encoding = "utf-16"
    configured: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the settings of all roots have been read, or after a time limit."""
    parts: dict[str, PartCounts] = field(default_factory=dict)
    """The latest token counts of the sections and blocks in each open document."""
    severities: dict[str, Severity] = field(default_factory=dict)
    """The worst severity of each open document's exceeded budgets. Missing if there are none."""

    _sessions: dict[Workspace, SessionRegistry] = field(default_factory=dict)
    _conversations: dict[Workspace, Conversations] = field(default_factory=dict)

    @cached_property
    def budgets(self) -> Budgets:
        from sidecar.workspace.document_budgets import Budgets

        return Budgets(self.counts, self.documents, self.roots)

    @cached_property
    def instructions(self) -> InstructionChecks:
        from sidecar.workspace.instruction_checks import InstructionChecks

        return InstructionChecks(
            self.workers, self.documents, self.roots, self.publish, self.agent_windows
        )

    @cached_property
    def agents(self) -> AgentSessions:
        from sidecar.workspace.agent_sessions import AgentSessions

        return AgentSessions(self, self.sessions)

    @cached_property
    def shared_conversations(self) -> SharedConversations:
        from sidecar.workspace.state_folder import SharedConversations

        return SharedConversations(self.state.folder / "live", self.workers)

    def workspace(self, named: str | None) -> Workspace:
        """Return the workspace for a URI, a path or an open document.

        Raises:
            BadParamsError: `named` is not in any open root, or it is None and more than one root
                is open.
        """
        document = self.documents.get(named or "")
        return self.roots.of_document(document.uri) if document else self.roots.find(named)

    def find_workspace_or_first(self, named: str | None) -> Workspace:
        """Return the workspace for a URI, path or open document. Defaults to the first root.

        Raises:
            BadParamsError: `named` is not in any open root.
        """
        return self.roots.default if named is None else self.workspace(named)

    async def count_parts_of_document(self, uri: str) -> tuple[CountedPart, ...]:
        """Return a document's sections or top-level blocks in order, with their token counts.

        The result is empty if the document is edited during the count. The client should then
        ask again.

        Raises:
            RequestError: `unknownDocument`. The document is not open, or it is out of sync.
        """
        from sidecar.counting.counts import count_parts
        from sidecar.workspace.document_budgets import model_of

        await self.configured.wait()
        snapshot, workspace = self.documents.snapshot(uri), self.roots.of_document(uri)
        choice = await self.counts.choose_counter(
            snapshot, model_of(uri, workspace), workspace.settings
        )
        known = self.parts.get(uri, {})
        parts, now = await self.workers.run(partial(count_parts, snapshot, choice, known))
        if uri not in self.documents or self.documents.snapshot(uri) is not snapshot:
            return ()
        self.parts[uri] = now
        return parts

    async def findings(self, uri: str) -> tuple[Subject, list[Finding]]:
        """Check an open document. Return its text with its budget rules, and the findings."""
        await self.configured.wait()
        workspace = self.roots.of_document(uri)
        sent = await self.budgets.find_sent(uri, workspace, self.instructions)
        subject = self.budgets.subject(self.documents.snapshot(uri), workspace, sent)
        return subject, await self.budgets.findings(subject, workspace, sent)

    def document_changed(self, uri: str) -> None:
        """Publish that a document was opened, edited, closed or assigned to another root."""
        self.counts.document_edited(uri)
        self.publish(Event("document", self.roots.of_document(uri), uri))

    def close_document(self, uri: str) -> None:
        self.documents.close(uri)
        self.parts.pop(uri, None)
        self.severities.pop(uri, None)
        self.roots.unlink(uri)

    async def link_document(self, uri: str) -> None:
        """If a document is outside all roots, find its root after resolving links in its path."""
        if self.roots.of_document(uri) is not self.roots.outside or not self.roots.paths:
            return
        linked = await self.workers.run(partial(find_linked_root, uri, self.roots.paths))
        if uri in self.documents and self.roots.link(uri, linked):
            self.document_changed(uri)

    def tokenizers(self) -> list[Tokenizer]:
        """Return the tokenizers for the default models of all roots."""
        return [
            self.counts.tokenizers(workspace.settings).for_model(workspace.model)
            for workspace in self.roots
        ]

    async def load_prices(self) -> bool:
        """Load context windows and prices, unless the current price list is in use.

        This takes almost a second on a worker thread. Returns whether another list is in use now.
        """
        is_new = await self.workers.run(catalogue.refresh)
        if is_new:
            self.windows.forget_all()
            await self.workers.run(self.state.refresh_prices)
        self.windows.ready = True
        for workspace in self.roots:
            settings = workspace.settings
            own = {rule.budget.model for rule in workspace.rules.all if rule.budget.model}
            for model in own | {workspace.model, workspace.budget_model}:
                await self.counts.load_window_and_price(model, settings)
        return is_new

    def known_sessions(self, workspace: Workspace) -> SessionRegistry | None:
        """Return a workspace's session registry, or None if it has not been created yet."""
        return self._sessions.get(workspace)

    def agent_windows(self, workspace: Workspace) -> dict[str, int]:
        """Return the context window of each agent's newest session of the last 24 hours."""
        sessions = self.known_sessions(workspace)
        return {} if sessions is None else sessions.snapshot().agent_windows()

    def sessions(self, workspace: Workspace) -> SessionRegistry:
        if (known := self._sessions.get(workspace)) is not None:
            return known
        from sidecar.workspace.sessions import SessionRegistry

        sessions = SessionRegistry(self, workspace)
        if workspace in self.roots:  # the root may have been closed by now
            self._sessions[workspace] = sessions
        return sessions

    def conversations(self, workspace: Workspace) -> Conversations:
        if (known := self._conversations.get(workspace)) is not None:
            return known
        from sidecar.workspace.conversations import Conversations

        conversations = Conversations(self, workspace, self.sessions(workspace))
        if workspace in self.roots:
            self._conversations[workspace] = conversations
        return conversations

    def close_root(self, uri: str) -> Workspace | None:
        """Close a root folder and forget its conversations. Returns the closed workspace."""
        workspace = self.roots.remove(uri)
        if workspace is not None:
            self.forget_conversations(workspace)
            self.instructions.forget(workspace)
        return workspace

    def forget_conversations(self, workspace: Workspace) -> None:
        """Forget a workspace's conversations. Saved conversations can be restored later."""
        self._sessions.pop(workspace, None)
        self._conversations.pop(workspace, None)

    async def aclose(self) -> None:
        """Stop all counts, close connections and save calibrations."""
        self.workers.stop()
        await self.counts.aclose()
        await self.shared_conversations.aclose()
        await self.workers.run(self.state.close)
        if self.calibrations.has_unsaved:
            work = self.calibrations.begin_sync()
            try:
                self.calibrations.finish_sync(await self.workers.run(work))
            except OSError as exc:
                logger.warning("cannot write calibrations: %s", type(exc).__name__)
