"""The reports of `check` as text, JSON, SARIF 2.1.0 and GitHub's workflow commands."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import __version__
from sidecar.budget.finding import DOCUMENTATION, FindingSeverity
from sidecar.text.printable import counted, json_text, printable, printable_lines
from sidecar.workspace.wording import NO_BUDGETS

if TYPE_CHECKING:
    from sidecar.cli.checking.report import FileReport, Report, ReportedFinding, Unchecked

SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS: dict[FindingSeverity, str] = {
    "information": "note",
    "warning": "warning",
    "error": "error",
}
_RULES = {
    "budget-near": "A text is near its token budget.",
    "budget-exceeded": "A text is over its token budget.",
    "budget-growth": "A change makes a text longer or shorter.",
    "budget-unchecked": "A file that has a token budget could not be counted.",
}
_RULE_LEVELS = {"budget-exceeded": "warning", "budget-unchecked": "error"}


def as_text(report: Report) -> str:
    """A line for each finding, as compilers write them, and a summary."""
    lines = [
        f"{file.path}:{found.line}:{found.column}: {found.severity}: {found.message} [{found.code}]"
        for file, found in report.once()
    ]
    lines += [f"{growth.path}: {growth.message}" for growth in report.growth or ()]
    return "\n".join(map(printable, [*lines, _summary(report)]))


def as_json(report: Report) -> str:
    """`{files: [...]}`, with `growth` after `--diff`, and with what was `skipped`."""
    result: dict[str, Any] = {"files": report.files}
    if report.growth is not None:
        result["growth"] = [
            {**msgspec.to_builtins(growth), "added": growth.added, "message": growth.message}
            for growth in report.growth
        ]
    if report.skipped:
        result["skipped"] = report.skipped
    return json_text(result)


def passed_over(skipped: Unchecked) -> str:
    """A line for a file that was not counted."""
    has = "not counted although it has a budget" if skipped.budget else "skipped"
    return f"{skipped.path}: {skipped.reason}, {has}"


def as_github(report: Report) -> str:
    """Annotations, and nothing else."""
    kinds: dict[FindingSeverity, str] = {
        "information": "notice",
        "warning": "warning",
        "error": "error",
    }
    lines = [
        f"::{kinds[found.severity]} {_annotation(file, found)}::{_data(found.message)}"
        for file, found in report.once()
    ]
    lines += [
        f"::notice file={_property(growth.path)},title=Token budget::{_data(growth.message)}"
        for growth in report.growth or ()
    ]
    lines += [
        f"::error file={_property(one.path)},title=Token budget::{_data(passed_over(one))}"
        for one in report.skipped
        if one.budget
    ]
    return "\n".join(lines)


def as_sarif(report: Report) -> str:
    """A SARIF 2.1.0 log with one run; paths are relative to where the command ran."""
    results = [_result(file, found) for file, found in report.once()]
    results += [
        _file_result("budget-growth", growth.path, growth.message) for growth in report.growth or ()
    ]
    results += [
        _file_result("budget-unchecked", one.path, passed_over(one))
        for one in report.skipped
        if one.budget
    ]
    driver = {
        "name": "token-sidecar",
        "version": __version__,
        "informationUri": DOCUMENTATION.partition("/blob/")[0],
        "rules": [_rule(name, words) for name, words in _RULES.items()],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json_text(log)


def _summary(report: Report) -> str:
    found = Counter(bool(found.over) for _, found in report.once())
    files = f"{counted(len(report.files), 'file')} checked"
    if found:
        return f"{files}: {found[True]} over budget, {found[False]} near"
    if report.budgets and not report.budgeted:
        return f"{files}: no budget matches {'it' if len(report.files) == 1 else 'them'}"
    return f"{files}: all within budget" if report.budgets else f"{files}. {NO_BUDGETS}"


def _annotation(file: FileReport, found: ReportedFinding) -> str:
    place = f"line={found.line},endLine={max(found.line, _last_line(found))}"
    return f"file={_property(file.path)},{place},title=Token budget"


def _last_line(found: ReportedFinding) -> int:
    """The last line that the range holds a character of."""
    return found.end_line - 1 if found.end_column == 1 else found.end_line


def _data(text: str) -> str:
    """A message; by GitHub's rules `%`, CR and LF are encoded, and nothing else can be."""
    return printable_lines(text).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _result(file: FileReport, found: ReportedFinding) -> dict[str, Any]:
    region = {
        "startLine": found.line,
        "startColumn": found.column,
        "endLine": found.end_line,
        "endColumn": found.end_column,
    }
    result = _file_result(found.code, file.path, found.message)
    result["level"] = _LEVELS[found.severity]
    result["locations"][0]["physicalLocation"]["region"] = region
    # What stays the same while the text changes, so that a service can follow a finding.
    result["partialFingerprints"] = {
        "tokenBudget/v1": f"{found.rule}|{found.section or ''}|{found.budget}"
    }
    names = ("tokens", "budget", "over", "model", "method")
    result["properties"] = {name: getattr(found, name) for name in names}
    return result


def _file_result(rule: str, path: str, message: str) -> dict[str, Any]:
    return {
        "ruleId": rule,
        "ruleIndex": list(_RULES).index(rule),
        "level": _RULE_LEVELS.get(rule, "note"),
        "message": {"text": printable(message)},
        "locations": [{"physicalLocation": {"artifactLocation": _artifact(path)}}],
    }


def _artifact(path: str) -> dict[str, str]:
    from urllib.parse import quote

    uri = quote(path.replace("\\", "/").removeprefix("./"), errors="surrogateescape")
    return {"uri": f"file://{uri}"} if uri.startswith("/") else {"uri": uri}


def _rule(name: str, words: str) -> dict[str, Any]:
    return {
        "id": name,
        "shortDescription": {"text": words},
        "helpUri": f"{DOCUMENTATION}#{name}",
        "defaultConfiguration": {"level": _RULE_LEVELS.get(name, "note")},
    }
