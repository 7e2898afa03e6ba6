"""Finds the budgets that a text exceeds, and where it exceeds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar.budgets.budget_rules import (
    DEFAULT_WARN_AT,
    FindingSeverity,
    Rule,
    Subject,
    percent_of,
    severity_of,
)
from sidecar.config.settings import InstructionCode, Truncation
from sidecar.counting.count_result import (
    Measure,
    Method,
    band_text,
    estimated_percent_text,
    number_text,
    tokens_text,
)
from sidecar.counting.tokenizer_interface import SAMPLE_CHARACTERS, Tokenizer, count_pieces
from sidecar.text.document import Piece, split, split_pieces, without_lone_surrogates
from sidecar.text.outline import (
    MARK_START,
    Part,
    TextLines,
    find_ignored_sections,
    find_marked_regions,
    find_sections,
    has_ignore_mark,
    has_path,
    normalize_heading_path,
)
from sidecar.text.printable import counted, printable

if TYPE_CHECKING:
    from sidecar.counting.tokenizer_choice import CounterChoice

_ENCODED = 50_000
"""Maximum number of characters to encode at once.

Longer strings can overflow tiktoken's regular expressions.
"""
_FINER = 512
"""Maximum number of characters to decode one token at a time, because this is slow."""


class TextCounter:
    """Counts the tokens in parts of a text.

    Args:
        text: The text.
        tokenizer_for: Returns the tokenizer of a model.
        pieces: An open document's pieces, whose cached counts are reused.
        whole: Known token counts of the whole text, such as counts from an endpoint, keyed by
            model. They take precedence.
    """

    def __init__(
        self,
        text: str,
        tokenizer_for: Callable[[str], Tokenizer],
        pieces: Sequence[Piece] | None = None,
        whole: Mapping[str, Measure] | None = None,
    ) -> None:
        self._text = text
        self._tokenizer_for = tokenizer_for
        self._pieces: dict[tuple[int, int, bool], Sequence[Piece]] = {}
        if pieces is not None:
            self._pieces[0, len(text), True] = pieces
        self._whole = whole or {}

    def measure(self, model: str, start: int, end: int) -> Measure:
        """Count the text between two character offsets."""
        if start == 0 and end == len(self._text) and model in self._whole:
            return self._whole[model]
        tokenizer = self._tokenizer_for(model)
        tokens = count_pieces(self._pieces_between(tokenizer, start, end), tokenizer.base)
        sample = self._text[start : min(end, start + SAMPLE_CHARACTERS)]
        return tokenizer.measure_base(tokens, sample)

    def excess_start(self, model: str, start: int, end: int, allowance: int) -> int:
        """Return the character offset of the first token that exceeds `allowance`."""
        tokenizer = self._tokenizer_for(model)
        return start + excess_start(
            self._pieces_between(tokenizer, start, end), allowance, tokenizer
        )

    def _pieces_between(self, tokenizer: Tokenizer, start: int, end: int) -> Sequence[Piece]:
        can_cut = tokenizer.has_safe_cuts
        key = (start, end, can_cut)
        if key not in self._pieces:
            part = self._text[start:end]
            self._pieces[key] = split_pieces(part) if can_cut else (Piece(part),)
        return self._pieces[key]


def excess_start(pieces: Sequence[Piece], allowance: int, tokenizer: Tokenizer) -> int:
    """Return the number of characters before the first token that exceeds `allowance`.

    If that token starts inside a character, the character is not counted.
    """
    at, left, tokenizer = 0, tokenizer.unscale(allowance), tokenizer.base
    for piece in pieces:
        tokens = count_pieces((piece,), tokenizer)
        if tokens > left:
            return at + _excess_start_in_piece(piece.text, left, tokenizer)
        left -= tokens
        at += len(piece)
    return at


def _excess_start_in_piece(text: str, allowance: int, tokenizer: Tokenizer) -> int:
    at, left = 0, allowance
    for part in split(text, _FINER) if tokenizer.has_safe_cuts else (text,):
        tokens = tokenizer.count(part)
        if tokens > left:
            return at + first_tokens(part, left, tokenizer)
        left -= tokens
        at += len(part)
    return at


def first_tokens(text: str, tokens: int, tokenizer: Tokenizer) -> int:
    """Return the number of complete characters in the first `tokens` tokens of the text.

    If the tokenizer does not expose its tokens, the result is the length of the longest prefix
    that has at most `tokens` tokens.
    """
    plain = without_lone_surrogates(text)
    known = len(plain) == len(text) <= _ENCODED
    found = tokenizer.first_bytes(plain, tokens) if known else None
    if found is None:
        return _longest_prefix(text, tokens, tokenizer.count)
    return len(found.decode("utf-8", "ignore"))


def _longest_prefix(text: str, tokens: int, count: Callable[[str], int]) -> int:
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if count(text[:middle]) <= tokens:
            low = middle
        else:
            high = middle
    return low


Code = Literal["budget-near", "budget-exceeded"]
ScopeKind = Literal["file", "section", "region"]

DOCUMENTATION = "https://github.com/token-sidecar/token-sidecar/blob/main/docs/how-to/budgets.md"
"""The page that describes the codes of findings about budgets."""
INSTRUCTIONS_PAGE = "https://github.com/token-sidecar/token-sidecar/blob/main/docs/reference/instruction-findings.md"
"""The page that describes the codes."""

DEFAULT_SEVERITIES: dict[InstructionCode, FindingSeverity] = {
    "instructions-cut": "warning",
    "instructions-hidden": "warning",
    "import-skipped": "warning",
    "import-twice": "information",
    "skill-lost": "warning",
    "rule-always-loaded": "information",
}
"""The default severity of each code."""


NAMED_MEMBERS = 3
"""Maximum number of files that a shared budget's finding names for their size, or for their growth.

The file with the finding is always named.
"""


class GroupMember(msgspec.Struct, frozen=True):
    """One of the files that share a budget. `path` is relative to the root folder."""

    path: str
    tokens: int
    added: int = 0
    """The tokens gained since the revision that `check --diff` names; negative if it shrank."""


class Finding(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A budget that is exceeded or nearly used up.

    All offsets are in characters. The range from `start` to `end` is underlined. The budget
    applies to the range from `scope_start` to `scope_end`. If several files share the budget,
    `tokens` is their total, and `allowance` is the budget minus the tokens of the other files.
    """

    severity: FindingSeverity
    code: Code
    budget: int
    tokens: int
    over: int
    """The number of tokens over the budget; 0 if it is only nearly used up."""
    section: str | None
    """A section's heading path, `lines 3 to 9` for a region, or None for a whole file."""
    method: Method
    model: str
    message: str
    rule: str
    """The rule's key, such as `budget[0]`, `preset[1]` or `region`."""
    rule_section: str | None
    """The heading path of the section, as written in the rule."""
    kind: ScopeKind
    start: int
    end: int
    scope_start: int
    scope_end: int
    allowance: int
    files: int = 1
    """The number of files that share the budget."""
    members: tuple[GroupMember, ...] = ()
    """The largest of the files that share the budget, those that grew most, and this file."""
    added: int = 0
    """The tokens that this file has gained since the revision, if it shares a budget."""
    truncation: Truncation = "start"
    """The part of the text that the preferred fix keeps."""


class RestOfGroup(msgspec.Struct, frozen=True):
    """The total tokens of the other files in a group, and how many files the group has in all."""

    tokens: int
    files: int
    members: tuple[GroupMember, ...] = ()
    """The other files to name."""
    added: int = 0
    """The tokens that the file itself has gained."""
    base: str = ""
    """The revision that files are compared with."""


def members_to_name(members: Sequence[GroupMember]) -> tuple[GroupMember, ...]:
    """Return the largest files of a group and those that grew most, the largest first."""
    largest = nsmallest(NAMED_MEMBERS, members, key=_by_size)
    grown = [member for member in members if member.added > 0]
    most_grown = nsmallest(NAMED_MEMBERS, grown, key=_by_growth)
    return tuple(sorted({*largest, *most_grown}, key=_by_size))


def _by_size(member: GroupMember) -> tuple[int, str]:
    return -member.tokens, member.path


def _by_growth(member: GroupMember) -> tuple[int, str]:
    return -member.added, member.path


class BudgetScope(msgspec.Struct, frozen=True):
    """The part of the text that a budget applies to."""

    kind: ScopeKind
    start: int
    end: int
    heading_end: int
    """The end of the first line, which is underlined if the budget is only nearly used up."""
    section: str | None = None
    rule_section: str | None = None


_NO_REST = RestOfGroup(0, 1)


def make_finding(
    name: str,
    rule: Rule | None,
    limit: int,
    own: Measure,
    scope: BudgetScope,
    excess_start: Callable[[int], int],
    model: str,
    others: RestOfGroup | None = None,
) -> Finding | None:
    """Return the finding for a budget, or None if its `warn-at` is not reached.

    Args:
        name: The path to show in the message.
        rule: The rule, or None for a region that is marked in the text.
        limit: The budget in tokens.
        own: The scope's token count.
        scope: The part of the text that the budget applies to.
        excess_start: Returns the offset of the first token that exceeds the given allowance.
        model: The model for which the tokens were counted.
        others: The other files that share the budget.
    """
    other = others or _NO_REST
    tokens = own.tokens + other.tokens
    warn_at = rule.budget.warn_at if rule else DEFAULT_WARN_AT
    severity = severity_of(tokens, limit, warn_at)
    if severity is None or tokens == 0:
        return None
    measure = msgspec.structs.replace(own, tokens=tokens)
    near = severity == "information"
    members: tuple[GroupMember, ...] = ()
    if other.files > 1:
        member = GroupMember(name, own.tokens, other.added)
        named = {member, *members_to_name((member, *other.members))}
        members = tuple(sorted(named, key=_by_size))
    allowance = max(0, limit - other.tokens)
    return Finding(
        severity=severity,
        code="budget-near" if near else "budget-exceeded",
        budget=limit,
        tokens=measure.tokens,
        over=max(0, measure.tokens - limit),
        section=scope.section,
        method=measure.method,
        model=model,
        message=finding_message(name, scope, other.files, measure, limit, model)
        + printable(_members_text(members, other, measure.method)),
        rule=rule.key if rule else "region",
        rule_section=scope.rule_section,
        kind=scope.kind,
        start=scope.start if near else excess_start(allowance),
        end=scope.heading_end if near else scope.end,
        scope_start=scope.start,
        scope_end=scope.end,
        allowance=allowance,
        files=other.files,
        members=members,
        added=other.added,
        truncation=(rule and rule.budget.truncation) or "start",
    )


def finding_message(
    name: str, scope: BudgetScope, files: int, measure: Measure, budget: int, model: str
) -> str:
    """Return a message such as `AGENTS.md is 2,431 tokens, 431 over its budget of 2,000 (…)`."""
    over = measure.tokens - budget
    if files > 1:
        others = counted(files - 1, "other file")
        subject, owner = f"{name} and {others} together are", "their"
    elif scope.kind == "region" and (scope.section or "").startswith("lines "):
        subject, owner = f"{scope.section} in {name} are", "their"
    elif scope.section is not None:
        subject, owner = f"{scope.section} in {name} is", "its"
    else:
        subject, owner = f"{name} is", "its"
    distance = (
        f"{number_text(over, measure.method)} over"
        if over > 0
        else f"{estimated_percent_text(percent_of(measure.tokens, budget), measure.method)} of"
    )
    tokens = tokens_text(measure.tokens, measure.method)
    how = f"({model}, {_method_text(measure)})"
    return printable(f"{subject} {tokens}, {distance} {owner} budget of {budget:,} {how}")


def _members_text(members: Sequence[GroupMember], others: RestOfGroup, method: Method) -> str:
    """Return text such as `: a.md 900, b.md 20 and 3 others; b.md grew by 20 since main`."""
    if not members:
        return ""
    unnamed = others.files - len(members)
    names = [f"{member.path} {number_text(member.tokens, method)}" for member in members]
    text = f": {', '.join(names)}"
    if unnamed:
        text += f" and {counted(unnamed, 'other')}"
    grown = sorted(members, key=_by_growth)
    growth = [
        f"{member.path} grew by {number_text(member.added, method)}"
        for member in grown
        if member.added > 0
    ]
    return f"{text}; since {others.base}, {', '.join(growth)}" if growth else text


def _method_text(measure: Measure) -> str:
    if measure.method in ("exact", "endpoint"):
        return measure.method
    if measure.error_percent is None:
        return f"{measure.method}, margin of error unknown"
    return f"{measure.method} {band_text(measure.error_percent)}"


def find_in_text(
    subject: Subject,
    choices: Mapping[str, CounterChoice],
    rest_of_group: Mapping[str, RestOfGroup] | None = None,
) -> list[Finding]:
    """Return the findings in a text, by how its tokens are counted for each model.

    See `evaluate`. This function blocks.
    """
    counter = make_text_counter(subject, choices)
    return evaluate(
        subject.name, subject.snapshot.text, subject.rules, counter, subject.model, rest_of_group
    )


def make_text_counter(subject: Subject, choices: Mapping[str, CounterChoice]) -> TextCounter:
    whole = {model: choice.whole for model, choice in choices.items() if choice.whole is not None}
    snapshot = subject.snapshot
    pieces = snapshot.pieces if snapshot.is_cut else None
    return TextCounter(snapshot.text, lambda model: choices[model].tokenizer, pieces, whole)


def evaluate(
    name: str,
    text: str,
    rules: Sequence[Rule],
    counter: TextCounter,
    model: str,
    rest_of_group: Mapping[str, RestOfGroup] | None = None,
) -> list[Finding]:
    """Return a file's findings, one for each budget whose `warn-at` is reached.

    Args:
        name: The path to show in messages.
        text: The file's text.
        rules: The rules that apply to the file.
        counter: Counts parts of the text.
        model: The model for rules that do not name a model.
        rest_of_group: The other files of each group, keyed by the key of the group's rule.
    """
    marked = MARK_START in text
    if marked and has_ignore_mark(text, name):
        return []
    return _Evaluation(name, text, counter, model, rest_of_group or {}).findings(rules, marked)


_WHOLE = BudgetScope("file", 0, 0, 0)
"""The scope of a file whose text is not available."""


def evaluate_sum(
    rule: Rule,
    members: Sequence[tuple[str, Measure]],
    model: str,
    added: Mapping[str, int] | None = None,
    base: str = "",
) -> Iterator[tuple[str, Finding]]:
    """Yield one finding for each file in a group that shares a budget.

    Args:
        rule: The rule.
        members: Each file's name and token count.
        model: The model to use if the rule does not name one.
        added: The tokens that files have gained since `base`, by name.
        base: The revision that files are compared with.
    """
    total, model = sum([own.tokens for _, own in members]), rule.budget.model or model
    gained = added or {}
    named = members_to_name(
        [GroupMember(name, own.tokens, gained.get(name, 0)) for name, own in members]
    )
    for name, own in members:
        others = RestOfGroup(
            total - own.tokens,
            len(members),
            tuple(member for member in named if member.path != name),
            gained.get(name, 0),
            base,
        )
        limit = rule.budget.max_tokens or 0
        found = make_finding(name, rule, limit, own, _WHOLE, lambda _: 0, model, others)
        if found is not None:
            yield name, found


def evaluate_always_loaded(
    rule: Rule,
    files: Sequence[tuple[str, Measure]],
    model: str,
    added: Mapping[str, int] | None = None,
    base: str = "",
) -> Iterator[tuple[str, Finding]]:
    """Yield one finding for each file that an agent sends with every call. See `evaluate_sum`."""
    from sidecar.project.loading_rules import loading_rules

    title = loading_rules()[rule.budget.always_loaded or ""].title
    for name, finding in evaluate_sum(rule, files, model, added, base):
        message = f"Every {title} call: {finding.message}"
        yield name, msgspec.structs.replace(finding, message=message)


def whole_file_finding(finding: Finding, text: str) -> Finding:
    """Return a finding about a whole file at the first line of the file's text."""
    return msgspec.structs.replace(
        finding, start=0, end=_first_line_end(text), scope_start=0, scope_end=len(text)
    )


class _Evaluation:
    def __init__(
        self,
        name: str,
        text: str,
        counter: TextCounter,
        model: str,
        rest_of_group: Mapping[str, RestOfGroup],
    ) -> None:
        self._name = name
        self._text = text
        self._counter = counter
        self._model = model
        self._rest_of_group = rest_of_group

    def findings(self, rules: Sequence[Rule], marked: bool) -> list[Finding]:
        own = [rule for rule in rules if rule.budget.always_loaded is None]
        found = [self._file_finding(rule) for rule in own if rule.budget.max_tokens is not None]
        if marked or any(rule.budget.sections for rule in rules):
            found += self._part_findings(rules)
        reported = [finding for finding in found if finding is not None]
        return sorted(reported, key=lambda finding: (finding.scope_start, -finding.scope_end))

    def _file_finding(self, rule: Rule) -> Finding | None:
        limit = rule.budget.max_tokens or 0
        scope = BudgetScope("file", 0, len(self._text), _first_line_end(self._text))
        others = self._rest_of_group.get(rule.key) if rule.budget.sum else None
        return self._make_finding(rule, scope, limit, others)

    def _part_findings(self, rules: Sequence[Rule]) -> Iterator[Finding | None]:
        lines = TextLines(self._text)
        headed = list(find_sections(lines))
        quiet = find_ignored_sections(lines, headed, self._name)
        for rule in rules:
            for written, limit in rule.budget.sections.items():
                path = normalize_heading_path(written)
                for part in headed:
                    if has_path(part, path) and not _is_inside(part, quiet):
                        yield self._make_finding(rule, _scope_of(lines, part, written), limit)
        for part in find_marked_regions(lines, self._name):
            if part.limit and not _is_inside(part, quiet):
                yield self._make_finding(None, _scope_of(lines, part), part.limit)

    def _make_finding(
        self, rule: Rule | None, scope: BudgetScope, limit: int, others: RestOfGroup | None = None
    ) -> Finding | None:
        model = (rule and rule.budget.model) or self._model
        own = self._counter.measure(model, scope.start, scope.end)
        excess_start = partial(self._counter.excess_start, model, scope.start, scope.end)
        return make_finding(self._name, rule, limit, own, scope, excess_start, model, others)


def _first_line_end(text: str) -> int:
    end = text.find("\n")
    end = len(text) if end < 0 else end
    carriage_return = text.find("\r", 0, end)
    return end if carriage_return < 0 else carriage_return


def _scope_of(lines: TextLines, part: Part, written: str | None = None) -> BudgetScope:
    heading_end = part.start + len(lines.texts[part.start_line])
    section = part.path_text if part.kind == "section" else part.title
    kind: ScopeKind = "section" if part.kind == "section" else "region"
    return BudgetScope(kind, part.start, part.end, heading_end, section, written)


def _is_inside(part: Part, around: Sequence[Part]) -> bool:
    return any(other.start <= part.start and part.end <= other.end for other in around)
