"""The reports of `check` as text, JSON, SARIF 2.1.0 and GitHub's workflow commands."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import __version__
from sidecar.budget.finding import DOCUMENTATION

if TYPE_CHECKING:
    from sidecar.budget.finding import Severity
    from sidecar.cli.checking.report import FileReport, Found, Report

SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS: dict[Severity, str] = {"information": "note", "warning": "warning", "error": "error"}
_RULES = {
    "budget-near": "A text is near its token budget.",
    "budget-exceeded": "A text is over its token budget.",
    "budget-growth": "A change makes a text longer or shorter.",
}


def as_text(report: Report) -> str:
    """A line for each finding, as compilers write them, and a summary."""
    lines = [
        f"{file.path}:{found.line}:{found.column}: {found.severity}: {found.message} [{found.code}]"
        for file, found in report.once()
    ]
    lines += [f"{growth.path}: {growth.message}" for growth in report.growth or ()]
    return "\n".join([*lines, _summary(report)])


def as_json(report: Report) -> str:
    """`{files: [...]}`, with `growth` after `--diff`."""
    result: dict[str, Any] = {"files": report.files}
    if report.growth is not None:
        result["growth"] = [
            {**msgspec.to_builtins(growth), "added": growth.added, "message": growth.message}
            for growth in report.growth
        ]
    return _dumped(result)


def as_github(report: Report) -> str:
    """Annotations, and nothing else."""
    kinds: dict[Severity, str] = {"information": "notice", "warning": "warning", "error": "error"}
    lines = [
        f"::{kinds[found.severity]} {_annotation(file, found)}::{_data(found.message)}"
        for file, found in report.once()
    ]
    lines += [
        f"::notice file={_property(growth.path)},title=Token budget::{_data(growth.message)}"
        for growth in report.growth or ()
    ]
    return "\n".join(lines)


def as_sarif(report: Report) -> str:
    """A SARIF 2.1.0 log with one run; paths are relative to where the command ran."""
    results = [_result(file, found) for file, found in report.once()]
    results += [_growth_result(growth.path, growth.message) for growth in report.growth or ()]
    driver = {
        "name": "token-sidecar",
        "version": __version__,
        "informationUri": DOCUMENTATION.partition("/blob/")[0],
        "rules": [_rule(name, words) for name, words in _RULES.items()],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return _dumped(log)


def _summary(report: Report) -> str:
    counted = Counter(bool(found.over) for _, found in report.once())
    files = f"{len(report.files):,} file{'' if len(report.files) == 1 else 's'}"
    if not counted:
        return f"{files} checked: all within budget"
    return f"{files} checked: {counted[True]} over budget, {counted[False]} near"


def _annotation(file: FileReport, found: Found) -> str:
    place = f"line={found.line},endLine={max(found.line, _last_line(found))}"
    return f"file={_property(file.path)},{place},title=Token budget"


def _last_line(found: Found) -> int:
    """The last line that the range holds a character of."""
    return found.end_line - 1 if found.end_column == 1 else found.end_line


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _result(file: FileReport, found: Found) -> dict[str, Any]:
    region = {
        "startLine": found.line,
        "startColumn": found.column,
        "endLine": found.end_line,
        "endColumn": found.end_column,
    }
    result = _growth_result(file.path, found.message)
    result["ruleId"] = found.code
    result["ruleIndex"] = list(_RULES).index(found.code)
    result["level"] = _LEVELS[found.severity]
    result["locations"][0]["physicalLocation"]["region"] = region
    # What stays the same while the text changes, so that a service can follow a finding.
    result["partialFingerprints"] = {
        "tokenBudget/v1": f"{found.rule}|{found.section or ''}|{found.budget}"
    }
    result["properties"] = {
        "tokens": found.tokens,
        "budget": found.budget,
        "over": found.over,
        "model": found.model,
        "method": found.method,
    }
    return result


def _growth_result(path: str, message: str) -> dict[str, Any]:
    return {
        "ruleId": "budget-growth",
        "ruleIndex": list(_RULES).index("budget-growth"),
        "level": "note",
        "message": {"text": message},
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
        "defaultConfiguration": {"level": "note" if name != "budget-exceeded" else "warning"},
    }


def _dumped(value: object) -> str:
    """JSON in ASCII: a file name that is not UTF-8 can be written down only so."""
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
