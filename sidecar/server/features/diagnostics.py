"""Budgets as diagnostics: pushed, or pulled by a client that does not take pushed ones.

Quiet by default: only budgets that someone wrote are evaluated, in the document that was edited
and, for budgets over several files, in the other open ones that share them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from sidecar.counting.incremental import Stopped
from sidecar.server.convert import from_position
from sidecar.server.errors import log_defect
from sidecar.workspace.verdicts import Snapshot, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sidecar.budget.finding import Finding
    from sidecar.config.options import Problem
    from sidecar.server.server import SidecarServer
    from sidecar.text.document import TextDocument
    from sidecar.workspace.status import Severity

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
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._sent: set[str] = set()
        self._severities: dict[str, Severity] = {}
        self._problem_files: set[str] = set()
        self.pull = False
        """Whether this client asks for diagnostics instead of being sent them."""
        self.choose: Callable[[types.ClientCapabilities], None] = lambda _: None

    def changed(self, uri: str) -> None:
        """The document, or what is said of it, has changed."""
        if self.pull or uri in self._timers or uri not in self._services.documents:
            return
        loop = asyncio.get_running_loop()
        self._timers[uri] = loop.call_later(DEBOUNCE_SECONDS, self._due, uri)

    def edited(self, uri: str) -> None:
        """A document was edited: it is due, and so are those that share a budget with it."""
        self.changed(uri)
        self._shared_changed(uri)

    def all_changed(self) -> None:
        """Settings changed: every document is due, and so are the mistakes in them."""
        for uri in self._services.documents:
            self.changed(uri)
        self._publish_problems()
        if self.pull:
            self._server.workspace_diagnostic_refresh(None)

    def closed(self, uri: str) -> None:
        """A closed document has no diagnostics."""
        if timer := self._timers.pop(uri, None):
            timer.cancel()
        if task := self._running.pop(uri, None):
            task.cancel()
        self._severities.pop(uri, None)
        if uri in self._sent:
            self._sent.discard(uri)
            self._publish(uri, None, [])
        # Now the file on disk counts: it may share a budget with what is open.
        self._shared_changed(uri)

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
        taken, found, diagnostics = await self.findings(uri)
        whole = [one.severity for one in found if one.kind == "file" and one.over]
        worst: Severity = "error" if "error" in whole else "warning" if whole else "ok"
        if worst != self.severity_of(uri):
            self._severities[uri] = worst
            self._server.status.changed(uri)
        return taken.version, diagnostics

    async def findings(self, uri: str) -> tuple[Snapshot, list[Finding], list[types.Diagnostic]]:
        """What budgets say about a document as it is now, and the same as diagnostics."""
        services = self._services
        await services.configured.wait()
        document, workspace = services.document(uri), services.roots.of_document(uri)
        taken = snapshot(document, workspace)
        buffers = services.buffers(workspace, taken)

        def work() -> tuple[list[Finding], list[types.Diagnostic]]:
            found = services.verdicts(taken, workspace, buffers)
            if not found:
                return found, []
            before = taken.read()
            return found, [_diagnostic(before, finding) for finding in found]

        return taken, *await services.counting.run(work)

    def _due(self, uri: str) -> None:
        self._timers.pop(uri, None)
        if uri in self._running:
            self.changed(uri)  # one at a time: look again when that one is done
            return
        task = asyncio.ensure_future(self._update(uri))
        self._running[uri] = task

    async def _update(self, uri: str) -> None:
        try:
            version, found = await self.of(uri)
            if found or uri in self._sent:
                self._publish(uri, version, found)
            (self._sent.add if found else self._sent.discard)(uri)
            if version != self._services.document(uri).version:
                self.changed(uri)
        except Stopped:
            return
        except Exception as exc:  # nobody awaits this task
            log_defect(exc)
        finally:
            self._running.pop(uri, None)

    def _publish(self, uri: str, version: int | None, found: list[types.Diagnostic]) -> None:
        params = types.PublishDiagnosticsParams(uri, found, version)
        self._server.text_document_publish_diagnostics(params)

    def _publish_problems(self) -> None:
        """Mistakes in configuration files, on the files themselves."""
        by_uri: dict[str, list[types.Diagnostic]] = {uri: [] for uri in self._problem_files}
        for problem in self._problems():
            if problem.file is not None:
                found = by_uri.setdefault(problem.file.as_uri(), [])
                if (diagnostic := _problem(problem)) not in found:
                    found.append(diagnostic)
        for uri, found in by_uri.items():
            self._publish(uri, None, found)
        self._problem_files = {uri for uri, found in by_uri.items() if found}

    def _problems(self) -> Iterable[Problem]:
        for workspace in self._services.roots:
            yield from workspace.loaded.problems


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
    return {
        "rule": finding.rule,
        "section": finding.section,
        "budget": finding.budget,
        "tokens": finding.tokens,
        "over": finding.over,
        "model": finding.model,
        "method": finding.method,
    }


def _problem(problem: Problem) -> types.Diagnostic:
    line = max(0, (problem.line or 1) - 1)
    span = types.Range(types.Position(line, 0), types.Position(line + 1, 0))
    text = f"{problem.key}: {problem.message}" if problem.key else problem.message
    severity = _SEVERITIES["error" if problem.severity == "error" else "warning"]
    return types.Diagnostic(span, text, severity, code="configuration", source=SOURCE)


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
