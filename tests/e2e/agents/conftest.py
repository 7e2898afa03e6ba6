"""Selects the agents that run the scenes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.agents.adapters import Agent, chosen_agents
from tests.e2e.agents.cache_losses import PROVOKED
from tests.e2e.agents.install import MissingPythonError, ensure_installed
from tests.e2e.agents.scene import Scene, Stage
from tests.e2e.agents.scores import record

LONG_SCENE = "growing_session"
PROVOKED_SCENE = "lost_caches_have_their_cause_and_cost"
_NO_XDG = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each scene with each selected agent that supports it."""
    if "agent" not in metafunc.fixturenames:
        return
    scene = metafunc.function.__name__.removeprefix("test_")
    chosen = chosen_agents(_chosen_names())
    able = [agent for agent in chosen if scene not in agent.cannot]
    if scene == PROVOKED_SCENE:
        able = [agent for agent in able if agent.id in PROVOKED]
    params = [pytest.param(agent, id=agent.id, marks=_marks(agent, scene)) for agent in able]
    metafunc.parametrize("agent", params)


def _marks(agent: Agent, scene: str) -> list[pytest.MarkDecorator]:
    """Mark the long scene as slow for all but one agent, unless specific agents were chosen."""
    is_slow = scene == LONG_SCENE and agent.name != "codex" and not _chosen_names()
    return [pytest.mark.slow] if is_slow else []


def _chosen_names() -> list[str]:
    return os.environ.get("AGENTS", "").split()


@pytest.fixture
def program(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the agent's program. Installs it if necessary."""
    for name in _NO_XDG:
        monkeypatch.delenv(name, raising=False)
    try:
        return ensure_installed(agent.package)
    except MissingPythonError as error:
        if agent.id in _chosen_names():
            raise
        pytest.skip(f"{agent.name} {error}")


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, agent: Agent, program: Path, tmp_path: Path
) -> Iterator[Scene]:
    """Yield a scene: an agent and our server, with their own workspace and home folder."""
    name = request.function.__name__.removeprefix("test_")
    made = Scene(name, agent, program, tmp_path)
    yield made
    made.close()
    record(request.node, made.score)


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, agent: Agent, program: Path, tmp_path: Path
) -> Iterator[Stage]:
    """Yield an agent with its own workspace and home folder."""
    made = Stage(agent, program, tmp_path)
    yield made
    made.close()
    record(request.node, made.score)
