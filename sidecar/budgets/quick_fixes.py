"""Proposes quick fixes for the findings in a document.

A fix edits the document or the settings, or creates a new file. All functions block.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from sidecar.budgets import fix_edits
from sidecar.budgets.checked_text import Subject, make_text_counter
from sidecar.budgets.fix_edits import Fix, FixTarget
from sidecar.config.safe_files import read_file
from sidecar.config.toml import check_limits

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.budgets.findings import Finding, TextCounter
    from sidecar.config.options import Origin
    from sidecar.counting.tokenizer_choice import CounterChoice

_TRIES = 100


class SettingsOrigins(NamedTuple):
    """A root folder, and the source of each of its settings, such as a configuration file."""

    root: Path | None
    origins: Mapping[str, Origin]


def propose_fixes(
    subject: Subject,
    findings: Sequence[Finding],
    place: SettingsOrigins,
    choices: Mapping[str, CounterChoice],
) -> list[Fix]:
    """Return all fixes for a document's findings, most useful first.

    Several budgets may be exceeded at once. Different fixes then have different titles.
    """
    counter = make_text_counter(subject, choices)
    budgets: dict[Fix, int] = {}
    for finding in findings:
        for fix in _fixes_of(subject, finding, place, counter, choices):
            budgets.setdefault(fix, finding.budget)
    titles = Counter(fix.title for fix in budgets)
    return [
        fix
        if titles[fix.title] == 1
        else replace(fix, title=f"{fix.title} (budget of {budget:,} tokens)")
        for fix, budget in budgets.items()
    ]


def _fixes_of(
    subject: Subject,
    finding: Finding,
    place: SettingsOrigins,
    counter: TextCounter,
    choices: Mapping[str, CounterChoice],
) -> Iterator[Fix]:
    text = subject.snapshot.text
    yield from fix_edits.fit_fixes(text, finding, choices[finding.model].tokenizer)
    is_always_loaded = any(
        rule.key == finding.rule and rule.budget.always_loaded for rule in subject.rules
    )
    others = (
        _propose_move_to_file(subject, finding, place, counter),
        fix_edits.drop_fix(text, finding, counter),
        _propose_raise(finding, place, text),
        None  # agents send a file regardless of marks
        if is_always_loaded
        else fix_edits.ignore_fix(subject.name, subject.snapshot.language_id, text, finding),
    )
    yield from filter(None, others)


def _propose_move_to_file(
    subject: Subject, finding: Finding, place: SettingsOrigins, counter: TextCounter
) -> Fix | None:
    if place.root is None:
        return None
    free = _free_name(place.root / subject.name)
    if not _is_inside(free, place.root):
        return None
    return fix_edits.move_fix(subject.snapshot.text, finding, counter, free.name, free.as_uri())


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


def _propose_raise(finding: Finding, place: SettingsOrigins, text: str) -> Fix | None:
    """Propose raising the limit in the settings file or in the region's marker."""
    if finding.kind == "region":
        return fix_edits.raise_fix(finding, "", (), "", text)
    origin = place.origins.get(finding.rule)
    if origin is None or origin.file is None:
        return None
    root = place.root if origin.source == "project" else None
    try:  # never write through a link to a file outside the project
        written = read_file(origin.file, root).decode("utf-8-sig")
        check_limits(written)  # the file may have changed since it was loaded
    except (OSError, ValueError):
        return None
    fix = fix_edits.raise_fix(finding, written, origin.path, origin.file.name, text)
    return fix and replace(fix, target=FixTarget(origin.file.as_uri(), written))
