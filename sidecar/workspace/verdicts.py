"""What the budgets of a workspace say about an open document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.budget.counter import TextCounter
from sidecar.budget.evaluate import Together, evaluate
from sidecar.budget.rules import Rule
from sidecar.config.settings import Budget
from sidecar.text.outline_marks import WORD
from sidecar.text.pieces import Piece
from sidecar.workspace.roots import path_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sidecar.budget.finding import Finding
    from sidecar.counting.count import Measure
    from sidecar.counting.tokenizers import Tokenizers
    from sidecar.text.document import TextDocument
    from sidecar.workspace.workspace import Workspace


class Snapshot(msgspec.Struct, frozen=True):
    """One version of a document with the rules that it has; what a worker thread may evaluate."""

    name: str
    version: int | None
    text: str
    pieces: tuple[Piece, ...]
    rules: tuple[Rule, ...]
    model: str


def relative_name(workspace: Workspace, uri: str) -> str:
    """The path that rules and messages know a document by: relative to its root, with `/`."""
    path = path_of(uri)
    if path is None:
        return uri.rsplit("/", 1)[-1]
    if workspace.path is not None and path.is_relative_to(workspace.path):
        return path.relative_to(workspace.path).as_posix()
    return path.name


def snapshot(document: TextDocument, workspace: Workspace) -> Snapshot | None:
    """What to evaluate of a document now; None where no rule and no mark concerns it."""
    name = relative_name(workspace, document.uri)
    rules = tuple(workspace.rules.of(name)) if workspace.rules else ()
    rules += _window_rule(document, workspace, name)
    if not rules and not _marked(document):
        return None
    return Snapshot(name, document.version, document.text, document.pieces, rules, workspace.model)


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


def _marked(document: TextDocument) -> bool:
    return any(WORD in piece.text for piece in document.pieces)


def findings(
    taken: Snapshot,
    tokenizers: Tokenizers,
    together: Mapping[str, Together] | None = None,
    whole: Mapping[str, Measure] | None = None,
) -> list[Finding]:
    """The findings of a snapshot. Blocking: run it off the event loop."""
    counter = TextCounter(taken.text, tokenizers.for_model, taken.pieces, whole)
    return evaluate(taken.name, taken.text, taken.rules, counter, taken.model, together)


def tightest(rules: Sequence[Rule]) -> int | None:
    """The smallest budget that whole files of these rules have, in tokens: what a status shows."""
    budgets = [rule.budget.max_tokens for rule in rules if rule.for_whole_files]
    return min((budget for budget in budgets if budget is not None), default=None)
