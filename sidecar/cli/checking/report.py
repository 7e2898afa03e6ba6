"""What `check` found, as JSON has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.budget.finding import Code, Severity
from sidecar.counting.count import Method
from sidecar.workspace.files import Skipped

if TYPE_CHECKING:
    from sidecar.cli.checking.cache import Entry


class Target(NamedTuple):
    """A file to check: as it was asked for, and relative to the root with `/`."""

    path: str
    relative: str


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A range of a file: 1-based lines and columns, in characters; the end is the first after."""

    line: int
    column: int
    end_line: int
    end_column: int


class Found(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One finding of a file (contract: `severity, budget, tokens, over, section`)."""

    severity: Severity
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


class FileReport(msgspec.Struct, frozen=True, rename="camel"):
    """One file: its tokens by the default model, and its findings."""

    path: str
    tokens: int
    method: Method
    findings: tuple[Found, ...] = ()


class Checked(NamedTuple):
    """What became of one target: no report for what is no text, but why it is passed over."""

    target: Target
    entry: Entry
    report: FileReport | None
    skipped: Skipped | None = None


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
        mark = "~" if self.method in ("calibrated", "estimate") else ""
        verb, preposition = ("adds", "to") if self.added >= 0 else ("removes", "from")
        number = f"{mark}{abs(self.added):,} token{'' if abs(self.added) == 1 else 's'}"
        return f"this change {verb} {number} {preposition} {self.path}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run of `check` has to say."""

    files: tuple[FileReport, ...]
    growth: tuple[Growth, ...] | None = None
    """None without `--diff`."""
    skipped: tuple[Skipped, ...] = ()
    """What is no text, or cannot be read."""

    @property
    def exceeded(self) -> bool:
        """Whether any budget is."""
        return any(finding.over for file in self.files for finding in file.findings)

    def once(self) -> list[tuple[FileReport, Found]]:
        """The findings by file, one over several files only at the first of them."""
        said: set[str] = set()
        found: list[tuple[FileReport, Found]] = []
        for file in self.files:
            for finding in file.findings:
                if finding.files > 1 and finding.rule in said:
                    continue
                said.add(finding.rule)
                found.append((file, finding))
        return found
