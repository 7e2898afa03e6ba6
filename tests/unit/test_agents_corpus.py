"""Tests that the benchmarks' generated sessions contain all traps, and are read correctly."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.agents.corpus import SOURCES, History, history
from benchmarks.agents.truth import Tokens
from sidecar.config.settings import Agents
from tests.cases import read_cases
from tests.unit.agents_world import World

MEGABYTES = 30


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("history") / "home"


@pytest.fixture(scope="module")
def truths(home: Path) -> History:
    return history(home, MEGABYTES)


@pytest.fixture(scope="module")
def contents(home: Path, truths: History) -> dict[Path, str]:
    assert truths
    files = (path for path in home.rglob("*") if path.is_file())
    return {path: path.read_bytes().decode(errors="replace") for path in files}


@pytest.mark.parametrize("trap", read_cases("traps", tuple[str, str]))
def test_corpus_contains_every_trap(
    home: Path, contents: dict[Path, str], trap: tuple[str, str]
) -> None:
    folder, mark = trap
    ours = {path: text for path, text in contents.items() if path.is_relative_to(home / folder)}
    named = [path for path in ours if mark in str(path)]
    assert named or any(mark in text for text in ours.values())


@pytest.mark.parametrize("folder", [".claude", ".codex", ".config", ".gemini"])
def test_corpus_contains_half_written_tails(
    home: Path, contents: dict[Path, str], folder: str
) -> None:
    logs = (text for path, text in contents.items() if path.is_relative_to(home / folder)
            and path.suffix == ".jsonl")  # fmt: skip
    assert any(not text.endswith("\n") for text in logs)


def test_corpus_contains_falling_counters_and_repeated_events(
    home: Path, contents: dict[Path, str]
) -> None:
    totals = [
        [json.loads(line)["payload"]["info"]["total_token_usage"]["total_tokens"]
         for line in text.splitlines() if '"total_token_usage"' in line and line.endswith("}")]
        for path, text in contents.items() if path.name.startswith("rollout-") and path.suffix == ".jsonl"
    ]  # fmt: skip
    steps = [later - one for total in totals for one, later in pairwise(total)]
    assert min(steps) < 0
    assert 0 in steps


@pytest.fixture(scope="module")
def world(home: Path, truths: History) -> World:
    assert truths
    made = World(home, Agents(sources=SOURCES))
    made.ingest()
    return made


def test_every_call_of_a_history_counts_once(world: World, truths: History) -> None:
    wanted: dict[str, tuple[str, Tokens]] = {}
    for truth in truths:
        wanted |= truth.calls
    assert world.recorded() == wanted


def test_every_session_of_a_history_has_the_right_size(world: World, truths: History) -> None:
    shown: dict[str, int | None] = {}
    for root in sorted((world.home / "work").iterdir()):
        shown |= {session.id: session.tokens for session in world.sessions(root).values()}
    wanted: dict[str, int | None] = {}
    for truth in truths:
        wanted |= truth.context
    assert shown == wanted
