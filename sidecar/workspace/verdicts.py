"""What the budgets of a workspace say about an open document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.budget.rules import Rule
from sidecar.config.settings import Budget
from sidecar.text.document import TextDocument
from sidecar.text.pieces import Piece
from sidecar.text.positions import Encoding
from sidecar.workspace.roots import path_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.budget.evaluate import Together
    from sidecar.budget.finding import Finding
    from sidecar.counting.count import Measure
    from sidecar.counting.tokenizers import Tokenizers
    from sidecar.workspace.workspace import Workspace


_HEAD_PIECES = 100
"""What is looked through for a mark while somebody types: ten lines are fewer, or very long."""


class Snapshot(msgspec.Struct, frozen=True):
    """One version of a document with the rules that it has; what a worker thread may evaluate."""

    name: str
    version: int | None
    pieces: tuple[Piece, ...]
    rules: tuple[Rule, ...]
    model: str
    encoding: Encoding

    def read(self) -> TextDocument:
        """The document as it was. Blocking for big ones."""
        text = "".join([piece.text for piece in self.pieces])
        return TextDocument("", text, self.version, self.encoding)


def relative_name(workspace: Workspace, uri: str) -> str:
    """The path that rules and messages know a document by: relative to its root, with `/`."""
    path = path_of(uri)
    if path is None:
        return uri.rsplit("/", 1)[-1]
    if workspace.path is not None and path.is_relative_to(workspace.path):
        return path.relative_to(workspace.path).as_posix()
    return path.name


def snapshot(document: TextDocument, workspace: Workspace) -> Snapshot:
    """What to evaluate of a document now."""
    name = relative_name(workspace, document.uri)
    rules = tuple(workspace.rules.of(name)) if workspace.rules else ()
    rules += _window_rule(document, workspace, name)
    version, pieces = document.version, document.pieces
    return Snapshot(name, version, pieces, rules, workspace.model, document.encoding)


def _window_rule(document: TextDocument, workspace: Workspace, name: str) -> tuple[Rule, ...]:
    """For a buffer that is part of the context: what the rest leaves it of the usable window."""
    talk = workspace.known_talk
    if not workspace.settings.diagnostics.prompt_buffers or talk is None:
        return ()
    usage = talk.shown
    if usage is None or usage.tokens is None:
        return ()
    mine = [one for one in talk.followed() if one.uri == document.uri]
    if not mine or usage.usable is None:
        return ()
    others = usage.tokens - sum(one.known_tokens for one in mine)
    room = max(1, usage.usable - max(0, others))
    warn_at = max(workspace.settings.context.warn_at, default=1.0)
    return (Rule("window", Budget(files=(name,), max_tokens=room, warn_at=warn_at)),)


def concerns(taken: Snapshot) -> bool:
    """Whether any rule or mark concerns a document. Looks through its text: for a worker."""
    from sidecar.text.outline_marks import WORD

    return bool(taken.rules) or any(WORD in piece.text for piece in taken.pieces)


def findings(
    taken: Snapshot,
    tokenizers: Tokenizers,
    together: Mapping[str, Together] | None = None,
    whole: Mapping[str, Measure] | None = None,
) -> list[Finding]:
    """The findings of a snapshot. Blocking: run it off the event loop."""
    # The room is loaded here, on a worker: a server that starts must not wait for it.
    from sidecar.budget.counter import TextCounter
    from sidecar.budget.evaluate import evaluate

    if not concerns(taken):
        return []
    text = "".join([piece.text for piece in taken.pieces])
    counter = TextCounter(text, tokenizers.for_model, taken.pieces, whole)
    return evaluate(taken.name, text, taken.rules, counter, taken.model, together)


def budget_of(document: TextDocument, workspace: Workspace, model: str) -> int | None:
    """The smallest budget in tokens of a whole document, counted for `model`: what a status shows.

    None where it has none, or says that it wants none. Budgets for another model speak through
    diagnostics.
    """
    if not workspace.rules:
        return None
    rules = workspace.rules.of(relative_name(workspace, document.uri))
    budgets = [
        rule.budget.max_tokens
        for rule in rules
        if rule.for_whole_files and rule.budget.model in (None, model)
    ]
    found = min((budget for budget in budgets if budget is not None), default=None)
    return None if found is None or _wants_none(document) else found


def _wants_none(document: TextDocument) -> bool:
    from sidecar.text.outline_marks import FIRST_LINES, ignores_file

    head, lines = "", 0
    for piece in document.pieces[:_HEAD_PIECES]:
        head, lines = head + piece.text, lines + piece.text.count("\n")
        if lines >= FIRST_LINES:
            break
    return ignores_file(head)
