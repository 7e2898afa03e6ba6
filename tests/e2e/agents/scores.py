"""A pytest plugin that prints a summary of the scenes with real agents.

`tests/conftest.py` loads it, because the main process must print the summary even if the tests run
in worker processes (with `-n`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, cast

import pytest

LAG_GOAL = 1
"""Target time until a status shows a new context, in seconds. Printed in the table."""
COUNTS = (
    "checks", "passed", "places", "right_places", "parts", "right_parts", "sums", "right_sums",
    "prompt_tokens", "recorded_prompt_tokens",
)  # fmt: skip
"""The fields of scores that are added up."""
_SCORE = "score of a real agent"
_scores: dict[str, Score] = {}


@dataclass
class Score:
    """An agent's results in one or more scenes."""

    agent: str
    version: str
    checks: int = 0
    passed: int = 0
    places: int = 0
    """The places where a prompt file contained a canary."""
    right_places: int = 0
    """The places about which the footprint was right."""
    parts: int = 0
    """The parts of footprints that requests contained."""
    right_parts: int = 0
    """The parts with the right size."""
    sums: int = 0
    """The footprints that were compared with a bill."""
    right_sums: int = 0
    lags: list[float] = field(default_factory=list)
    """The delay between each vendor reply and the status that shows it, in seconds."""
    loads: list[float] = field(default_factory=list)
    """The machine's load averages when it was too busy to check a delay."""
    prompt_tokens: int = 0
    recorded_prompt_tokens: int = 0
    omissions: dict[str, str] = field(default_factory=dict)
    """The scenes, calls and checks that were skipped, each with the reason."""
    forecasts: list[str] = field(default_factory=list)
    """The forecasts that were made when the window was half full.

    `12 of 14` means that 12 more calls were predicted and 14 followed.
    """

    def add(self, other: Score) -> None:
        """Add another scene's results."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lags += other.lags
        self.loads += other.loads
        self.forecasts += other.forecasts

    def row(self) -> str:
        """Format the results as a row of the table."""
        lags = sorted(self.lags)
        median, most = (f"{lags[at]:.2f}" if lags else "-" for at in (len(lags) // 2, -1))
        share = self.recorded_prompt_tokens / self.prompt_tokens if self.prompt_tokens else None
        checks, places = f"{self.passed}/{self.checks}", f"{self.right_places}/{self.places}"
        parts, sums = f"{self.right_parts}/{self.parts}", f"{self.right_sums}/{self.sums}"
        return (
            f"{self.agent:12} {self.version:10} {checks:>9} {places:>13} {parts:>9} {sums:>5} "
            f"{'-' if share is None else f'{share:.1%}':>13} "
            f"{median:>14} {most:>5} {LAG_GOAL:5.2f} {', '.join(self.forecasts) or '-':>10}"
        )


def record(item: pytest.Item, score: Score) -> None:
    """Attach a scene's results to its test report."""
    item.user_properties.append((_SCORE, asdict(score)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the results, including those from other processes."""
    if report.when != "teardown":
        return
    for key, value in report.user_properties:
        if key == _SCORE:
            score = Score(**cast("dict[str, Any]", value))
            if (known := _scores.setdefault(score.agent, score)) is not score:
                known.add(score)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a row for each agent, and everything that the scenes skipped."""
    if not _scores:
        return
    terminalreporter.section("real agents")
    terminalreporter.write_line(
        f"{'agent':12} {'version':10} {'checks':>9} {'places':>13} {'parts':>9} {'sums':>5} "
        f"{'prompt tokens':>13} "
        f"{'lag, s: median':>14} {'most':>5} {'goal':>5} {'calls left':>10}"
    )
    for score in _scores.values():
        terminalreporter.write_line(score.row())
    for score in _scores.values():
        if score.loads:
            terminalreporter.write_line(
                f"{score.agent}: lag not judged: load {max(score.loads):.1f} "
                f"({len(score.loads)} of {len(score.lags)})"
            )
        for what, reason in score.omissions.items():
            terminalreporter.write_line(f"{score.agent}: no {what}: {reason}")
