"""Fixes for budgets: each one versioned WorkspaceEdit, undone in one step."""

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
    """Register the handlers."""
    options = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, options)
    async def code_actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        from sidecar.workspace.fixing import RootOrigins, proposals

        if not _wanted(params.context.only):
            return []
        uri = params.text_document.uri
        services = server.services
        subject, found = await server.diagnostics.findings(uri)
        document = services.documents.named(uri)
        if not found or document.version != subject.version:
            return []
        touched = [finding for finding in found if _touches(document, finding, params.range)]
        workspace = services.roots.of_document(uri)
        choices = await services.budgets.choose_counters(subject, workspace)
        place = RootOrigins(workspace.path, workspace.loaded.origins)
        work = partial(proposals, subject, touched, place, choices)
        made = await services.workers.run(work)
        builder = _Builder(server, document, params.context.diagnostics)
        return [action for proposal in made for action in builder.actions(proposal)]


def _wanted(only: Sequence[types.CodeActionKind | str] | None) -> bool:
    """Whether the kinds that a client asks for have room for quick fixes."""
    kinds = [str(getattr(kind, "value", kind)) for kind in only or ["quickfix"]]
    return any(kind in ("", "quickfix") for kind in kinds)


def _touches(document: TextDocument, finding: Finding, span: types.Range) -> bool:
    """By lines: an editor shows a diagnostic's sign at its line, wherever in it the cursor is."""
    # The end is behind its last character, which may be a line's end.
    ends = (finding.start, max(finding.start, finding.end - 1))
    first, last = (document.position_at(at).line for at in ends)
    upper, lower = to_lines(span)
    return first <= lower and upper <= last


class _Builder:
    """Turns proposals into code actions of one document at one version."""

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
        self._abilities = workspace.workspace_edit if workspace else None

    def actions(self, proposal: Proposal) -> Iterator[types.CodeAction]:
        """The action, and for a fit its preview where the client can show one."""
        if proposal.new_file is not None and not self._creates_files():
            return
        yield self._action(proposal, preview=False)
        if proposal.kind == "fit" and self._previews():
            yield self._action(proposal, preview=True)

    def _action(self, proposal: Proposal, *, preview: bool) -> types.CodeAction:
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
            changes += _new_file(proposal.new_file)
        changes.append(self._text_edit(proposal.target, proposal.edits, preview=preview))
        annotations = None
        if preview:
            annotations = {ANNOTATION: types.ChangeAnnotation(title, needs_confirmation=True)}
        return types.WorkspaceEdit(document_changes=changes, change_annotations=annotations)

    def _text_edit(
        self, target: FixTarget | None, edits: Sequence[TextEdit], *, preview: bool
    ) -> types.TextDocumentEdit:
        document, version = self._document, self._document.version
        if target is not None:
            open_one = self._server.services.documents.get(target.uri)
            version = open_one.version if open_one is not None else None
            document = TextDocument(target.uri, target.text, version, document.encoding)
        identifier = types.OptionalVersionedTextDocumentIdentifier(document.uri, version)
        made = [_one(document, edit, preview=preview) for edit in edits]
        return types.TextDocumentEdit(identifier, made)

    def _creates_files(self) -> bool:
        operations = (self._abilities and self._abilities.resource_operations) or []
        return types.ResourceOperationKind.Create in operations

    def _previews(self) -> bool:
        return bool(self._abilities and self._abilities.change_annotation_support)


def _one(
    document: TextDocument, edit: TextEdit, *, preview: bool
) -> types.TextEdit | types.AnnotatedTextEdit:
    start, end = document.position_at(edit.start), document.position_at(edit.end)
    span = types.Range(from_position(start), from_position(end))
    if preview:
        return types.AnnotatedTextEdit(ANNOTATION, span, edit.text)
    return types.TextEdit(span, edit.text)


def _new_file(target: FixTarget) -> list[Change]:
    start = types.Position(0, 0)
    identifier = types.OptionalVersionedTextDocumentIdentifier(target.uri, None)
    edit = types.TextEdit(types.Range(start, start), target.text)
    options = types.CreateFileOptions(overwrite=False, ignore_if_exists=False)
    return [
        types.CreateFile(target.uri, options=options),
        types.TextDocumentEdit(identifier, [edit]),
    ]
