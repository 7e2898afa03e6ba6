"""Rules and counts to findings: one function for the editor and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.budget.finding import Finding, ScopeKind, sentence, severity_of
from sidecar.budget.rules import DEFAULT_WARN_AT
from sidecar.text.outline import Lines, Part
from sidecar.text.outline_markdown import heading_path, matches, sections
from sidecar.text.outline_marks import WORD, ignored, ignores_file, regions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sidecar.budget.counter import Counter
    from sidecar.budget.rules import Rule


class Together(msgspec.Struct, frozen=True):
    """For a rule over several files: the other files' tokens, and how many files there are."""

    tokens: int
    files: int


class Scope(msgspec.Struct, frozen=True):
    """What one budget is for."""

    kind: ScopeKind
    start: int
    end: int
    heading_end: int
    """The end of its first line's text: what to point at while the budget is only near."""
    section: str | None = None
    rule_section: str | None = None


def evaluate(
    name: str,
    text: str,
    rules: Sequence[Rule],
    counter: Counter,
    model: str,
    together: Mapping[str, Together] | None = None,
) -> list[Finding]:
    """One finding for each rule, section or region at or above its `warn-at`, in text order.

    `name` is the path that messages show; `model` counts what names no model of its own;
    `together` has an entry for each rule over several files, by the rule's key.
    """
    marked = WORD in text
    if marked and ignores_file(text):
        return []
    return _Evaluation(name, text, counter, model, together or {}).findings(rules, marked)


class _Evaluation:
    def __init__(
        self, name: str, text: str, counter: Counter, model: str, together: Mapping[str, Together]
    ) -> None:
        self._name = name
        self._text = text
        self._counter = counter
        self._model = model
        self._together = together

    def findings(self, rules: Sequence[Rule], marked: bool) -> list[Finding]:
        found = [self._whole(rule) for rule in rules if rule.budget.max_tokens is not None]
        if marked or any(rule.budget.sections for rule in rules):
            found += self._parts(rules)
        said = [finding for finding in found if finding is not None]
        return sorted(said, key=lambda finding: (finding.scope_start, -finding.scope_end))

    def _whole(self, rule: Rule) -> Finding | None:
        limit = rule.budget.max_tokens or 0
        scope = Scope("file", 0, len(self._text), _first_line_end(self._text))
        others = self._together.get(rule.key) if rule.budget.sum else None
        return self._finding(rule, scope, limit, others)

    def _parts(self, rules: Sequence[Rule]) -> Iterator[Finding | None]:
        lines = Lines(self._text)
        headed = list(sections(lines))
        quiet = ignored(lines, headed)
        for rule in rules:
            for written, limit in rule.budget.sections.items():
                path = heading_path(written)
                for part in headed:
                    if matches(part, path) and not _inside(part, quiet):
                        yield self._finding(rule, _scope(lines, part, written), limit)
        for part in regions(lines):
            if part.limit and not _inside(part, quiet):
                yield self._finding(None, _scope(lines, part), part.limit)

    def _finding(
        self, rule: Rule | None, scope: Scope, limit: int, others: Together | None = None
    ) -> Finding | None:
        model = (rule and rule.budget.model) or self._model
        own = self._counter.measure(model, scope.start, scope.end)
        other = others or Together(0, 1)
        measure = msgspec.structs.replace(own, tokens=own.tokens + other.tokens)
        warn_at = rule.budget.warn_at if rule else DEFAULT_WARN_AT
        severity = severity_of(measure.tokens, limit, warn_at)
        if severity is None or measure.tokens == 0:
            return None
        near = severity == "information"
        allowance = max(0, limit - other.tokens)
        start, end = scope.start, scope.heading_end
        if not near:
            start = self._counter.seam(model, scope.start, scope.end, allowance)
            end = scope.end
        return Finding(
            severity=severity,
            code="budget-near" if near else "budget-exceeded",
            budget=limit,
            tokens=measure.tokens,
            over=max(0, measure.tokens - limit),
            section=scope.section,
            method=measure.method,
            model=model,
            message=sentence(self._name, scope.section, other.files, measure, limit, model),
            rule=rule.key if rule else "region",
            rule_section=scope.rule_section,
            kind=scope.kind,
            start=start,
            end=end,
            scope_start=scope.start,
            scope_end=scope.end,
            allowance=allowance,
            files=other.files,
            truncation=(rule and rule.budget.truncation) or "start",
        )


def _first_line_end(text: str) -> int:
    """Where the first line's text ends."""
    end = text.find("\n")
    end = len(text) if end < 0 else end
    carriage_return = text.find("\r", 0, end)
    return end if carriage_return < 0 else carriage_return


def _scope(lines: Lines, part: Part, written: str | None = None) -> Scope:
    heading_end = part.start + len(lines.texts[part.start_line])
    section = part.path_text if part.kind == "section" else part.title
    kind: ScopeKind = "section" if part.kind == "section" else "region"
    return Scope(kind, part.start, part.end, heading_end, section, written)


def _inside(part: Part, around: Sequence[Part]) -> bool:
    return any(other.start <= part.start and part.end <= other.end for other in around)
