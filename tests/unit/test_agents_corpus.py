"""Tests that the benchmarks' generated sessions contain all traps, and are read correctly; and the
script that compares trackers with a vendor's bill.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.agents.corpus import SOURCES, History, history
from benchmarks.agents.truth import Tokens
from sidecar.config.settings import Agents
from tests.cases import read_cases
from tests.fixtures.agents import check
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


PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "corpus.md"
RUN = "codex-resumed"
FIELDS = ("--rows", "data.totals", "--prompt", "in,cached", "--output", "out")


def command(prompt: int, output: int) -> str:
    """Return a command that prints these numbers, as a tracker would."""
    rows = {"data": {"totals": [{"in": prompt - 5, "cached": 5, "out": output}]}}
    return f"{sys.executable} -c 'print({json.dumps(json.dumps(rows))})'"


def test_own_numbers_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["token-sidecar", "--run", RUN]) == 0
    assert f"| {RUN} | right |" in capsys.readouterr().out


def test_wrong_numbers_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    billed = check.billed_tokens(RUN)
    for prompt, output, text in (
        (billed.prompt, billed.output, "right"),
        (billed.prompt + billed.prompt // 4, billed.output, "prompt +25.0 %"),
        (billed.prompt, billed.output // 2, "output -50.0 %"),
        (5, 0, "prompt -100.0 %, output -100.0 %"),
    ):
        code = check.main(["--command", command(prompt, output), *FIELDS, "--run", RUN])
        assert code == (text != "right")
        assert f"| {RUN} | {text} |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "text"),
    [("exit 3", "failed"), ("echo {}", "no numbers in its output"), ("echo no", "no numbers")],
)
def test_tools_that_fail_are_named(
    script: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(["--command", f"sh -c '{script}'", *FIELDS, "--run", RUN]) == 1
    assert text in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_other_trackers_have_the_numbers_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(["--install", str(tmp_path)]) == 1
    table = capsys.readouterr().out
    assert table.strip() in PAGE.read_text("utf-8")
