"""Diagnostics for exceeded budgets and configuration errors.

They are pushed, or pulled by clients that only support pulling. Budgets are evaluated for the
edited document and, for budgets over several files, for the other open documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

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
_DATA_FIELDS = ("rule", "section", "budget", "tokens", "over", "model", "method")
_SEVERITIES = {
    "information": types.DiagnosticSeverity.Information,
    "warning": types.DiagnosticSeverity.Warning,
    "error": types.DiagnosticSeverity.Error,
}


class DiagnosticsPublisher:
    """Updates each open document's diagnostics after edits and changed settings."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._services = server.services
        self._sent: dict[str, tuple[int | None, list[types.Diagnostic]]] = {}
        self._severities: dict[str, Severity] = {}
        self._problem_files: set[str] = set()
        self.pull = False
        """Whether the client pulls diagnostics."""
        self.choose: Callable[[types.ClientCapabilities], None] = lambda _: None

    def changed(self, uri: str) -> None:
        if not self.pull and uri in self._services.documents:
            work = partial(self._update, uri)
            self._server.scheduler.schedule(("diagnostics", uri), DEBOUNCE_SECONDS, work)

    def on_event(self, event: Event) -> None:
        """Update the diagnostics that an event may affect."""
        if event.what == "document" and event.uri is not None:
            self.changed(event.uri)
            self._shared_changed(event.uri)
        elif event.what == "context":
            self._window_changed(event)
        elif event.what in ("settings", "model", "endpoint"):
            self._all_changed()

    def _window_changed(self, event: Event) -> None:
        workspace = event.workspace
        if workspace is None or not workspace.settings.diagnostics.prompt_buffers:
            return
        for section in workspace.context.followed:
            self.changed(section.uri)

    def _all_changed(self) -> None:
        for uri in self._services.documents:
            self.changed(uri)
        self._publish_problems()
        if self.pull:
            self._server.workspace_diagnostic_refresh(None)

    def closed(self, uri: str) -> None:
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
        """Return the worst severity of the document's exceeded budgets."""
        return self._severities.get(uri, "ok")

    async def of(self, uri: str) -> tuple[int | None, list[types.Diagnostic]]:
        """Return the version of a document and its diagnostics."""
        subject, findings = await self.findings(uri)
        work = partial(_diagnostics, subject, findings)
        diagnostics = await self._services.workers.run(work) if findings else []
        severities = [row.severity for row in findings if row.kind == "file" and row.over]
        worst: Severity = "error" if "error" in severities else "warning" if severities else "ok"
        if worst != self.severity_of(uri):
            self._severities[uri] = worst
            self._server.status.changed(uri)
        return subject.version, diagnostics

    async def findings(self, uri: str) -> tuple[Subject, list[Finding]]:
        """Return a document's findings, and the version of the text that they are for."""
        services = self._services
        await services.configured.wait()
        snapshot, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
        subject = services.budgets.subject(snapshot, workspace)
        return subject, await services.budgets.findings(subject, workspace)

    async def _update(self, uri: str) -> None:
        document = self._services.documents[uri]
        version = document.version
        diagnostics: list[types.Diagnostic] = []
        if document.is_synced:
            try:
                version, diagnostics = await self.of(uri)
            except SidecarError:
                return  # the document was closed or edited; another update is scheduled
        else:
            self._severities.pop(uri, None)
        if (diagnostics or uri in self._sent) and self._sent.get(uri) != (version, diagnostics):
            self._publish(uri, version, diagnostics)
            self._sent[uri] = version, diagnostics
        if not diagnostics:
            self._sent.pop(uri, None)
        if version != document.version:
            self.changed(uri)

    def _publish(self, uri: str, version: int | None, diagnostics: list[types.Diagnostic]) -> None:
        params = types.PublishDiagnosticsParams(uri, diagnostics, version)
        self._server.text_document_publish_diagnostics(params)

    def _publish_problems(self) -> None:
        """Publish problems of configuration files as diagnostics of those files."""
        by_uri: dict[str, list[types.Diagnostic]] = {uri: [] for uri in self._problem_files}
        for problem in [row for root in self._services.roots for row in root.loaded.problems]:
            if problem.file is not None and not problem.refused:
                diagnostics = by_uri.setdefault(problem.file.as_uri(), [])
                if (diagnostic := _problem_diagnostic(problem)) not in diagnostics:
                    diagnostics.append(diagnostic)
        for uri, diagnostics in by_uri.items():
            self._publish(uri, None, diagnostics)
        self._problem_files = {uri for uri, diagnostics in by_uri.items() if diagnostics}


def _diagnostics(subject: Subject, findings: Sequence[Finding]) -> list[types.Diagnostic]:
    document = subject.snapshot.document()
    return [_diagnostic(document, finding) for finding in findings]


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
        # Clients send this back when they request code actions.
        data={name: getattr(finding, name) for name in _DATA_FIELDS},
    )


def _problem_diagnostic(problem: Problem) -> types.Diagnostic:
    line = max(0, (problem.line or 1) - 1)
    span = types.Range(types.Position(line, 0), types.Position(line + 1, 0))
    text = f"{problem.key}: {problem.message}" if problem.key else problem.message
    severity = _SEVERITIES["error" if problem.severity == "error" else "warning"]
    return types.Diagnostic(span, printable(text), severity, code="configuration", source=SOURCE)


def register(server: SidecarServer) -> None:
    """Announce pulled diagnostics to clients that do not support pushed ones."""
    diagnostics = server.diagnostics

    async def pull(
        params: types.DocumentDiagnosticParams,
    ) -> types.RelatedFullDocumentDiagnosticReport:
        _, items = await diagnostics.of(params.text_document.uri)
        return types.RelatedFullDocumentDiagnosticReport(items)

    def choose(capabilities: types.ClientCapabilities) -> None:
        supported = capabilities.text_document
        if supported is None or supported.publish_diagnostics or not supported.diagnostic:
            return
        diagnostics.pull = True
        options = types.DiagnosticOptions(
            inter_file_dependencies=True, workspace_diagnostics=False, identifier=SOURCE
        )
        server.feature(types.TEXT_DOCUMENT_DIAGNOSTIC, options)(pull)

    diagnostics.choose = choose
