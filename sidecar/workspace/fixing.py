"""What can be done about a document's findings: edits of it, of a new file, of the settings.

Blocking (it counts, and looks at the project's files), so it is run off the event loop.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.budget import fixes
from sidecar.budget.fixes import Fix, FixKind
from sidecar.budget.scopes import TextEdit
from sidecar.config.project_files import read_file
from sidecar.config.toml import check_limits
from sidecar.workspace.budgets import Subject, counter_of

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.budget.counter import TextCounter
    from sidecar.budget.finding import Finding
    from sidecar.config.options import Origin
    from sidecar.workspace.counter_choice import CounterChoice

_TRIES = 100


class FixTarget(msgspec.Struct, frozen=True):
    """A file other than the document: its URI and its text (for a new one: what to put there)."""

    uri: str
    text: str


class RootOrigins(NamedTuple):
    """The root's folder, and where each of its settings was written."""

    root: Path | None
    origins: Mapping[str, Origin]


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One fix: `edits` are of `target`, or of the document itself where that is None."""

    kind: FixKind
    title: str
    edits: tuple[TextEdit, ...]
    preferred: bool = False
    target: FixTarget | None = None
    new_file: FixTarget | None = None


def proposals(
    subject: Subject,
    findings: Sequence[Finding],
    place: RootOrigins,
    choices: Mapping[str, CounterChoice],
) -> list[Proposal]:
    """Every fix of some findings, the most welcome first."""
    counter = counter_of(subject, choices)
    return [made for finding in findings for made in _of(subject, finding, place, counter, choices)]


def _of(
    subject: Subject,
    finding: Finding,
    place: RootOrigins,
    counter: TextCounter,
    choices: Mapping[str, CounterChoice],
) -> Iterator[Proposal]:
    text = subject.snapshot.text
    for fix in fixes.fit_fixes(text, finding, choices[finding.model].tokenizer):
        yield _here(fix)
    if (moved := _move(subject, finding, place, counter)) is not None:
        yield moved
    if (dropped := fixes.drop_fix(text, finding, counter)) is not None:
        yield _here(dropped)
    if (raised := _raise(finding, place, text)) is not None:
        yield raised
    if (
        ignored := fixes.ignore_fix(subject.name, subject.snapshot.language_id, text, finding)
    ) is not None:
        yield _here(ignored)


def _here(fix: Fix) -> Proposal:
    return Proposal(kind=fix.kind, title=fix.title, edits=fix.edits, preferred=fix.preferred)


def _move(
    subject: Subject, finding: Finding, place: RootOrigins, counter: TextCounter
) -> Proposal | None:
    if place.root is None:
        return None
    free = _free_name(place.root / subject.name)
    if not _inside(free, place.root):
        return None
    fix = fixes.move_fix(subject.snapshot.text, finding, counter, free.name)
    if fix is None:
        return None
    new_file = FixTarget(free.as_uri(), fix.new_file or "")
    return Proposal(kind=fix.kind, title=fix.title, edits=fix.edits, new_file=new_file)


def _free_name(path: Path) -> Path:
    """`AGENTS.excess.md` beside `AGENTS.md`, with a number where that exists."""
    for number in range(1, _TRIES):
        suffix = ".excess" if number == 1 else f".excess{number}"
        candidate = path.with_name(f"{path.stem}{suffix}{path.suffix}")
        if not os.path.lexists(candidate):  # a link that leads nowhere is taken too
            return candidate
    return path.with_name(f"{path.stem}.excess{_TRIES}{path.suffix}")


def _inside(path: Path, root: Path) -> bool:
    """Whether a path lies in the root still when all links in it are followed."""
    return path.resolve().is_relative_to(root.resolve())


def _raise(finding: Finding, place: RootOrigins, text: str) -> Proposal | None:
    """A larger number where the rule was written: the project's file, or the region's mark."""
    if finding.kind == "region":
        fix = fixes.raise_fix(finding, "", (), "", text)
        return None if fix is None else _here(fix)
    origin = place.origins.get(finding.rule)
    if origin is None or origin.file is None:
        return None
    root = place.root if origin.source == "project" else None
    try:  # an editor writes through a link: not through one out of the project's folder
        written = read_file(origin.file, root).decode("utf-8-sig")
        check_limits(written)  # it may be another file by now
    except (OSError, ValueError):
        return None
    fix = fixes.raise_fix(finding, written, origin.path, origin.file.name, text)
    if fix is None:
        return None
    target = FixTarget(origin.file.as_uri(), written)
    return Proposal(kind=fix.kind, title=fix.title, edits=fix.edits, target=target)
