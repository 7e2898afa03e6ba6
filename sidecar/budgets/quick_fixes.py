"""Proposes quick fixes for the findings in a document.

A fix edits the document or the settings, or creates or deletes a file.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from sidecar import typed
from sidecar.budgets.budget_rules import Subject
from sidecar.budgets.findings import Finding, TextCounter, make_text_counter
from sidecar.config.safe_files import read_file
from sidecar.config.toml import KeyPath, check_limits, find_spans
from sidecar.counting.count_result import Measure, tokens_text
from sidecar.counting.fitting import character_boundary, fit
from sidecar.text.outline import FIRST_LINES, IGNORE_MARK, Part, TextLines, find_sections

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.config.settings import Origin, Truncation
    from sidecar.counting.tokenizer_choice import CounterChoice
    from sidecar.counting.tokenizer_interface import Tokenizer

FixKind = Literal["fit", "move", "drop", "raise", "ignore", "import", "delete"]

MODES: dict[Truncation, str] = {
    "start": "keep the start",
    "middle": "keep both ends",
    "end": "keep the end",
}
_ROUNDS = 16
_DIGITS = re.compile(r"(token-budget:[ \t]*)(\d[\d_,]*)")
_TRIES = 100


class TextEdit(msgspec.Struct, frozen=True):
    """A replacement of the characters from `start` to `end` with `text`."""

    start: int
    end: int
    text: str


class FixTarget(msgspec.Struct, frozen=True):
    """A file to edit or create, with its current or initial text."""

    uri: str
    text: str


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """A quick fix. The edits apply to `target`, or to the document if `target` is None."""

    kind: FixKind
    title: str
    edits: tuple[TextEdit, ...]
    preferred: bool = False
    target: FixTarget | None = None
    new_file: FixTarget | None = None
    deleted_uri: str | None = None
    """The file to delete. There are then no edits."""


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

    Several budgets may be exceeded at once. Different fixes then have different titles. This
    function blocks.
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
    yield from fit_fixes(text, finding, choices[finding.model].tokenizer)
    is_always_loaded = any(
        rule.key == finding.rule and rule.budget.always_loaded for rule in subject.rules
    )
    others = (
        _propose_move_to_file(subject, finding, place, counter),
        drop_fix(text, finding, counter),
        _propose_raise(finding, place, text),
        None  # agents send a file regardless of marks
        if is_always_loaded
        else ignore_fix(subject.name, subject.snapshot.language_id, text, finding),
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
    return move_fix(subject.snapshot.text, finding, counter, free.name, free.as_uri())


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
        return raise_region_fix(finding, text)
    origin = place.origins.get(finding.rule)
    if origin is None or origin.file is None:
        return None
    root = place.root if origin.source == "project" else None
    try:  # never write through a link to a file outside the project
        written = read_file(origin.file, root).decode("utf-8-sig")
        check_limits(written)  # the file may have changed since it was loaded
    except (OSError, ValueError):
        return None
    fix = raise_fix(finding, written, origin.path, origin.file.name)
    return fix and replace(fix, target=FixTarget(origin.file.as_uri(), written))


def fit_fixes(text: str, finding: Finding, tokenizer: Tokenizer) -> Iterator[Fix]:
    """Yield fixes that shorten text to its budget, such as `Fit to budget: keep the start`.

    Yields nothing if the budget is not exceeded. The fix with the rule's `truncation` mode is
    preferred.
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


def fit_edit(
    text: str, finding: Finding, tokenizer: Tokenizer, mode: Truncation
) -> TextEdit | None:
    """Return the edit that shortens text to its budget, or None if that is impossible."""
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
    ends = ("\n", "\r")
    if parts.body.endswith(ends) or not parts.tail.startswith(ends):
        return body
    return body.removesuffix("\n").removesuffix("\r")


def move_fix(
    text: str, finding: Finding, counter: TextCounter, new_name: str, new_uri: str
) -> Fix | None:
    """Return a fix that moves the excess to a new file, in whole lines if possible."""
    parts = parts_of(text, finding)
    if finding.over == 0:
        return None
    keep = 0 if finding.kind == "file" else len(parts.tail)
    end = finding.scope_end
    allowance = finding.allowance - counter.measure(finding.model, end - keep, end).tokens
    excess_start = counter.excess_start(finding.model, finding.scope_start, end, allowance)
    line_start = max(text.rfind("\n", 0, excess_start), text.rfind("\r", 0, excess_start)) + 1
    cut = line_start if line_start > parts.body_start else character_boundary(text, excess_start)
    within = counter.measure(finding.model, finding.scope_start, cut).tokens
    if not parts.body_start < cut < end - keep or within > allowance:
        return None
    edit = TextEdit(cut, finding.scope_end - keep, "")
    return Fix(
        kind="move",
        title=f"Move the excess{_part_suffix(finding)} to {new_name}",
        edits=(edit,),
        new_file=FixTarget(new_uri, text[edit.start : edit.end]),
    )


def drop_fix(text: str, finding: Finding, counter: TextCounter) -> Fix | None:
    """Return a fix that removes the finding's section, or the smallest one that is enough."""
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
    candidates = [
        (counter.measure(finding.model, part.start, part.end), part)
        for part in find_sections(TextLines(text))
        if part.end - part.start < len(text)
    ]
    # Joining the text before and after the section can add one token.
    enough = [section for section in candidates if section[0].tokens > finding.over]
    return min(enough, key=lambda one: (one[0].tokens, one[1].start), default=None)


def raise_fix(finding: Finding, configuration: str, entry: KeyPath, file_name: str) -> Fix | None:
    """Return a fix that raises the limit in the configuration.

    Args:
        finding: The finding.
        configuration: The configuration file's text.
        entry: The rule's path in the configuration file.
        file_name: The configuration file's name.
    """
    number = raised_limit(finding.tokens)
    key = ("sections", finding.rule_section) if finding.rule_section else ("max-tokens",)
    span = find_spans(configuration)[0].get((*entry, *key))
    if span is None:
        return None
    return Fix(
        kind="raise",
        title=f"Raise the budget{_part_suffix(finding)} to {number:,} in {file_name}",
        edits=(TextEdit(span.start, span.end, str(number)),),
    )


def raise_region_fix(finding: Finding, document: str) -> Fix | None:
    """Return a fix that raises the limit in a region's mark."""
    number = raised_limit(finding.tokens)
    mark = _DIGITS.search(first_line(document, finding.scope_start))
    if mark is None:
        return None
    start = finding.scope_start + mark.start(2)
    return Fix(
        kind="raise",
        title=f"Raise the budget to {number:,} here",
        edits=(TextEdit(start, start + len(mark[2]), str(number)),),
    )


def raised_limit(tokens: int) -> int:
    """Add a fifth, and round up to two significant digits: 2,431 becomes 3,000.

    With less room, the next edit would exceed the budget again, or come near it.
    """
    roomy = tokens + tokens // 5
    step = int(10 ** max(0, len(str(roomy)) - 2))
    return (roomy // step + 1) * step


def ignore_fix(name: str, language_id: str, text: str, finding: Finding) -> Fix | None:
    """Return a fix that inserts an ignore mark below a heading or at the top of the file.

    A mark in the first ten lines applies to the whole file.
    """
    mark = comment(IGNORE_MARK, name, language_id)
    if mark is None or finding.kind == "region":
        return None
    at = 0
    if finding.kind == "section":
        at = finding.scope_start + len(parts_of(text, finding).head)
        line = len(TextLines(text[:at]).texts) - 1
        at = at if line >= FIRST_LINES else 0
    title = "Ignore the budget of this section" if at else "Ignore budgets in this file"
    if not at:
        at, mark = _comment_at_top(text, mark)
    end = line_end_of(text)
    before = "" if at == 0 or text[at - 1] in "\r\n" else end
    return Fix(kind="ignore", title=title, edits=(TextEdit(at, at, f"{before}{mark}{end}"),))


def _comment_at_top(text: str, mark: str) -> tuple[int, str]:
    """Return a comment to insert at the top of the text, and the offset to insert it at.

    The comment goes below lines that must stay first, such as a `#!` line.
    """
    line = first_line(text)
    if line.rstrip() == "---":
        return len(line), f"# {IGNORE_MARK}"  # Front matter is YAML.
    at = 0
    while (line := first_line(text, at)) and _STAYS_FIRST.match(line):
        at += len(line)
    return at, mark


_STAYS_FIRST = re.compile(
    r"\ufeff|#!|<\?|<!doctype|@charset\b|#[^\r\n]*coding[:=]|#[ \t]*frozen_string_literal:"
    r"|#[ \t]*(?:syntax|escape|check)[ \t]*=|[^\r\n]*-\*-",
    re.IGNORECASE,
)
"""Lines that only have an effect at the top of a file."""
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_UNDERLINE = re.compile(r"^ {0,3}(?:=+|-+)[ \t]*(?:\r\n|\r|\n|\Z)", re.MULTILINE)
_LINE_END = re.compile(r"\r\n|\r|\n")
_LAST_LINE_END = re.compile(r"(?:\r\n|\r|\n)\Z")
_END_MARK = re.compile(r"token-budget:[ \t]*end(?![\w-])")
_TAIL_SEARCHED = 10_000


class Parts(msgspec.Struct, frozen=True):
    """Text split into a head, a body and a tail. Fixes keep the head and the tail."""

    start: int
    head: str
    body: str
    tail: str

    @property
    def body_start(self) -> int:
        """The body's offset in the document."""
        return self.start + len(self.head)


def parts_of(text: str, finding: Finding) -> Parts:
    """Split a finding's text into the body that a fix shortens, and the parts that it keeps.

    A file keeps its final line ending. A section keeps its heading and trailing blank lines. A
    region keeps its start and end marks.
    """
    scope = text[finding.scope_start : finding.scope_end]
    head = _heading_of(scope, finding)
    rest = scope[len(head) :]
    tail = _end_mark_of(rest, finding)
    return Parts(finding.scope_start, head, rest[: len(rest) - len(tail)], tail)


def minimal_edit(start: int, old: str, new: str) -> TextEdit:
    """Return the smallest edit that replaces `old`, which starts at offset `start`, with `new`.

    The edit never starts or ends between CR and LF, because editors have no such position.
    """
    before = _common_prefix_length(old, new)
    if old[before - 1 : before + 1] == "\r\n" or new[before - 1 : before + 1] == "\r\n":
        before -= 1
    left = min(len(old), len(new)) - before
    after = min(_common_prefix_length(old[::-1], new[::-1]), left)
    if after and old[len(old) - after - 1 : len(old) - after + 1] == "\r\n":
        after -= 1
    return TextEdit(start + before, start + len(old) - after, new[before : len(new) - after])


def line_end_of(text: str) -> str:
    """Return the first line terminator in the text, or LF if there is none."""
    found = _LINE_END.search(text)
    return found.group() if found else "\n"


def first_line(text: str, start: int = 0) -> str:
    """Return the rest of the line at an offset, including its line ending."""
    found = _LINE.match(text, start)
    return found.group() if found else ""


def _heading_of(scope: str, finding: Finding) -> str:
    if finding.kind == "file":
        return ""
    line = first_line(scope)
    if finding.kind == "region" or line.lstrip(" ").startswith("#"):
        return line
    underline = _UNDERLINE.search(scope, len(line))
    return scope[: underline.end()] if underline else line


def _end_mark_of(rest: str, finding: Finding) -> str:
    last = rest[-_TAIL_SEARCHED:]
    if finding.kind == "section":
        blank = _LINE_END.search(last, len(last.rstrip(" \t\r\n")))
        return last[blank.start() :] if blank else ""
    if finding.kind == "region":
        lines = last.rstrip("\r\n")
        begin = max(lines.rfind("\n"), lines.rfind("\r")) + 1
        if _END_MARK.search(lines, begin):
            return last[begin:]
    found = _LAST_LINE_END.search(last)
    return found.group() if found else ""


def _common_prefix_length(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


@cache
def _comment_styles() -> dict[str, str]:
    """Return the comment templates, keyed by language id, file extension or file name."""
    styles = typed.read_table("sidecar.budgets", "comments.toml", dict[str, str])
    return {name: style for style, names in styles.items() for name in names.split()}


def comment(words: str, name: str, language_id: str = "") -> str | None:
    """Return `words` as a comment in a file's language, or None if the language is unknown."""
    base = name.rpartition("/")[2].lower().lstrip(".")
    styles = _comment_styles()
    keys = (language_id.lower(), base.rpartition(".")[2], base)
    style = next((styles[key] for key in keys if key in styles), None)
    return None if style is None else style.replace("{}", words)
