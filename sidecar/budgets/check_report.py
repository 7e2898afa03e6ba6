"""Formats the report of `token-sidecar check` as text, JSON, SARIF or GitHub annotations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sidecar import __version__
from sidecar.budgets.budget_rules import FindingSeverity
from sidecar.budgets.findings import (
    DEFAULT_SEVERITIES,
    DOCUMENTATION,
    INSTRUCTIONS_PAGE,
    Code,
    Finding,
    GroupMember,
)
from sidecar.config.settings import InstructionCode
from sidecar.counting.count_result import Method, method_mark, number_text, tokens_text
from sidecar.project.git import repository_path
from sidecar.text.printable import (
    counted,
    first_names,
    json_text,
    markdown,
    percent_text,
    printable,
    printable_lines,
    usd_text,
)
from sidecar.text.tables import markdown_table

if TYPE_CHECKING:
    from sidecar.cost.prompt_file_costs import ChangePrice
    from sidecar.project.loading_rules import AfterChange

SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS: dict[FindingSeverity, str] = {
    "information": "note",
    "warning": "warning",
    "error": "error",
}
RULES = {
    "budget-near": "A file or a part of it has nearly used up its token budget.",
    "budget-exceeded": "A file or a part of it is over its token budget.",
    "budget-growth": "A change makes a file longer or shorter.",
    "budget-unchecked": "A file that has a token budget could not be counted.",
    "instructions-cut": "A coding agent drops a part of a file of instructions.",
    "instructions-hidden": "A coding agent skips a file of instructions because of another file.",
    "import-skipped": "A coding agent does not load a file that instructions import.",
    "import-twice": "A coding agent loads an imported file twice.",
    "skill-lost": "A coding agent drops a skill, or its description.",
    "rule-always-loaded": "A rule without a scope is part of every request.",
}
NO_BUDGETS = (
    "No budgets are configured. Add [[budget]] to .token-sidecar.toml; `token-sidecar config init` "
    "creates a sample."
)
_RULE_LEVELS: dict[str, str] = {
    "budget-exceeded": "warning",
    "budget-unchecked": "error",
    **{code: _LEVELS[severity] for code, severity in DEFAULT_SEVERITIES.items()},
}


class FileRange(msgspec.Struct, frozen=True, array_like=True):
    """A text range. Lines and columns start at 1, and the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


START = FileRange(1, 1, 1, 1)
"""The start of a file. Findings from group rules are reported at this position."""


class ReportedFinding(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A finding as reported in JSON."""

    severity: FindingSeverity
    budget: int
    tokens: int
    over: int
    section: str | None
    code: Code
    message: str
    rule: str
    model: str
    method: Method
    line: int
    column: int
    end_line: int
    end_column: int
    files: int = 1
    members: tuple[GroupMember, ...] = ()
    added: int = 0


def report_finding(finding: Finding, file_range: FileRange) -> ReportedFinding:
    """Convert a finding to its JSON form."""
    fields = {name: getattr(finding, name) for name in _FINDING_FIELDS}
    return ReportedFinding(**fields, **msgspec.structs.asdict(file_range))


_FINDING_FIELDS = tuple(
    name for name in ReportedFinding.__struct_fields__ if name in Finding.__struct_fields__
)


class FileReport(msgspec.Struct, frozen=True, rename="camel"):
    """A checked file, its token count for the default model, and its findings."""

    path: str
    tokens: int
    method: Method
    findings: tuple[ReportedFinding, ...] = ()


class ReportedInstruction(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A finding about what coding agents load, as reported in JSON."""

    path: str
    severity: FindingSeverity
    code: InstructionCode
    message: str
    agents: tuple[str, ...]
    line: int
    column: int
    end_line: int
    end_column: int


class Growth(msgspec.Struct, frozen=True, rename="camel"):
    """How a file has grown since a git revision. `before` is 0 for a new file."""

    path: str
    before: int
    tokens: int
    method: Method
    base: str
    """The revision, as given on the command line."""

    @property
    def added(self) -> int:
        """The number of added tokens; negative if the file shrank."""
        return self.tokens - self.before

    @property
    def message(self) -> str:
        number = tokens_text(abs(self.added), self.method)
        more = "more" if self.added >= 0 else "fewer"
        before, after = (number_text(count, self.method) for count in (self.before, self.tokens))
        return f"{number} {more} than in {self.base} ({before} → {after})"


class UnreadFile(msgspec.Struct, frozen=True, rename="camel"):
    """A file that agents send, but that could not be read here."""

    path: str
    reason: str
    is_in_base: bool
    """Whether this is the file's state in the revision."""


_CENT = Decimal("0.01")
_SENT_AGAIN = "its history is no longer in the cache"


class PromptGrowth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How much more an agent sends with every call than in a git revision, and what it costs."""

    agent: str
    title: str
    """The agent's name, as its maker writes it."""
    model: str
    before: int
    tokens: int
    method: Method
    base: str
    """The revision, as given on the command line."""
    price: ChangePrice | None = None
    """None if no calls of the agent are known."""
    has_profile: bool = False
    """Whether calls are read from a usage profile."""
    is_other_model: bool = False
    """Whether the files of the report are counted for another model."""
    after_change: AfterChange = "replaced"
    """What the agent does with the text in an open session. See `AgentRules.after_change`."""
    days: int = 30
    """The number of days in which the calls of `price` were made."""
    unread: tuple[UnreadFile, ...] = ()
    """The files that could not be read. If there are any, no number is known."""
    limit: str = ""
    """What was not looked at, because there is too much. If it is not empty, no number is known."""

    @property
    def is_unknown(self) -> bool:
        return bool(self.unread or self.limit)

    @property
    def added(self) -> int:
        """The number of added tokens; negative if the agent sends less."""
        return self.tokens - self.before

    @property
    def message(self) -> str:
        return f"Every {self.title} call: {self.text}"

    @property
    def text(self) -> str:
        """The growth and its price, without the agent's name."""
        if self.limit:
            return f"unknown growth. {self.limit}"
        if self.unread:
            return self._unread_text()
        before, after = (number_text(count, self.method) for count in (self.before, self.tokens))
        sign = "+" if self.added >= 0 else "-"
        added = f"{method_mark(self.method)}{sign}{counted(abs(self.added), 'token')}"
        model = f" for {self.model}" if self.is_other_model else ""
        size = f"{added}{model} ({before} → {after})"
        if self.price is None and self.has_profile:
            return (
                f"{size}. The usage profile has no such calls; to see the price, write it again "
                "with `token-sidecar cost profile`."
            )
        if self.price is None:
            return (
                f"{size}. No calls are known; to see the price, write a profile with "
                "`token-sidecar cost profile`."
            )
        calls = f"at {counted(self.price.calls, 'call')} in the last {counted(self.days, 'day')}"
        if self.price.usd is None:
            return f"{size}; {calls}, unpriced. Add a [[price]] for {self.model} to see the price."
        text = f"{size}; {calls} {_cost_text(self.price.usd, self.price.read_percent)}"
        if self.price.unpriced_calls:
            text += f"; {counted(self.price.unpriced_calls, 'call')} unpriced"
        return f"{text}.{self._open_session_text()}"

    def _open_session_text(self) -> str:
        """Say what an open session costs more once, if that is a cent or more."""
        once = self.price.open_session if self.price else None
        if once is None or once < _CENT:
            return ""
        cause = "the new text is appended" if self.after_change == "appended" else _SENT_AGAIN
        return f" An open session costs {usd_text(once)} more once, because {cause}."

    def _unread_text(self) -> str:
        """Say which file could not be read, and why."""
        file = self.unread[0]
        others = len({one.path for one in self.unread}) - 1
        rest = f" Nor could {counted(others, 'other file')} be read." if others else ""
        place = f" in {self.base}" if file.is_in_base else ""
        text = f"unknown growth. {file.path}{place} was {file.reason}.{rest}"
        if file.is_in_base:
            return text
        return f"{text} To see the growth, make it a file of at most 4 MB in the project."


def _cost_text(usd: Decimal, read_percent: float) -> str:
    """Format the cost of a month, and the share of it for cache reads."""
    amount = usd_text(abs(usd))
    if not usd:
        return f"{amount} a month"
    if amount.startswith("<"):
        return f"less than {amount[1:]} a month"
    text = f"about {'+' if usd > 0 else '-'}{amount} a month"
    # If sub-agents send less and the others more, parts have different signs.
    is_share = 1 <= read_percent <= 100
    return f"{text}, {percent_text(read_percent)} of it cache reads" if is_share else text


class Unchecked(msgspec.Struct, frozen=True):
    """A file that was skipped."""

    path: str
    reason: str
    budget: bool
    """Whether the file has a budget. If so, the budget could not be checked."""


class ConfigurationProblem(msgspec.Struct, frozen=True):
    """A configuration problem. `line` starts at 1, and is None if the problem is not in a file."""

    path: str | None
    line: int | None
    severity: Literal["warning", "error"]
    message: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking files."""

    files: tuple[FileReport, ...]
    distinct_findings: tuple[tuple[FileReport, ReportedFinding], ...]
    """All findings, each with its file. A finding about a shared budget is included only once."""
    growth: tuple[Growth, ...] | None = None
    """How files have grown, or None without `--diff`."""
    prompt_growth: tuple[PromptGrowth, ...] = ()
    """How much more each agent sends with every call. Agents without a change are left out."""
    instructions: tuple[ReportedInstruction, ...] = ()
    """What coding agents lose of the checked files, or load twice."""
    skipped: tuple[Unchecked, ...] = ()
    """Binary and unreadable files."""
    budgets: int = 0
    """The number of rules, including presets."""
    has_matching_budget: bool = True
    """Whether a rule applies to any of the checked files."""
    has_unreadable: bool = False
    """Whether a file named on the command line is unreadable and has no budget."""
    problems: tuple[ConfigurationProblem, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes to print on standard error."""

    @property
    def all_findings(self) -> list[tuple[str, ReportedFinding | ReportedInstruction]]:
        """The findings about budgets and about instructions, each with the path of its file."""
        instructions = ((finding.path, finding) for finding in self.instructions)
        return [*((file.path, finding) for file, finding in self.distinct_findings), *instructions]

    @property
    def errors(self) -> list[ConfigurationProblem]:
        """The problems that may have prevented budgets from being checked."""
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def is_exceeded(self) -> bool:
        """Whether any budget is exceeded or could not be checked, or a finding is an error."""
        if any(skipped.budget for skipped in self.skipped):
            return True
        if any(finding.severity == "error" for finding in self.instructions):
            return True
        return any(finding.over for file in self.files for finding in file.findings)


def find_distinct(files: Iterable[FileReport]) -> tuple[tuple[FileReport, ReportedFinding], ...]:
    """Return each finding with its file.

    A finding about a shared budget is returned only once: for the file that grew most since the
    revision that `--diff` names, or for the first file.
    """
    distinct: dict[object, tuple[FileReport, ReportedFinding]] = {}
    for file in files:
        for position, finding in enumerate(file.findings):
            key = (file.path, position) if finding.files == 1 else finding.rule
            if key not in distinct or finding.added > max(0, distinct[key][1].added):
                distinct[key] = file, finding
    return tuple(distinct.values())


def as_text(report: Report) -> str:
    """Format the report as text, with a line for each finding and a summary."""
    lines = [
        f"{path}:{finding.line}:{finding.column}: {finding.severity}: "
        f"{finding.message} [{finding.code}]"
        for path, finding in report.all_findings
    ]
    lines += [
        f"{growth.path}: information: {growth.message} [budget-growth]"
        for growth in report.growth or ()
    ]
    lines.append(_summary_line(report))
    if report.instructions:
        number = counted(len(report.instructions), "finding")
        lines.append(f"{number} about what coding agents load: {INSTRUCTIONS_PAGE}")
    return "\n".join(map(printable, [*lines, *_prompt_growth_sentences(report)]))


def _prompt_growth_sentences(report: Report) -> list[str]:
    """Return a sentence for each agent with calls, and one for all others that grow alike."""
    titles: dict[str, list[str]] = {}
    for growth in report.prompt_growth:
        titles.setdefault(growth.text, []).append(growth.title)
    return [
        f"Every {names[0]} call: {text}"
        if len(names) == 1
        else f"Every call of {first_names(names)}: {text}"
        for text, names in titles.items()
    ]


def as_json(report: Report) -> str:
    """Format the report as JSON."""
    result: dict[str, Any] = {"files": report.files}
    if report.growth is not None:
        result["growth"] = [
            {**msgspec.to_builtins(growth), "added": growth.added, "message": growth.message}
            for growth in report.growth
        ]
        result["promptGrowth"] = [_prompt_growth_json(growth) for growth in report.prompt_growth]
    if report.instructions:
        result["instructions"] = report.instructions
    if report.skipped:
        result["skipped"] = report.skipped
    if report.problems:
        result["problems"] = report.problems
    return json_text(result)


def _prompt_growth_json(growth: PromptGrowth) -> dict[str, Any]:
    price, usd = growth.price, growth.price and growth.price.usd
    once = None if price is None else price.open_session
    amounts = {
        "costUsd": usd,
        "readsUsd": price and price.reads,
        "writesUsd": price and price.writes,
        "uncachedUsd": price and price.uncached,
        "subagentsUsd": price and price.subagents,
    }
    return {
        "agent": growth.agent,
        "model": growth.model,
        "before": None if growth.is_unknown else growth.before,
        "tokens": None if growth.is_unknown else growth.tokens,
        "added": None if growth.is_unknown else growth.added,
        "method": growth.method,
        "base": growth.base,
        "unread": growth.unread,
        "calls": price and price.calls,
        "unpricedCalls": price and price.unpriced_calls,
        "days": growth.days,
        **{name: None if usd is None else float(amount or 0) for name, amount in amounts.items()},
        "openSessionUsd": None if once is None else float(once),
        "message": growth.message,
    }


def as_markdown(report: Report) -> str:
    """Format the report as Markdown, for a job summary or a comment on a pull request."""
    parts = ["### Token budgets"]
    parts += [f"**{markdown(sentence)}**" for sentence in _prompt_growth_sentences(report)]
    parts.append(markdown(_summary_line(report)))
    rows = [
        [markdown(f"{path}:{finding.line}"), finding.severity, markdown(finding.message)]
        for path, finding in report.all_findings
    ]
    if rows:
        parts.append(markdown_table([["Place", "Severity", "Finding"], *rows], left=3))
    if report.growth:
        rows = [
            [markdown(growth.path), *_growth_numbers(growth)]
            for growth in sorted(report.growth, key=lambda growth: -growth.added)
        ]
        base = markdown(report.growth[0].base)
        parts.append(markdown_table([["File", f"Tokens in {base}", "Now", "Added"], *rows]))
    parts += [f"- {markdown(skipped_text(skipped))}" for skipped in report.skipped]
    return "\n\n".join(parts)


def _growth_numbers(growth: Growth) -> list[str]:
    before, after = (number_text(count, growth.method) for count in (growth.before, growth.tokens))
    return [before, after, f"{growth.added:+,}"]


def skipped_text(skipped: Unchecked) -> str:
    """Return the line for a skipped file."""
    result = "so its budget was not checked" if skipped.budget else "skipped"
    return f"{skipped.path}: {skipped.reason}, {result}"


_TITLES = {ReportedFinding: "Token budget", ReportedInstruction: "Agent instructions"}


def as_github(report: Report) -> str:
    """Format the report as annotations for a GitHub workflow.

    GitHub resolves paths against the root of the repository, whatever the current folder is. It
    shows an annotation below the last line of its range, so annotations have only one line.
    """
    commands = {**_LEVELS, "information": "notice"}
    lines = [
        f"::{problem.severity} {_problem_location(problem)}::{_escape(problem.message)}"
        for problem in report.problems
    ]
    lines += [
        f"::{commands[finding.severity]} {_annotated(path)}line={finding.line},"
        f"title={_TITLES[type(finding)]}::{_escape(finding.message)}"
        for path, finding in report.all_findings
    ]
    lines += [
        f"::notice {_annotated(growth.path)}title=Token budget::{_escape(growth.message)}"
        for growth in report.growth or ()
    ]
    lines += [
        f"::notice title=Token budget::{_escape(sentence)}"
        for sentence in _prompt_growth_sentences(report)
    ]
    lines += [
        f"::error {_annotated(skipped.path)}title=Token budget::{_escape(skipped_text(skipped))}"
        for skipped in report.skipped
        if skipped.budget
    ]
    return "\n".join(lines)


def as_sarif(report: Report) -> str:
    """Format the report as a SARIF 2.1.0 log, with paths relative to the repository's root."""
    results = [_sarif_result(path, finding) for path, finding in report.all_findings]
    results += [
        _sarif_file_result("budget-growth", growth.path, growth.message)
        for growth in report.growth or ()
    ]
    results += [
        _sarif_file_result("budget-unchecked", skipped.path, skipped_text(skipped))
        for skipped in report.skipped
        if skipped.budget
    ]
    driver = {
        "name": "token-sidecar",
        "version": __version__,
        "informationUri": DOCUMENTATION.partition("/blob/")[0],
        "rules": [_sarif_rule(name, description) for name, description in RULES.items()],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    if report.problems:
        notifications = [
            {"level": problem.severity, "message": {"text": printable(_problem_text(problem))}}
            for problem in report.problems
        ]
        run["invocations"] = [
            {
                "executionSuccessful": not report.errors,
                "toolConfigurationNotifications": notifications,
            }
        ]
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json_text(log)


def _summary_line(report: Report) -> str:
    over = Counter(bool(finding.over) for _, finding in report.distinct_findings)
    files = f"{counted(len(report.files), 'file')} checked"
    if over:
        return f"{files}: {counted(over[True], 'budget')} exceeded, {over[False]} near"
    if report.budgets and report.files and not report.has_matching_budget:
        return f"{files}: no budget matches {'it' if len(report.files) == 1 else 'them'}"
    if report.errors:
        return f"{files}. Budgets affected by configuration errors were not checked."
    if not report.budgets:
        return f"{files}. {NO_BUDGETS}"
    return f"{files}: all within budget" if report.files else files


def _problem_text(problem: ConfigurationProblem) -> str:
    place = f"{problem.path}:{problem.line}" if problem.path and problem.line else problem.path
    return f"{place}: {problem.message}" if place else problem.message


def _problem_location(problem: ConfigurationProblem) -> str:
    file = "" if problem.path is None else _annotated(problem.path)
    line = f"line={problem.line}," if file and problem.line else ""
    return f"{file}{line}title=Token budget configuration"


def _annotated(path: str) -> str:
    """Return the `file` of an annotation, or nothing for the root of the repository."""
    relative = repository_path(path)
    return "" if relative == "." else f"file={_escape_value(relative)},"


def _escape(text: str) -> str:
    """Escape a message for a GitHub workflow command."""
    return printable(text).replace("%", "%25")


def _escape_value(text: str) -> str:
    escaped = printable_lines(text).replace("%", "%25").replace("\n", "%0A")
    return escaped.replace(":", "%3A").replace(",", "%2C")


def _sarif_result(path: str, finding: ReportedFinding | ReportedInstruction) -> dict[str, Any]:
    result = _sarif_file_result(finding.code, path, finding.message)
    result["level"] = _LEVELS[finding.severity]
    result["locations"][0]["physicalLocation"]["region"] = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }
    names: tuple[str, ...] = ("agents",)
    if isinstance(finding, ReportedFinding):
        names = ("tokens", "budget", "over", "model", "method")
        # Services match findings by this fingerprint. It excludes text and positions, so that a
        # finding is still recognized after an edit.
        result["partialFingerprints"] = {
            "tokenBudget/v1": f"{finding.rule}|{finding.section or ''}|{finding.budget}"
        }
    result["properties"] = {name: getattr(finding, name) for name in names}
    return result


def _sarif_file_result(rule: str, path: str, message: str) -> dict[str, Any]:
    return {
        "ruleId": rule,
        "ruleIndex": list(RULES).index(rule),
        "level": _RULE_LEVELS.get(rule, "note"),
        "message": {"text": printable(message)},
        "locations": [{"physicalLocation": {"artifactLocation": _sarif_location(path)}}],
    }


def _sarif_location(path: str) -> dict[str, str]:
    from urllib.parse import quote

    relative = repository_path(path).replace("\\", "/").removeprefix("./")
    uri = quote(relative, errors="surrogateescape")
    return {"uri": f"file://{uri}"} if uri.startswith("/") else {"uri": uri}


def _sarif_rule(name: str, description: str) -> dict[str, Any]:
    page = INSTRUCTIONS_PAGE if name in DEFAULT_SEVERITIES else DOCUMENTATION
    return {
        "id": name,
        "shortDescription": {"text": description},
        "helpUri": f"{page}#{name}",
        "defaultConfiguration": {"level": _RULE_LEVELS.get(name, "note")},
    }
