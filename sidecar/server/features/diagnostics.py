"""Diagnostics and quick fixes for exceeded budgets, and diagnostics for configuration errors.

Diagnostics are pushed to the client, or pulled if the client only supports that. An edit
updates the diagnostics of the edited document. If a budget covers several files, the
diagnostics of all open documents are updated. Each quick fix is a single `WorkspaceEdit` that
can be undone in one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.errors import SidecarError
from sidecar.server.protocol import find_line_span, from_position
from sidecar.text.document import TextDocument
from sidecar.text.printable import printable
from sidecar.workspace.budgets import group_paths

if TYPE_CHECKING:
    from sidecar.budget.findings import Finding
    from sidecar.budget.fixes import Fix, FixTarget, TextEdit
    from sidecar.budget.rules import Rules
    from sidecar.config.options import Problem
    from sidecar.context.occupancy import Severity
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.budgets import Subject
    from sidecar.workspace.file_watcher import Changes, PathSubscription
    from sidecar.workspace.workspace import Event, Workspace

DEBOUNCE_SECONDS = 0.2
GROUP_SECONDS = 120.0
"""Interval at which the files of a shared budget are listed again, in seconds. New files that git
does not track yet are found in this way.
"""
SOURCE = "token-sidecar"
_DATA_FIELDS = ("rule", "section", "budget", "tokens", "over", "model", "method")
_SEVERITIES = {
    "information": types.DiagnosticSeverity.Information,
    "warning": types.DiagnosticSeverity.Warning,
    "error": types.DiagnosticSeverity.Error,
}


class DiagnosticsPublisher:
    """Updates the diagnostics of open documents after edits and settings changes."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._services = server.services
        self._sent: dict[str, tuple[int | None, list[types.Diagnostic]]] = {}
        self._severities: dict[str, Severity] = {}
        self._problem_files: set[str] = set()
        self._groups: dict[Workspace, tuple[Rules, PathSubscription]] = {}
        """The watches on files with shared budgets, with the rules that they depend on."""
        self.pull = False
        """Whether the client pulls diagnostics."""

    def pull_if_needed(self, capabilities: types.ClientCapabilities) -> None:
        """Announce pull diagnostics to a client that does not support push diagnostics."""
        supported = capabilities.text_document
        if supported is None or supported.publish_diagnostics or not supported.diagnostic:
            return
        self.pull = True
        options = types.DiagnosticOptions(
            inter_file_dependencies=True, workspace_diagnostics=False, identifier=SOURCE
        )

        @self._server.feature(types.TEXT_DOCUMENT_DIAGNOSTIC, options)
        async def pull(
            params: types.DocumentDiagnosticParams,
        ) -> types.RelatedFullDocumentDiagnosticReport:
            items = await self._pull(params.text_document.uri)
            return types.RelatedFullDocumentDiagnosticReport(items)

    async def _pull(self, uri: str) -> list[types.Diagnostic]:
        """Return the document's diagnostics. There are none after it was closed."""
        try:
            return (await self.diagnose(uri))[1] if uri in self._services.documents else []
        except SidecarError:
            if uri in self._services.documents:
                raise
            return []

    def changed(self, uri: str) -> None:
        if not self.pull and uri in self._services.documents:
            work = partial(self._update, uri)
            self._server.scheduler.schedule(("diagnostics", uri), DEBOUNCE_SECONDS, work)

    def on_event(self, event: Event) -> None:
        """Update the diagnostics that an event may affect."""
        if event.what in ("document", "settings"):
            self._watch_groups()
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

    def _watch_groups(self) -> None:
        """Watch the files with shared budgets in the roots of open documents."""
        roots = {self._services.roots.of_document(uri) for uri in self._services.documents}
        wanted = {root: root.rules for root in roots if root.rules.sums and root.path is not None}
        for root, (rules, watch) in list(self._groups.items()):
            if wanted.get(root) is not rules:
                watch.cancel()
                del self._groups[root]
        for root in wanted.keys() - self._groups.keys():
            find_paths = partial(group_paths, str(root.path), root.rules)
            notify = partial(self._group_changed, root)
            watch = self._server.watch(find_paths, notify, GROUP_SECONDS)
            self._groups[root] = root.rules, watch

    def _group_changed(self, root: Workspace, changes: Changes) -> None:
        self._services.budgets.files_changed(root)
        for uri in self._services.documents:
            if self._services.roots.of_document(uri) is root:
                self.changed(uri)
        if self.pull and changes is not None:
            self._server.workspace_diagnostic_refresh(None)

    def severity_of(self, uri: str) -> Severity:
        """Return the worst severity among the document's exceeded budgets."""
        return self._severities.get(uri, "ok")

    async def diagnose(self, uri: str) -> tuple[int | None, list[types.Diagnostic]]:
        """Return the document's version and diagnostics."""
        subject, findings = await self.findings(uri)
        work = partial(_diagnostics, subject, findings)
        diagnostics = await self._services.workers.run(work) if findings else []
        severities = [row.severity for row in findings if row.kind == "file" and row.over]
        worst: Severity = "error" if "error" in severities else "warning" if severities else "ok"
        if worst != self.severity_of(uri) and uri in self._services.documents:
            self._severities[uri] = worst
            self._server.status.changed(uri)
        return subject.version, diagnostics

    async def findings(self, uri: str) -> tuple[Subject, list[Finding]]:
        """Check a document. Return its text with the rules that apply to it, and the findings."""
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
                version, diagnostics = await self.diagnose(uri)
            except SidecarError:
                return  # the document was closed or edited, so another update is scheduled
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


def _diagnostics(subject: Subject, findings: Sequence[Finding]) -> list[types.Diagnostic]:
    document = subject.snapshot.document()
    return [_diagnostic(document, finding) for finding in findings]


def _diagnostic(document: TextDocument, finding: Finding) -> types.Diagnostic:
    from sidecar.budget.findings import DOCUMENTATION

    start = document.position_at(finding.start)
    end = document.position_at(finding.end)
    return types.Diagnostic(
        range=types.Range(from_position(start), from_position(end)),
        message=finding.message,
        severity=_SEVERITIES[finding.severity],
        code=finding.code,
        code_description=types.CodeDescription(f"{DOCUMENTATION}#{finding.code}"),
        source=SOURCE,
        # Clients send this data back when they request code actions.
        data={name: getattr(finding, name) for name in _DATA_FIELDS},
    )


def _problem_diagnostic(problem: Problem) -> types.Diagnostic:
    line = max(0, (problem.line or 1) - 1)
    span = types.Range(types.Position(line, 0), types.Position(line + 1, 0))
    text = f"{problem.key}: {problem.message}" if problem.key else problem.message
    severity = _SEVERITIES["error" if problem.severity == "error" else "warning"]
    return types.Diagnostic(span, printable(text), severity, code="configuration", source=SOURCE)


ANNOTATION = "token-sidecar"

Change = types.TextDocumentEdit | types.CreateFile | types.RenameFile | types.DeleteFile


def register(server: SidecarServer) -> None:
    options = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, options)
    async def code_actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        from sidecar.workspace.fixing import SettingsOrigins, propose_fixes

        if not _allows_quick_fixes(params.context.only):
            return []
        uri = params.text_document.uri
        services = server.services
        subject, findings = await server.diagnostics.findings(uri)
        document = services.documents.get_open(uri)
        if not findings or document.version != subject.version:
            return []
        in_range = [finding for finding in findings if _overlaps(document, finding, params.range)]
        workspace = services.roots.of_document(uri)
        choices = await services.budgets.choose_counters(subject, workspace)
        origins = SettingsOrigins(workspace.path, workspace.loaded.origins)
        propose = partial(propose_fixes, subject, in_range, origins, choices)
        builder = _ActionBuilder(server, document, params.context.diagnostics)
        return [
            action for fix in await services.workers.run(propose) for action in builder.actions(fix)
        ]


def _allows_quick_fixes(only: Sequence[types.CodeActionKind | str] | None) -> bool:
    kinds = [str(getattr(kind, "value", kind)) for kind in only or ["quickfix"]]
    return any(kind in ("", "quickfix") for kind in kinds)


def _overlaps(document: TextDocument, finding: Finding, span: types.Range) -> bool:
    # If the last character is a line break, `end` is on the next line. Only at the end of the
    # document, that line belongs to nothing else.
    is_last = finding.end == len(document.text)
    ends = (finding.start, finding.end if is_last else max(finding.start, finding.end - 1))
    first, last = (document.position_at(offset).line for offset in ends)
    span_first, span_last = find_line_span(span)
    return first <= span_last and span_first <= last


class _ActionBuilder:
    def __init__(
        self,
        server: SidecarServer,
        document: TextDocument,
        diagnostics: Sequence[types.Diagnostic],
    ) -> None:
        self._server = server
        self._document = document
        self._diagnostics = [d for d in diagnostics if d.source == SOURCE]
        workspace = server.client_capabilities.workspace
        self._capabilities = workspace.workspace_edit if workspace else None

    def actions(self, fix: Fix) -> Iterator[types.CodeAction]:
        """Yield a code action for a fix. Yield a second one that shows a preview, if supported."""
        if fix.new_file is not None and not self._can_create_files():
            return
        if fix.target is not None and self._has_unsaved_changes(fix.target):
            return
        yield self._make_action(fix, preview=False)
        if fix.kind == "fit" and self._can_preview():
            yield self._make_action(fix, preview=True)

    def _make_action(self, fix: Fix, *, preview: bool) -> types.CodeAction:
        title = printable(f"{fix.title} (preview)" if preview else fix.title)
        return types.CodeAction(
            title=title,
            kind=types.CodeActionKind.QuickFix,
            diagnostics=self._diagnostics or None,
            is_preferred=True if fix.preferred and not preview else None,
            edit=self._edit(fix, title, preview=preview),
        )

    def _edit(self, fix: Fix, title: str, *, preview: bool) -> types.WorkspaceEdit:
        if not self._has_document_changes():
            document, _ = self._edited_document(fix.target)
            edits = [_make_lsp_edit(document, edit) for edit in fix.edits]
            return types.WorkspaceEdit(changes={document.uri: edits})
        changes: list[Change] = []
        if fix.new_file is not None:
            changes += _create_file(fix.new_file)
        changes.append(self._make_text_edit(fix.target, fix.edits, preview=preview))
        annotations = None
        if preview:
            annotations = {ANNOTATION: types.ChangeAnnotation(title, needs_confirmation=True)}
        return types.WorkspaceEdit(document_changes=changes, change_annotations=annotations)

    def _make_text_edit(
        self, target: FixTarget | None, edits: Sequence[TextEdit], *, preview: bool
    ) -> types.TextDocumentEdit:
        document, version = self._edited_document(target)
        identifier = types.OptionalVersionedTextDocumentIdentifier(document.uri, version)
        lsp_edits = [
            types.AnnotatedTextEdit(ANNOTATION, edit.range, edit.new_text) if preview else edit
            for edit in (_make_lsp_edit(document, edit) for edit in edits)
        ]
        return types.TextDocumentEdit(identifier, lsp_edits)

    def _edited_document(self, target: FixTarget | None) -> tuple[TextDocument, int | None]:
        if target is None:
            return self._document, self._document.version
        open_document = self._server.services.documents.get(target.uri)
        version = open_document.version if open_document is not None else None
        document = TextDocument(target.uri, target.text, version, self._document.encoding)
        return document, version

    def _has_unsaved_changes(self, target: FixTarget) -> bool:
        """Return whether the editor's text differs from the file that the fix was computed for."""
        document = self._server.services.documents.get(target.uri)
        return document is not None and (not document.is_synced or document.text != target.text)

    def _has_document_changes(self) -> bool:
        return bool(self._capabilities and self._capabilities.document_changes)

    def _can_create_files(self) -> bool:
        if not self._has_document_changes():
            return False
        operations = (self._capabilities and self._capabilities.resource_operations) or []
        return types.ResourceOperationKind.Create in operations

    def _can_preview(self) -> bool:
        supported = self._capabilities and self._capabilities.change_annotation_support
        return self._has_document_changes() and bool(supported)


def _make_lsp_edit(document: TextDocument, edit: TextEdit) -> types.TextEdit:
    start, end = document.position_at(edit.start), document.position_at(edit.end)
    span = types.Range(from_position(start), from_position(end))
    return types.TextEdit(span, edit.text)


def _create_file(target: FixTarget) -> list[Change]:
    start = types.Position(0, 0)
    identifier = types.OptionalVersionedTextDocumentIdentifier(target.uri, None)
    edit = types.TextEdit(types.Range(start, start), target.text)
    options = types.CreateFileOptions(overwrite=False, ignore_if_exists=False)
    return [
        types.CreateFile(target.uri, options=options),
        types.TextDocumentEdit(identifier, [edit]),
    ]
