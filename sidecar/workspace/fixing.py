"""What can be done about a document's findings: edits of it, of a new file, of the settings.

Blocking (it counts, and looks at the project's files), so it is run off the event loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.budget import fixes
from sidecar.budget.counter import TextCounter
from sidecar.budget.fixes import Fix, FixKind
from sidecar.budget.scopes import TextEdit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.budget.finding import Finding
    from sidecar.counting.tokenizers import Tokenizers
    from sidecar.workspace.verdicts import Snapshot
    from sidecar.workspace.workspace import Workspace

_TRIES = 100


class Target(msgspec.Struct, frozen=True):
    """A file other than the document: its URI and its text (for a new one: what to put there)."""

    uri: str
    text: str


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One fix: `edits` are of `target`, or of the document itself where that is None."""

    kind: FixKind
    title: str
    edits: tuple[TextEdit, ...]
    preferred: bool = False
    target: Target | None = None
    new_file: Target | None = None


def proposals(
    taken: Snapshot,
    findings: Sequence[Finding],
    workspace: Workspace,
    tokenizers: Tokenizers,
    language_id: str,
) -> list[Proposal]:
    """Every fix of some findings, the most welcome first."""
    made: list[Proposal] = []
    text = taken.read().text
    for finding in findings:
        made += _of(taken, text, finding, workspace, tokenizers, language_id)
    return made


def _of(
    taken: Snapshot,
    text: str,
    finding: Finding,
    workspace: Workspace,
    tokenizers: Tokenizers,
    language_id: str,
) -> Iterator[Proposal]:
    counter = TextCounter(text, tokenizers.for_model, taken.pieces)
    for fix in fixes.fit_fixes(text, finding, tokenizers.for_model(finding.model)):
        yield _here(fix)
    if (moved := _move(taken, text, finding, workspace, counter)) is not None:
        yield moved
    if (dropped := fixes.drop_fix(text, finding, counter)) is not None:
        yield _here(dropped)
    if (raised := _raise(finding, workspace, text)) is not None:
        yield raised
    if (ignored := fixes.ignore_fix(taken.name, language_id, text, finding)) is not None:
        yield _here(ignored)


def _here(fix: Fix) -> Proposal:
    return Proposal(kind=fix.kind, title=fix.title, edits=fix.edits, preferred=fix.preferred)


def _move(
    taken: Snapshot, text: str, finding: Finding, workspace: Workspace, counter: TextCounter
) -> Proposal | None:
    if workspace.path is None:
        return None
    place = _free_name(workspace.path / taken.name)
    fix = fixes.move_fix(text, finding, counter, place.name)
    if fix is None:
        return None
    new_file = Target(place.as_uri(), fix.new_file or "")
    return Proposal(kind=fix.kind, title=fix.title, edits=fix.edits, new_file=new_file)


def _free_name(path: Path) -> Path:
    """`AGENTS.excess.md` beside `AGENTS.md`, with a number where that exists."""
    for number in range(1, _TRIES):
        suffix = ".excess" if number == 1 else f".excess{number}"
        candidate = path.with_name(f"{path.stem}{suffix}{path.suffix}")
        if not candidate.exists():
            return candidate
    return path.with_name(f"{path.stem}.excess{_TRIES}{path.suffix}")


def _raise(finding: Finding, workspace: Workspace, text: str) -> Proposal | None:
    """A larger number where the rule was written: the project's file, or the region's mark."""
    if finding.kind == "region":
        fix = fixes.raise_fix(finding, "", (), "", text)
        return None if fix is None else _here(fix)
    origin = workspace.loaded.origins.get(finding.rule)
    if origin is None or origin.file is None:
        return None
    try:
        written = Path(origin.file).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    fix = fixes.raise_fix(finding, written, origin.path, origin.file.name, text)
    if fix is None:
        return None
    target = Target(origin.file.as_uri(), written)
    return Proposal(kind=fix.kind, title=fix.title, edits=fix.edits, target=target)
