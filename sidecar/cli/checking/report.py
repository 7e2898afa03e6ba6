"""What `check` found, as JSON has it."""

from __future__ import annotations

import msgspec

from sidecar.budget.finding import Code, Finding, FindingSeverity
from sidecar.counting.count import Method, tokens_text


class FileRange(msgspec.Struct, frozen=True, array_like=True):
    """A range of a file: 1-based lines and columns, in characters; the end is the first after."""

    line: int
    column: int
    end_line: int
    end_column: int


START = FileRange(1, 1, 1, 1)
"""Where a file's part of a sum is shown."""


class ReportedFinding(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One finding of a file (contract: `severity, budget, tokens, over, section`)."""

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


def reported(finding: Finding, place: FileRange) -> ReportedFinding:
    """A finding as JSON has it."""
    fields = {name: getattr(finding, name) for name in _OF_FINDING}
    return ReportedFinding(**fields, **msgspec.structs.asdict(place))


_OF_FINDING = tuple(
    name for name in ReportedFinding.__struct_fields__ if name in Finding.__struct_fields__
)


class FileReport(msgspec.Struct, frozen=True, rename="camel"):
    """One file: its tokens by the default model, and its findings."""

    path: str
    tokens: int
    method: Method
    findings: tuple[ReportedFinding, ...] = ()


class Growth(msgspec.Struct, frozen=True, rename="camel"):
    """How a change since a git revision changes a file's tokens; `before` is 0 for a new file."""

    path: str
    before: int
    tokens: int
    method: Method

    @property
    def added(self) -> int:
        """Tokens added; negative when it shrank."""
        return self.tokens - self.before

    @property
    def message(self) -> str:
        """`this change adds 812 tokens to CLAUDE.md`."""
        verb, preposition = ("adds", "to") if self.added >= 0 else ("removes", "from")
        number = tokens_text(abs(self.added), self.method)
        return f"this change {verb} {number} {preposition} {self.path}"


class Unchecked(msgspec.Struct, frozen=True):
    """A file that was passed over."""

    path: str
    reason: str
    budget: bool
    """Whether it has a budget, which nobody knows to be kept."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run of `check` has to say."""

    files: tuple[FileReport, ...]
    growth: tuple[Growth, ...] | None = None
    """None without `--diff`."""
    skipped: tuple[Unchecked, ...] = ()
    """What is no text, or cannot be read."""
    budgets: int = 0
    """How many rules were written; presets count."""
    budgeted: bool = True
    """Whether one of them is for a file that was checked."""
    failed: bool = False
    """Whether a file that was asked for by its name, and has no budget, cannot be read."""
    notes: tuple[str, ...] = ()
    """What else the user has to know."""

    @property
    def exceeded(self) -> bool:
        """Whether any budget is, or may be."""
        if any(passed.budget for passed in self.skipped):
            return True
        return any(finding.over for file in self.files for finding in file.findings)

    def once(self) -> list[tuple[FileReport, ReportedFinding]]:
        """The findings by file, one over several files only at the first of them."""
        seen: set[str] = set()
        found: list[tuple[FileReport, ReportedFinding]] = []
        for file in self.files:
            for finding in file.findings:
                if finding.files > 1 and finding.rule in seen:
                    continue
                seen.add(finding.rule)
                found.append((file, finding))
        return found
