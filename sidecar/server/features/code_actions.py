"""Quick fixes for exceeded budgets. Each is one `WorkspaceEdit`, which one undo reverts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.server.convert import from_position, to_lines
from sidecar.server.features.diagnostics import SOURCE
from sidecar.text.document import TextDocument
from sidecar.text.printable import printable

if TYPE_CHECKING:
    from sidecar.budget.finding import Finding
    from sidecar.budget.scopes import TextEdit
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.fixing import FixTarget, Proposal

ANNOTATION = "token-sidecar"

Change = types.TextDocumentEdit | types.CreateFile | types.RenameFile | types.DeleteFile


def register(server: SidecarServer) -> None:
    options = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, options)
    async def code_actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        from sidecar.workspace.fixing import RootOrigins, propose_fixes

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
        origins = RootOrigins(workspace.path, workspace.loaded.origins)
        propose = partial(propose_fixes, subject, in_range, origins, choices)
        builder = _ActionBuilder(server, document, params.context.diagnostics)
        return [
            action
            for proposal in await services.workers.run(propose)
            for action in builder.actions(proposal)
        ]


def _allows_quick_fixes(only: Sequence[types.CodeActionKind | str] | None) -> bool:
    kinds = [str(getattr(kind, "value", kind)) for kind in only or ["quickfix"]]
    return any(kind in ("", "quickfix") for kind in kinds)


def _overlaps(document: TextDocument, finding: Finding, span: types.Range) -> bool:
    # The last character may be a line break, after which `end` would be on the next line.
    ends = (finding.start, max(finding.start, finding.end - 1))
    first, last = (document.position_at(offset).line for offset in ends)
    span_first, span_last = to_lines(span)
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

    def actions(self, proposal: Proposal) -> Iterator[types.CodeAction]:
        """Yield the action, and for a fit a variant with a preview if the client supports it."""
        if proposal.new_file is not None and not self._can_create_files():
            return
        yield self._make_action(proposal, preview=False)
        if proposal.kind == "fit" and self._can_preview():
            yield self._make_action(proposal, preview=True)

    def _make_action(self, proposal: Proposal, *, preview: bool) -> types.CodeAction:
        title = printable(f"{proposal.title} (preview)" if preview else proposal.title)
        return types.CodeAction(
            title=title,
            kind=types.CodeActionKind.QuickFix,
            diagnostics=self._diagnostics or None,
            is_preferred=True if proposal.preferred and not preview else None,
            edit=self._edit(proposal, title, preview=preview),
        )

    def _edit(self, proposal: Proposal, title: str, *, preview: bool) -> types.WorkspaceEdit:
        changes: list[Change] = []
        if proposal.new_file is not None:
            changes += _create_file(proposal.new_file)
        changes.append(self._make_text_edit(proposal.target, proposal.edits, preview=preview))
        annotations = None
        if preview:
            annotations = {ANNOTATION: types.ChangeAnnotation(title, needs_confirmation=True)}
        return types.WorkspaceEdit(document_changes=changes, change_annotations=annotations)

    def _make_text_edit(
        self, target: FixTarget | None, edits: Sequence[TextEdit], *, preview: bool
    ) -> types.TextDocumentEdit:
        document, version = self._document, self._document.version
        if target is not None:
            open_document = self._server.services.documents.get(target.uri)
            version = open_document.version if open_document is not None else None
            document = TextDocument(target.uri, target.text, version, document.encoding)
        identifier = types.OptionalVersionedTextDocumentIdentifier(document.uri, version)
        lsp_edits = [_make_lsp_edit(document, edit, preview=preview) for edit in edits]
        return types.TextDocumentEdit(identifier, lsp_edits)

    def _can_create_files(self) -> bool:
        operations = (self._capabilities and self._capabilities.resource_operations) or []
        return types.ResourceOperationKind.Create in operations

    def _can_preview(self) -> bool:
        return bool(self._capabilities and self._capabilities.change_annotation_support)


def _make_lsp_edit(
    document: TextDocument, edit: TextEdit, *, preview: bool
) -> types.TextEdit | types.AnnotatedTextEdit:
    start, end = document.position_at(edit.start), document.position_at(edit.end)
    span = types.Range(from_position(start), from_position(end))
    if preview:
        return types.AnnotatedTextEdit(ANNOTATION, span, edit.text)
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
