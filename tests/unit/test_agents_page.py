"""Tests that the docs list every agent with its folders, versions and numbers."""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.known_agents import all_agents
from tests.agents_page import PAGE, page, texts
from tests.e2e.agents.adapters import AGENTS

ROOT = Path(__file__).parents[2]


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
