"""Budgets as diagnostics: pushed, or pulled by a client that does not take pushed ones.

Quiet by default: only budgets that someone wrote are evaluated, in the document that was edited
and, for budgets over several files, in the other open ones that share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from sidecar.errors import SidecarError
from sidecar.server.convert import from_position
from sidecar.text.printable import printable

if TYPE_CHECKING:
    from sidecar.budget.finding import Finding
    from sidecar.config.options import Problem
    from sidecar.context.window import Severity
    from sidecar.server.server import SidecarServer
    from sidecar.text.document import TextDocument
    from sidecar.workspace.budgets import Subject
    from sidecar.workspace.workspace import Event

DEBOUNCE_SECONDS = 0.2
SOURCE = "token-sidecar"
_SEVERITIES = {
    "information": types.DiagnosticSeverity.Information,
    "warning": types.DiagnosticSeverity.Warning,
    "error": types.DiagnosticSeverity.Error,
}


class Diagnostics:
    """Keeps each open document's diagnostics in step with its text and with the settings."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._services = server.services
        self._sent: dict[str, tuple[int | None, list[types.Diagnostic]]] = {}
        self._severities: dict[str, Severity] = {}
        self._problem_files: set[str] = set()
        self.pull = False
        """Whether this client asks for diagnostics instead of being sent them."""
        self.choose: Callable[[types.ClientCapabilities], None] = lambda _: None

    def changed(self, uri: str) -> None:
        """The document, or what is said of it, has changed."""
        if not self.pull and uri in self._services.documents:
            work = partial(self._update, uri)
            self._server.scheduler.soon(("diagnostics", uri), DEBOUNCE_SECONDS, work)

    def on_event(self, event: Event) -> None:
        """Look again at what an event may have changed."""
        if event.what == "document" and event.uri is not None:
            self.changed(event.uri)
            self._shared_changed(event.uri)
        elif event.what == "context":
            self._window_changed(event)
        elif event.what in ("settings", "model", "endpoint"):
            self._all_changed()

    def _window_changed(self, event: Event) -> None:
        """The room that the rest of a context leaves the buffers in it."""
        workspace = event.workspace
        if workspace is None or not workspace.settings.diagnostics.prompt_buffers:
            return
        for section in workspace.context.followed:
            self.changed(section.uri)

    def _all_changed(self) -> None:
        """Settings changed: every document is due, and so are the mistakes in them."""
        for uri in self._services.documents:
            self.changed(uri)
        self._publish_problems()
        if self.pull:
            self._server.workspace_diagnostic_refresh(None)

    def closed(self, uri: str) -> None:
        """A closed document has no diagnostics."""
        self._server.scheduler.cancel(("diagnostics", uri))
        self._severities.pop(uri, None)
        if self._sent.pop(uri, None) is not None:
            self._publish(uri, None, [])

    def _shared_changed(self, uri: str) -> None:
        workspace = self._services.roots.of_document(uri)
        if workspace.rules and workspace.rules.sums:
            for other in self._services.documents:
                self.changed(other)

    def severity_of(self, uri: str) -> Severity:
        """What the document's own budgets came to when they were last looked at."""
        return self._severities.get(uri, "ok")

    async def of(self, uri: str) -> tuple[int | None, list[types.Diagnostic]]:
        """The diagnostics of a document and the version that they are of."""
        subject, found = await self.findings(uri)
        work = partial(_diagnostics, subject, found)
        diagnostics = await self._services.workers.run(work) if found else []
        whole = [one.severity for one in found if one.kind == "file" and one.over]
        worst: Severity = "error" if "error" in whole else "warning" if whole else "ok"
        if worst != self.severity_of(uri):
            self._severities[uri] = worst
            self._server.status.changed(uri)
        return subject.version, diagnostics

    async def findings(self, uri: str) -> tuple[Subject, list[Finding]]:
        """What budgets say about a document as it is now."""
        services = self._services
        await services.configured.wait()
        taken, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
        subject = services.budgets.subject(taken, workspace)
        return subject, await services.budgets.findings(subject, workspace)

    async def _update(self, uri: str) -> None:
        document = self._services.documents[uri]
        version = document.version
        found: list[types.Diagnostic] = []
        if document.is_synced:
            try:
                version, found = await self.of(uri)
            except SidecarError:
                return  # closed or out of step meanwhile: it is looked at again for that
        else:
            self._severities.pop(uri, None)
        if (found or uri in self._sent) and self._sent.get(uri) != (version, found):
            self._publish(uri, version, found)
            self._sent[uri] = version, found
        if not found:
            self._sent.pop(uri, None)
        if version != document.version:
            self.changed(uri)

    def _publish(self, uri: str, version: int | None, found: list[types.Diagnostic]) -> None:
        params = types.PublishDiagnosticsParams(uri, found, version)
        self._server.text_document_publish_diagnostics(params)

    def _publish_problems(self) -> None:
        """Mistakes in configuration files, on the files themselves."""
        by_uri: dict[str, list[types.Diagnostic]] = {uri: [] for uri in self._problem_files}
        for problem in self._problems():
            if problem.file is not None and not problem.refused:
                found = by_uri.setdefault(problem.file.as_uri(), [])
                if (diagnostic := _problem(problem)) not in found:
                    found.append(diagnostic)
        for uri, found in by_uri.items():
            self._publish(uri, None, found)
        self._problem_files = {uri for uri, found in by_uri.items() if found}

    def _problems(self) -> Iterable[Problem]:
        for workspace in self._services.roots:
            yield from workspace.loaded.problems


def _diagnostics(subject: Subject, found: Sequence[Finding]) -> list[types.Diagnostic]:
    before = subject.taken.document()
    return [_diagnostic(before, finding) for finding in found]


def _diagnostic(document: TextDocument, finding: Finding) -> types.Diagnostic:
    from sidecar.budget.finding import DOCUMENTATION

    start = document.position_at(finding.start)
    end = document.position_at(finding.end)
    return types.Diagnostic(
        range=types.Range(from_position(start), from_position(end)),
        message=finding.message,
        severity=_SEVERITIES[finding.severity],
        code=finding.code,
        code_description=types.CodeDescription(f"{DOCUMENTATION}#{finding.code}"),
        source=SOURCE,
        data=_data(finding),
    )


def _data(finding: Finding) -> dict[str, Any]:
    """What a client hands back with a request for fixes; numbers and names only."""
    names = ("rule", "section", "budget", "tokens", "over", "model", "method")
    return {name: getattr(finding, name) for name in names}


def _problem(problem: Problem) -> types.Diagnostic:
    line = max(0, (problem.line or 1) - 1)
    span = types.Range(types.Position(line, 0), types.Position(line + 1, 0))
    text = f"{problem.key}: {problem.message}" if problem.key else problem.message
    severity = _SEVERITIES["error" if problem.severity == "error" else "warning"]
    return types.Diagnostic(span, printable(text), severity, code="configuration", source=SOURCE)


def register(server: SidecarServer) -> None:
    """Pulling is announced in `initialize`, and only to a client that takes no pushed ones."""
    diagnostics = server.diagnostics

    async def pulled(
        params: types.DocumentDiagnosticParams,
    ) -> types.RelatedFullDocumentDiagnosticReport:
        _, found = await diagnostics.of(params.text_document.uri)
        return types.RelatedFullDocumentDiagnosticReport(found)

    def choose(capabilities: types.ClientCapabilities) -> None:
        abilities = capabilities.text_document
        if abilities is None or abilities.publish_diagnostics or not abilities.diagnostic:
            return
        diagnostics.pull = True
        options = types.DiagnosticOptions(
            inter_file_dependencies=True, workspace_diagnostics=False, identifier=SOURCE
        )
        server.feature(types.TEXT_DOCUMENT_DIAGNOSTIC, options)(pulled)

    diagnostics.choose = choose
