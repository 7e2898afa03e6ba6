"""Which agents the scenes are run with, and the table of what they showed."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.e2e.agents.adapters import AGENTS, Agent, chosen_agents
from tests.e2e.agents.scene import Scene, Score

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SCORE = "score of a real agent"
_scores: dict[str, Score] = {}
_NO_XDG = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each scene with each chosen agent that has the means for it."""
    if "agent" not in metafunc.fixturenames:
        return
    scene = metafunc.function.__name__.removeprefix("test_")
    chosen = chosen_agents(os.environ.get("AGENTS", "").split())
    able = [agent for agent in chosen if scene not in agent.cannot]
    metafunc.parametrize("agent", able, ids=[agent.name for agent in able])


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    agent: Agent,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    """The agent and our server on a workspace, in a home of their own."""
    for name in _NO_XDG:
        monkeypatch.delenv(name, raising=False)
    name = request.function.__name__.removeprefix("test_")
    made = Scene(name, agent, tmp_path)
    yield made
    made.close()
    request.node.user_properties.append((_SCORE, (agent.name, asdict(made.score))))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the scores, of other processes too."""
    if report.when != "teardown":
        return
    for key, value in report.user_properties:
        if key == _SCORE:
            name, score = cast("tuple[str, dict[str, Any]]", value)
            _scores.setdefault(name, Score()).add(Score(**score))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each agent's scenes showed."""
    if not _scores:
        return
    terminalreporter.section("real agents")
    head = f"{'agent':12} {'version':10} {'checks':>9} {'prompt tokens':>13} {'lag, s: median':>14} {'most':>5}"
    terminalreporter.write_line(head)
    for name, score in _scores.items():
        terminalreporter.write_line(_row(AGENTS[name], score))
    for name in _scores:
        agent = AGENTS[name]
        for what, reason in (agent.cannot | agent.untold | agent.limits).items():
            terminalreporter.write_line(f"{name}: no {what}: {reason}")


def _row(agent: Agent, score: Score) -> str:
    lags = sorted(score.lags) or [0.0]
    share = score.recorded_prompt_tokens / (score.prompt_tokens or 1)
    checks = f"{score.passed}/{score.checks}"
    return (
        f"{agent.name:12} {agent.package.version:10} {checks:>9} {share:13.1%} "
        f"{lags[len(lags) // 2]:14.2f} {lags[-1]:5.2f}"
    )
