"""Quick fixes for exceeded budgets.

Each quick fix is a single `WorkspaceEdit` that can be undone in one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.counting.open_documents import Documents
from sidecar.server.client import DIAGNOSTICS_SOURCE, Client, find_line_span, from_position
from sidecar.server.protocol import Feature
from sidecar.text.document import TextDocument
from sidecar.text.printable import printable
from sidecar.workspace.services import Services

if TYPE_CHECKING:
    from sidecar.budgets.budget_rules import Subject
    from sidecar.budgets.findings import Finding
    from sidecar.budgets.instruction_findings import InstructionFinding
    from sidecar.budgets.quick_fixes import Fix, FixTarget, TextEdit

ANNOTATION = "token-sidecar"

Change = types.TextDocumentEdit | types.CreateFile | types.RenameFile | types.DeleteFile


class CodeActions(Feature):
    """Offers a quick fix for each way to respect a budget, and for what agents lose."""

    def __init__(self, services: Services, client: Client) -> None:
        self._services, self._client = services, client
        self.handlers = {types.TEXT_DOCUMENT_CODE_ACTION: self._propose}
        kinds = [types.CodeActionKind.QuickFix]
        self.options = {
            types.TEXT_DOCUMENT_CODE_ACTION: types.CodeActionOptions(code_action_kinds=kinds)
        }

    async def _propose(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        if not _allows_quick_fixes(params.context.only):
            return []
        uri, services = params.text_document.uri, self._services
        subject, findings = await services.findings(uri)
        instructions = await services.instructions.findings(uri)
        document = services.documents.get_open(uri)
        if not (findings or instructions) or document.version != subject.version:
            return []
        in_range = [finding for finding in findings if _overlaps(document, finding, params.range)]
        builder = _ActionBuilder(
            services.documents, self._client, document, params.context.diagnostics
        )
        fixes = [
            finding.fix
            for finding in instructions
            if finding.fix is not None and _overlaps(document, finding, params.range)
        ]
        if in_range:
            fixes += await self._propose_for_budgets(uri, subject, in_range)
        return [action for fix in fixes for action in builder.actions(fix)]

    async def _propose_for_budgets(
        self, uri: str, subject: Subject, findings: Sequence[Finding]
    ) -> list[Fix]:
        from sidecar.budgets.quick_fixes import SettingsOrigins, propose_fixes

        services = self._services
        workspace = services.roots.of_document(uri)
        choices = await services.budgets.choose_counters(subject, workspace)
        origins = SettingsOrigins(workspace.path, workspace.loaded.origins)
        return await services.workers.run(
            partial(propose_fixes, subject, findings, origins, choices)
        )


def _allows_quick_fixes(only: Sequence[types.CodeActionKind | str] | None) -> bool:
    kinds = [str(getattr(kind, "value", kind)) for kind in only or ["quickfix"]]
    return any(kind in ("", "quickfix") for kind in kinds)


def _overlaps(
    document: TextDocument, finding: Finding | InstructionFinding, span: types.Range
) -> bool:
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
        documents: Documents,
        client: Client,
        document: TextDocument,
        diagnostics: Sequence[types.Diagnostic],
    ) -> None:
        self._documents, self._document = documents, document
        self._diagnostics = [d for d in diagnostics if d.source == DIAGNOSTICS_SOURCE]
        workspace = client.client_capabilities.workspace
        self._capabilities = workspace.workspace_edit if workspace else None

    def actions(self, fix: Fix) -> Iterator[types.CodeAction]:
        """Yield a code action for a fix. Yield a second one that shows a preview, if supported."""
        can_create = self._has_document_changes() and self._can(types.ResourceOperationKind.Create)
        if fix.new_file is not None and not can_create:
            return
        if fix.deleted_uri is not None and not self._can(types.ResourceOperationKind.Delete):
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
        if fix.deleted_uri is not None:
            return types.WorkspaceEdit(document_changes=[types.DeleteFile(fix.deleted_uri)])
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
        open_document = self._documents.get(target.uri)
        version = open_document.version if open_document is not None else None
        document = TextDocument(target.uri, target.text, version, self._document.encoding)
        return document, version

    def _has_unsaved_changes(self, target: FixTarget) -> bool:
        """Return whether the editor's text differs from the file that the fix was computed for."""
        document = self._documents.get(target.uri)
        return document is not None and (not document.is_synced or document.text != target.text)

    def _has_document_changes(self) -> bool:
        return bool(self._capabilities and self._capabilities.document_changes)

    def _can(self, operation: types.ResourceOperationKind) -> bool:
        operations = (self._capabilities and self._capabilities.resource_operations) or []
        return operation in operations

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
