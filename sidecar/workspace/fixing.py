"""Proposes fixes for a document's findings.

A fix edits the document or the settings, or creates a new file. All functions block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.budget import fixes
from sidecar.budget.fixes import Fix, FixKind, TextEdit
from sidecar.config.project_files import read_file
from sidecar.config.toml import check_limits
from sidecar.workspace.budgets import Subject, make_text_counter

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.budget.counter import TextCounter
    from sidecar.budget.findings import Finding
    from sidecar.config.options import Origin
    from sidecar.workspace.counter_choice import CounterChoice

_TRIES = 100


class FixTarget(msgspec.Struct, frozen=True):
    """A file to edit or create, with its current or initial text."""

    uri: str
    text: str


class SettingsOrigins(NamedTuple):
    """The configuration file that defines each setting of a root folder."""

    root: Path | None
    origins: Mapping[str, Origin]


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed fix. The edits apply to `target`, or to the document if `target` is None."""

    kind: FixKind
    title: str
    edits: tuple[TextEdit, ...]
    preferred: bool = False
    target: FixTarget | None = None
    new_file: FixTarget | None = None


def propose_fixes(
    subject: Subject,
    findings: Sequence[Finding],
    place: SettingsOrigins,
    choices: Mapping[str, CounterChoice],
) -> list[Proposal]:
    """Return all fixes for a document's findings, most useful first."""
    counter = make_text_counter(subject, choices)
    return [
        fix for finding in findings for fix in _fixes_of(subject, finding, place, counter, choices)
    ]


def _fixes_of(
    subject: Subject,
    finding: Finding,
    place: SettingsOrigins,
    counter: TextCounter,
    choices: Mapping[str, CounterChoice],
) -> Iterator[Proposal]:
    text = subject.snapshot.text
    for fix in fixes.fit_fixes(text, finding, choices[finding.model].tokenizer):
        yield _document_proposal(fix)
    if (moved := _propose_move(subject, finding, place, counter)) is not None:
        yield moved
    if (dropped := fixes.drop_fix(text, finding, counter)) is not None:
        yield _document_proposal(dropped)
    if (raised := _propose_raise(finding, place, text)) is not None:
        yield raised
    if (
        ignored := fixes.ignore_fix(subject.name, subject.snapshot.language_id, text, finding)
    ) is not None:
        yield _document_proposal(ignored)


def _document_proposal(fix: Fix) -> Proposal:
    return Proposal(kind=fix.kind, title=fix.title, edits=fix.edits, preferred=fix.preferred)


def _propose_move(
    subject: Subject, finding: Finding, place: SettingsOrigins, counter: TextCounter
) -> Proposal | None:
    if place.root is None:
        return None
    free = _free_name(place.root / subject.name)
    if not _is_inside(free, place.root):
        return None
    fix = fixes.move_fix(subject.snapshot.text, finding, counter, free.name)
    if fix is None:
        return None
    new_file = FixTarget(free.as_uri(), fix.new_file or "")
    return Proposal(kind=fix.kind, title=fix.title, edits=fix.edits, new_file=new_file)


def _free_name(path: Path) -> Path:
    """Return an unused name for a new file, such as `AGENTS.excess.md` for `AGENTS.md`."""
    for number in range(1, _TRIES):
        suffix = ".excess" if number == 1 else f".excess{number}"
        candidate = path.with_name(f"{path.stem}{suffix}{path.suffix}")
        if not os.path.lexists(candidate):  # `lexists` is also true for broken links
            return candidate
    return path.with_name(f"{path.stem}.excess{_TRIES}{path.suffix}")


def _is_inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def _propose_raise(finding: Finding, place: SettingsOrigins, text: str) -> Proposal | None:
    """Propose raising the limit in the settings file or in the region's marker."""
    if finding.kind == "region":
        fix = fixes.raise_fix(finding, "", (), "", text)
        return None if fix is None else _document_proposal(fix)
    origin = place.origins.get(finding.rule)
    if origin is None or origin.file is None:
        return None
    root = place.root if origin.source == "project" else None
    try:  # never write through a link to a file outside the project
        written = read_file(origin.file, root).decode("utf-8-sig")
        check_limits(written)  # the file may have changed since it was loaded
    except (OSError, ValueError):
        return None
    fix = fixes.raise_fix(finding, written, origin.path, origin.file.name, text)
    if fix is None:
        return None
    target = FixTarget(origin.file.as_uri(), written)
    return Proposal(kind=fix.kind, title=fix.title, edits=fix.edits, target=target)
