"""Tests the summary that is printed after runs with real agents, and the agent versions in the
docs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.known_agents import all_agents
from tests.agents_page import PAGE, page, texts
from tests.e2e.agents.adapters import AGENTS

ROOT = Path(__file__).parents[2]

SCENES = """
import pytest

from tests.e2e.agents.scores import Score, record

@pytest.fixture
def scene(request):
    yield
    results = 3, 2, 5, 4, 6, 5, 2, 1, [0.5], [6.0], 100, 40, {"subagent": "no"}, ["9/8"]
    record(request.node, Score("pi", "1.0", *results))

@pytest.mark.parametrize("name", range(4))
def test_scene(scene, name):
    pass
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_scores_of_all_processes_are_printed(tmp_path: Path, processes: str) -> None:
    scenes = tmp_path / "test_scenes.py"
    scenes.write_text(SCENES)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    command += ["-p", "tests.e2e.agents.scores", "-p", "no:cacheprovider", "-n", processes]
    result = subprocess.run(
        [*command, str(scenes)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    forecasts = ["9/8,", "9/8,", "9/8,", "9/8"]
    assert [
        "pi",
        "1.0",
        "8/12",
        "16/20",
        "20/24",
        "4/8",
        "40.0%",
        "0.50",
        "0.50",
        "1.00",
        *forecasts,
    ] in lines
    assert "pi: lag not judged: load 6.0 (4 of 4)" in result.stdout
    assert "pi: no subagent: no" in result.stdout


def test_readme_counts_the_agents() -> None:
    """Copilot stands for two agents."""
    text = (ROOT / "README.md").read_text().partition("Sessions of ")[2]
    names, _, others = text.partition(" and ")
    counted = len(names.split(",")) + 1 + int(others.split()[0])
    assert counted == len(all_agents()), "count the agents in README.md again"


def test_docs_list_every_agent_with_the_version_under_test() -> None:
    """The tables are generated from data."""
    assert set(texts().agents) == set(all_agents()), "describe the agent in tests/agents_page.toml"
    text = PAGE.read_text()
    assert page(text) == text, "run python -m tests.agents_page"
    for name, agent in all_agents().items():
        (row,) = re.findall(f"^\\| `{name}` \\(.*", text, re.MULTILINE)
        paths = [path for path in (*agent.folders, *agent.session_folders) if path[0] == "$"]
        named = [path[1:].partition("/")[0] for path in paths]
        named += [setting.key for setting in agent.settings]
        others = (agent.database_variable, agent.project_file, agent.project_file_variable)
        named += [one for one in others if one is not None]
        assert not [one for one in named if f"`{one}`" not in row], row


def test_numbers_are_exact_only_if_they_were_compared() -> None:
    """An agent's number that nobody compared with a vendor's may differ from it."""
    described = texts().agents.items()
    unseen = {name: one for name, one in described if one.tested == "from public sources"}
    claims = [name for name in unseen.keys() - AGENTS if "exact" in unseen[name].numbers]
    assert claims == [], "write `per call, from public sources` in tests/agents_page.toml"
