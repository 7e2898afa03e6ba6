"""Fixes for a finding, as text edits. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar.budget.comments import comment
from sidecar.budget.scopes import (
    Parts,
    TextEdit,
    first_line,
    line_end_of,
    minimal_edit,
    parts_of,
)
from sidecar.config.toml import KeyPath, find_value_spans
from sidecar.counting.count import tokens_text
from sidecar.counting.fit import Mode, character_boundary, fit
from sidecar.text.outline import FIRST_LINES, IGNORE_MARK, Lines, find_sections

if TYPE_CHECKING:
    from sidecar.budget.counter import TextCounter
    from sidecar.budget.finding import Finding
    from sidecar.counting.count import Measure
    from sidecar.counting.tokenizer_interface import Tokenizer
    from sidecar.text.outline import Part

FixKind = Literal["fit", "move", "drop", "raise", "ignore"]

MODES: dict[Mode, str] = {
    "start": "keep the start",
    "middle": "keep both ends",
    "end": "keep the end",
}
_ROUNDS = 16
_DIGITS = re.compile(r"(token-budget:[ \t]*)(\d[\d_,]*)")


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """A fix: edits of the document or of the configuration.

    `new_file` is the text of a file to create, whose name is in the title.
    """

    kind: FixKind
    title: str
    edits: tuple[TextEdit, ...]
    preferred: bool = False
    new_file: str | None = None


def fit_fixes(text: str, finding: Finding, tokenizer: Tokenizer) -> Iterator[Fix]:
    """Yield fixes that shorten the scope to its budget, such as `Fit to budget: keep the start`.

    Yields none while the budget is only nearly used up. The rule's `truncation` selects the
    preferred fix.
    """
    if finding.over == 0:
        return
    for mode, words in MODES.items():
        edit = fit_edit(text, finding, tokenizer, mode)
        if edit is not None:
            title = f"Fit to budget{_part_suffix(finding)}: {words}"
            yield Fix(kind="fit", title=title, edits=(edit,), preferred=mode == finding.truncation)


def _part_suffix(finding: Finding) -> str:
    if finding.section is None:
        return ""
    return f" of {finding.section}" if finding.kind == "region" else f' of "{finding.section}"'


def fit_edit(text: str, finding: Finding, tokenizer: Tokenizer, mode: Mode) -> TextEdit | None:
    """Return the edit that fits a scope into its allowance, or None if its fixed parts exceed
    it."""
    parts = parts_of(text, finding)
    target = finding.allowance - tokenizer.count(parts.head) - tokenizer.count(parts.tail)
    for _ in range(_ROUNDS):
        fitted = fit(parts.body, target, mode, tokenizer).text if target > 0 else ""
        body = _without_double_break(fitted, parts)
        tokens = tokenizer.count(parts.head + body + parts.tail)
        if tokens <= finding.allowance:
            return minimal_edit(parts.body_start, parts.body, body)
        if not body:
            return None
        target -= max(1, tokens - finding.allowance)
    return None


def _without_double_break(body: str, parts: Parts) -> str:
    """Remove the line end of a shortened body if the tail starts with one too."""
    ends = ("\n", "\r")
    if parts.body.endswith(ends) or not parts.tail.startswith(ends):
        return body
    return body.removesuffix("\n").removesuffix("\r")


def move_fix(text: str, finding: Finding, counter: TextCounter, new_name: str) -> Fix | None:
    """Return a fix that moves the excess to a new file, if possible by whole lines."""
    parts = parts_of(text, finding)
    if finding.over == 0:
        return None
    keep = 0 if finding.kind == "file" else len(parts.tail)
    end = finding.scope_end
    allowance = finding.allowance - counter.measure(finding.model, end - keep, end).tokens
    seam = counter.seam(finding.model, finding.scope_start, end, allowance)
    line_start = max(text.rfind("\n", 0, seam), text.rfind("\r", 0, seam)) + 1
    cut = line_start if line_start > parts.body_start else character_boundary(text, seam)
    within = counter.measure(finding.model, finding.scope_start, cut).tokens
    if not parts.body_start < cut < end - keep or within > allowance:
        return None
    edit = TextEdit(cut, finding.scope_end - keep, "")
    return Fix(
        kind="move",
        title=f"Move the excess{_part_suffix(finding)} to {new_name}",
        edits=(edit,),
        new_file=text[edit.start : edit.end],
    )


def drop_fix(text: str, finding: Finding, counter: TextCounter) -> Fix | None:
    """Return a fix that removes the section, or for a file the smallest section that is enough."""
    if finding.kind == "section":
        tokens = tokens_text(finding.tokens, finding.method)
        start, end, title = finding.scope_start, finding.scope_end, finding.section or ""
    else:
        found = _shortest_sufficient_part(text, finding, counter)
        if found is None:
            return None
        measure, part = found
        tokens = tokens_text(measure.tokens, measure.method)
        start, end, title = part.start, part.end, part.title
    return Fix(
        kind="drop",
        title=f'Drop the section "{title}" ({tokens})',
        edits=(TextEdit(start, end, ""),),
    )


def _shortest_sufficient_part(
    text: str, finding: Finding, counter: TextCounter
) -> tuple[Measure, Part] | None:
    if finding.kind != "file" or finding.over == 0:
        return None
    weighed = [
        (counter.measure(finding.model, part.start, part.end), part)
        for part in find_sections(Lines(text))
        if part.end - part.start < len(text)
    ]
    # One more than the excess: the parts on both sides of a cut may have one token less in sum.
    enough = [section for section in weighed if section[0].tokens > finding.over]
    return min(enough, key=lambda one: (one[0].tokens, one[1].start), default=None)


def raise_fix(
    finding: Finding, configuration: str, entry: KeyPath, file_name: str, document: str
) -> Fix | None:
    """Return a fix that raises the limit in the configuration's text, or in a region's mark.

    `entry` is the rule's path in that text.
    """
    number = raised(finding.tokens)
    if finding.kind == "region":
        return _raise_region(finding, document, number)
    key = ("sections", finding.rule_section) if finding.rule_section else ("max-tokens",)
    span = find_value_spans(configuration).get((*entry, *key))
    if span is None:
        return None
    return Fix(
        kind="raise",
        title=f"Raise the budget{_part_suffix(finding)} to {number:,} in {file_name}",
        edits=(TextEdit(span.start, span.end, str(number)),),
    )


def _raise_region(finding: Finding, document: str, number: int) -> Fix | None:
    mark = _DIGITS.search(first_line(document, finding.scope_start))
    if mark is None:
        return None
    start = finding.scope_start + mark.start(2)
    return Fix(
        kind="raise",
        title=f"Raise the budget to {number:,} here",
        edits=(TextEdit(start, start + len(mark[2]), str(number)),),
    )


def raised(tokens: int) -> int:
    """Return the next number above `tokens` with two significant digits: 2,500 for 2,431."""
    step = int(10 ** max(0, len(str(tokens)) - 2))
    return (tokens // step + 1) * step


def ignore_fix(name: str, language_id: str, text: str, finding: Finding) -> Fix | None:
    """Return a fix that inserts an ignore mark below a section's heading or at the top of a file.

    A mark in the first ten lines applies to the whole file.
    """
    mark = comment(IGNORE_MARK, name, language_id)
    if mark is None or finding.kind == "region":
        return None
    at = 0
    if finding.kind == "section":
        at = finding.scope_start + len(parts_of(text, finding).head)
        line = len(Lines(text[:at]).texts) - 1
        at = at if line >= FIRST_LINES else 0
    title = "Ignore the budget of this section" if at else "Ignore budgets in this file"
    if not at:
        at, mark = _comment_at_top(text, mark)
    end = line_end_of(text)
    before = "" if at == 0 or text[at - 1] in "\r\n" else end
    return Fix(kind="ignore", title=title, edits=(TextEdit(at, at, f"{before}{mark}{end}"),))


def _comment_at_top(text: str, mark: str) -> tuple[int, str]:
    """Return where a comment at the top goes and its text. Some first lines must stay first."""
    line = first_line(text)
    if line.rstrip() == "---":
        return len(line), f"# {IGNORE_MARK}"  # front matter is YAML
    if line.startswith(("#!", "<?", "<!DOCTYPE", "<!doctype", "\ufeff")):
        return len(line), mark
    return 0, mark
