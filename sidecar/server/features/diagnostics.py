"""Diagnostics for exceeded budgets, for what coding agents lose, and for configuration errors.

Diagnostics are pushed to the client, or pulled if the client only supports that. An edit
updates the diagnostics of the edited document. If a budget covers several files, the
diagnostics of all open documents are updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.budgets.budget_rules import Subject
from sidecar.config.settings import Problem
from sidecar.errors import SidecarError
from sidecar.models.window import Severity
from sidecar.project.file_watcher import Changes, FileWatcher, FollowedPaths
from sidecar.server.client import DIAGNOSTICS_SOURCE, Client, from_position
from sidecar.server.protocol import Feature
from sidecar.tasks import Scheduler
from sidecar.text.document import TextDocument
from sidecar.text.printable import printable
from sidecar.workspace.document_budgets import group_paths
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event, Workspace

if TYPE_CHECKING:
    from sidecar.budgets.findings import Finding
    from sidecar.budgets.instruction_findings import InstructionFinding

DEBOUNCE_SECONDS = 0.2
GROUP_SECONDS = 120.0
"""Interval at which the files of a shared budget are listed again, in seconds. New files that git
does not track yet are found in this way.
"""
CHECK_SECONDS = 0.5
"""Delay before instructions are checked again, so that the first count and typing stay fast."""
_DATA_FIELDS = ("rule", "section", "budget", "tokens", "over", "model", "method")
_INSTRUCTION_FIELDS = ("agents",)
_SEVERITIES = {
    "information": types.DiagnosticSeverity.Information,
    "warning": types.DiagnosticSeverity.Warning,
    "error": types.DiagnosticSeverity.Error,
}


class Diagnostics(Feature):
    """Updates the diagnostics of open documents after edits and settings changes."""

    def __init__(
        self, services: Services, client: Client, scheduler: Scheduler, watcher: FileWatcher
    ) -> None:
        self._services, self._client = services, client
        self._scheduler, self._groups = scheduler, FollowedPaths(watcher)
        """The files with shared budgets in each root."""
        self._sent: dict[str, tuple[int | None, list[types.Diagnostic]]] = {}
        self._problem_files: set[str] = set()
        self._pulls = False
        """Whether the client pulls diagnostics."""
        self.handlers = {types.TEXT_DOCUMENT_DIAGNOSTIC: self._pull}
        self.options = {
            types.TEXT_DOCUMENT_DIAGNOSTIC: types.DiagnosticOptions(
                inter_file_dependencies=True,
                workspace_diagnostics=False,
                identifier=DIAGNOSTICS_SOURCE,
            )
        }

    def on_initialize(self, params: types.InitializeParams) -> None:
        able = params.capabilities.text_document
        self._pulls = bool(able and able.diagnostic and not able.publish_diagnostics)

    def announce(self, capabilities: types.ServerCapabilities) -> None:
        """Announce pull diagnostics only to a client that does not support push diagnostics."""
        if not self._pulls:
            capabilities.diagnostic_provider = None

    async def _pull(
        self, params: types.DocumentDiagnosticParams
    ) -> types.RelatedFullDocumentDiagnosticReport:
        """Return a document's diagnostics. There are none after it was closed."""
        uri, items = params.text_document.uri, list[types.Diagnostic]()
        try:
            if uri in self._services.documents:
                _, items = await self._diagnose(uri)
        except SidecarError:
            if uri in self._services.documents:
                raise
        return types.RelatedFullDocumentDiagnosticReport(items)

    def _update_soon(self, uri: str) -> None:
        if not self._pulls and uri in self._services.documents:
            work = partial(self._update, uri)
            self._scheduler.schedule(("diagnostics", uri), DEBOUNCE_SECONDS, work)

    def on_event(self, event: Event) -> None:
        if event.what in ("document", "settings"):
            self._watch_groups()
        if event.what == "document" and event.uri is not None:
            if event.uri not in self._services.documents:
                self._closed(event.uri)
            self._update_soon(event.uri)
            self._shared_changed(event.uri)
        elif event.what == "instructions":
            self._instructions_changed(event)
        elif event.what == "context":
            self._window_changed(event)
        elif event.what in ("settings", "model", "endpoint"):
            self._all_changed()

    def _instructions_changed(self, event: Event) -> None:
        root = event.workspace
        if event.uri is not None:
            self._update_soon(event.uri)
        elif root is not None and root.rules and root.rules.always_loaded:
            for uri in self._services.documents:
                if self._services.roots.of_document(uri) is root:
                    self._update_soon(uri)
        if self._pulls and event.uri is not None:
            self._client.workspace_diagnostic_refresh(None)

    def _window_changed(self, event: Event) -> None:
        workspace = event.workspace
        if workspace is None or not workspace.settings.diagnostics.prompt_buffers:
            return
        for section in workspace.context.followed:
            self._update_soon(section.uri)

    def _all_changed(self) -> None:
        for uri in self._services.documents:
            self._update_soon(uri)
        self._publish_problems()
        if self._pulls:
            self._client.workspace_diagnostic_refresh(None)

    def _closed(self, uri: str) -> None:
        self._scheduler.cancel(("diagnostics", uri))
        if self._sent.pop(uri, None) is not None:
            self._publish(uri, None, [])

    def _shared_changed(self, uri: str) -> None:
        workspace = self._services.roots.of_document(uri)
        if workspace.rules and workspace.rules.sums:
            for other in self._services.documents:
                self._update_soon(other)

    def _watch_groups(self) -> None:
        """Watch the files with shared budgets in the roots of open documents."""
        roots = {self._services.roots.of_document(uri) for uri in self._services.documents}
        wanted = {root for root in roots if root.rules.sums and root.path is not None}
        self._groups.keep(wanted)
        for root in wanted:
            find_paths = partial(group_paths, str(root.path), root.rules)
            notify = partial(self._group_changed, root)
            self._groups.follow(root, root.rules, find_paths, notify, GROUP_SECONDS)

    def _group_changed(self, root: Workspace, changes: Changes) -> None:
        self._services.budgets.files_changed(root)
        for uri in self._services.documents:
            if self._services.roots.of_document(uri) is root:
                self._update_soon(uri)
        if self._pulls and changes is not None:
            self._client.workspace_diagnostic_refresh(None)

    async def _diagnose(self, uri: str) -> tuple[int | None, list[types.Diagnostic]]:
        """Return the document's version and diagnostics, and publish a change of its severity."""
        subject, findings = await self._services.findings(uri)
        if self._pulls:  # a push can follow when the instructions have been checked
            root = self._services.roots.of_document(uri)
            await self._services.instructions.check_if_stale(root)
        instructions = await self._services.instructions.findings(uri)
        work = partial(_diagnostics, subject, findings, instructions)
        has_any = findings or instructions
        diagnostics = await self._services.workers.run(work) if has_any else []
        severities = [row.severity for row in findings if row.kind == "file" and row.over]
        worst: Severity = "error" if "error" in severities else "warning" if severities else "ok"
        if uri in self._services.documents:
            self._set_severity(uri, worst)
        return subject.version, diagnostics

    def _set_severity(self, uri: str, severity: Severity) -> None:
        severities = self._services.severities
        if severities.get(uri, "ok") != severity:
            severities[uri] = severity
            self._services.publish(Event("severity", uri=uri))

    async def _update(self, uri: str) -> None:
        document = self._services.documents[uri]
        version = document.version
        diagnostics: list[types.Diagnostic] = []
        if document.is_synced:
            try:
                version, diagnostics = await self._diagnose(uri)
            except SidecarError:
                return  # the document was closed or edited, so another update is scheduled
        else:
            self._services.severities.pop(uri, None)
        if (diagnostics or uri in self._sent) and self._sent.get(uri) != (version, diagnostics):
            self._publish(uri, version, diagnostics)
            self._sent[uri] = version, diagnostics
        if not diagnostics:
            self._sent.pop(uri, None)
        if version != document.version:
            self._update_soon(uri)

    def _publish(self, uri: str, version: int | None, diagnostics: list[types.Diagnostic]) -> None:
        params = types.PublishDiagnosticsParams(uri, diagnostics, version)
        self._client.text_document_publish_diagnostics(params)

    def _publish_problems(self) -> None:
        """Publish diagnostics for the problems in configuration files."""
        by_uri: dict[str, list[types.Diagnostic]] = {uri: [] for uri in self._problem_files}
        for problem in [row for root in self._services.roots for row in root.loaded.problems]:
            if problem.file is not None and not problem.refused:
                diagnostics = by_uri.setdefault(problem.file.as_uri(), [])
                if (diagnostic := _problem_diagnostic(problem)) not in diagnostics:
                    diagnostics.append(diagnostic)
        for uri, diagnostics in by_uri.items():
            self._publish(uri, None, diagnostics)
        self._problem_files = {uri for uri, diagnostics in by_uri.items() if diagnostics}


def _diagnostics(
    subject: Subject,
    findings: Sequence[Finding],
    instructions: Sequence[InstructionFinding],
) -> list[types.Diagnostic]:
    from sidecar.budgets.findings import DOCUMENTATION, INSTRUCTIONS_PAGE

    document = subject.snapshot.document()
    return [
        *(_diagnostic(document, finding, DOCUMENTATION, _DATA_FIELDS) for finding in findings),
        *(
            _diagnostic(document, finding, INSTRUCTIONS_PAGE, _INSTRUCTION_FIELDS)
            for finding in instructions
        ),
    ]


def _diagnostic(
    document: TextDocument,
    finding: Finding | InstructionFinding,
    page: str,
    data_fields: Sequence[str],
) -> types.Diagnostic:
    start = document.position_at(finding.start)
    end = document.position_at(finding.end)
    return types.Diagnostic(
        range=types.Range(from_position(start), from_position(end)),
        message=finding.message,
        severity=_SEVERITIES[finding.severity],
        code=finding.code,
        code_description=types.CodeDescription(f"{page}#{finding.code}"),
        source=DIAGNOSTICS_SOURCE,
        # Clients send this data back when they request code actions.
        data={name: getattr(finding, name) for name in data_fields},
    )


def _problem_diagnostic(problem: Problem) -> types.Diagnostic:
    line = max(0, (problem.line or 1) - 1)
    span = types.Range(types.Position(line, 0), types.Position(line + 1, 0))
    text = f"{problem.key}: {problem.message}" if problem.key else problem.message
    severity = _SEVERITIES["error" if problem.severity == "error" else "warning"]
    return types.Diagnostic(
        span, printable(text), severity, code="configuration", source=DIAGNOSTICS_SOURCE
    )


class InstructionUpdates(Feature):
    """Checks again what agents lose, after changes of their files and of open documents.

    All roots are checked while a document is open.
    """

    def __init__(self, services: Services, scheduler: Scheduler, watcher: FileWatcher) -> None:
        self._services, self._scheduler = services, scheduler
        self._followed = FollowedPaths(watcher)

    def on_event(self, event: Event) -> None:
        services = self._services
        if event.what == "document" and event.uri is not None:
            services.instructions.document_changed(event.uri)
        elif event.what == "instructions" and event.workspace is not None:
            root = event.workspace
            paths, notify = services.instructions.watched(root), partial(self._files_changed, root)
            self._followed.follow(root, paths, lambda: paths, notify)
        elif event.what == "settings":
            for root in services.roots:
                services.instructions.mark_stale(root)
            checked = [root for root in services.roots if root.settings.footprint.diagnostics]
            self._followed.keep(checked)
        if event.what in ("document", "settings") and services.documents:
            for root in services.roots:
                if services.instructions.is_stale(root):
                    self._check_soon(root)

    def _check_soon(self, root: Workspace) -> None:
        if root.path is not None and root.settings.footprint.diagnostics:
            work = partial(self._check, root)
            self._scheduler.schedule(("instructions", root), CHECK_SECONDS, work)

    async def _check(self, root: Workspace) -> None:
        await self._services.configured.wait()
        await self._services.instructions.check_if_stale(root)

    def _files_changed(self, root: Workspace, _changes: object) -> None:
        self._services.instructions.mark_stale(root)
        self._check_soon(root)
