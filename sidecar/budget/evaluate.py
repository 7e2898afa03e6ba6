"""Evaluates budget rules, for the editor and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sidecar.budget.finding import BudgetScope, Finding, ScopeKind, Together, finding_of
from sidecar.text.outline import (
    MARK_START,
    Lines,
    Part,
    find_ignored_sections,
    find_marked_regions,
    find_sections,
    has_ignore_mark,
    has_path,
    normalize_heading_path,
)

if TYPE_CHECKING:
    from sidecar.budget.counter import TextCounter
    from sidecar.budget.rules import Rule
    from sidecar.counting.count import Measure


def evaluate(
    name: str,
    text: str,
    rules: Sequence[Rule],
    counter: TextCounter,
    model: str,
    together: Mapping[str, Together] | None = None,
) -> list[Finding]:
    """Return a finding for each rule, section or region that has reached its `warn-at`.

    Args:
        name: The path shown in messages.
        text: The file's text.
        rules: The rules of the file.
        counter: Counts parts of the text.
        model: The model for rules that name none.
        together: For each rule over several files, by its key, the other files.
    """
    marked = MARK_START in text
    if marked and has_ignore_mark(text):
        return []
    return _Evaluation(name, text, counter, model, together or {}).findings(rules, marked)


_WHOLE = BudgetScope("file", 0, 0, 0)
"""Stands for the scope of a file whose text is not available."""


def evaluate_sum(
    rule: Rule, members: Sequence[tuple[str, Measure]], model: str
) -> Iterator[tuple[str, Finding]]:
    """Return the findings of a rule over several files, one per file.

    Args:
        rule: The rule.
        members: Name and tokens of each file.
        model: The model for a rule that names none.
    """
    total, model = sum([own.tokens for _, own in members]), rule.budget.model or model
    for name, own in members:
        others = Together(total - own.tokens, len(members))
        limit = rule.budget.max_tokens or 0
        found = finding_of(name, rule, limit, own, _WHOLE, lambda _: 0, model, others)
        if found is not None:
            yield name, found


class _Evaluation:
    def __init__(
        self,
        name: str,
        text: str,
        counter: TextCounter,
        model: str,
        together: Mapping[str, Together],
    ) -> None:
        self._name = name
        self._text = text
        self._counter = counter
        self._model = model
        self._together = together

    def findings(self, rules: Sequence[Rule], marked: bool) -> list[Finding]:
        found = [self._file_finding(rule) for rule in rules if rule.budget.max_tokens is not None]
        if marked or any(rule.budget.sections for rule in rules):
            found += self._part_findings(rules)
        reported = [finding for finding in found if finding is not None]
        return sorted(reported, key=lambda finding: (finding.scope_start, -finding.scope_end))

    def _file_finding(self, rule: Rule) -> Finding | None:
        limit = rule.budget.max_tokens or 0
        scope = BudgetScope("file", 0, len(self._text), _first_line_end(self._text))
        others = self._together.get(rule.key) if rule.budget.sum else None
        return self._make_finding(rule, scope, limit, others)

    def _part_findings(self, rules: Sequence[Rule]) -> Iterator[Finding | None]:
        lines = Lines(self._text)
        headed = list(find_sections(lines))
        quiet = find_ignored_sections(lines, headed)
        for rule in rules:
            for written, limit in rule.budget.sections.items():
                path = normalize_heading_path(written)
                for part in headed:
                    if has_path(part, path) and not _is_inside(part, quiet):
                        yield self._make_finding(rule, _scope_of(lines, part, written), limit)
        for part in find_marked_regions(lines):
            if part.limit and not _is_inside(part, quiet):
                yield self._make_finding(None, _scope_of(lines, part), part.limit)

    def _make_finding(
        self, rule: Rule | None, scope: BudgetScope, limit: int, others: Together | None = None
    ) -> Finding | None:
        model = (rule and rule.budget.model) or self._model
        own = self._counter.measure(model, scope.start, scope.end)
        seam = partial(self._counter.seam, model, scope.start, scope.end)
        return finding_of(self._name, rule, limit, own, scope, seam, model, others)


def _first_line_end(text: str) -> int:
    end = text.find("\n")
    end = len(text) if end < 0 else end
    carriage_return = text.find("\r", 0, end)
    return end if carriage_return < 0 else carriage_return


def _scope_of(lines: Lines, part: Part, written: str | None = None) -> BudgetScope:
    heading_end = part.start + len(lines.texts[part.start_line])
    section = part.path_text if part.kind == "section" else part.title
    kind: ScopeKind = "section" if part.kind == "section" else "region"
    return BudgetScope(kind, part.start, part.end, heading_end, section, written)


def _is_inside(part: Part, around: Sequence[Part]) -> bool:
    return any(other.start <= part.start and part.end <= other.end for other in around)
