"""Tests that the first request of the newest session is found in files of real agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.agents.first_requests import AgentUse, find_uses, read_sessions
from sidecar.agents.folders import Roots
from sidecar.agents.reader_registry import Sources
from tests.file_opens import recorded_opens
from tests.unit.agents_world import World
from tests.unit.test_agents_written import RUNS, Written, install, prompt_of

FIRST = {
    "kimi-code-subagent": 0,
    "kimi-code-compaction": 4,
    "kimi-code-fork": 0,
    "vibe-compaction": 0,
    "vibe-resumed": -1,
    "qwen-code-telemetry": -1,
    "qwen-code-compaction": 0,
    "gemini-cli-resumed": 0,
    "gemini-cli-aborted": 0,
    "opencode-subagent": 0,
    "claude-code-compaction": 0,
}
"""The position of the newest session's first call among the vendor's calls."""


def use_of(world: World, start: Path) -> AgentUse | None:
    sources = Sources(world.readers, world.places, Roots.of([world.root]))
    read_sessions(world.ledger, sources, 1 << 40)
    return find_uses(world.ledger, sources, start).get(world.readers[0].agent)


@pytest.mark.parametrize(
    "run", [run for run in RUNS if run.folder in FIRST], ids=lambda run: run.folder
)
def test_the_first_request_has_the_size_that_the_vendor_reported(
    run: Written, tmp_path: Path
) -> None:
    world = World(tmp_path, run.agent)
    install(world, run.folder)
    calls = [call for call in run.calls if call["kind"] == "main"]
    call = calls[FIRST[run.folder]]
    use = use_of(world, world.root)
    assert use is not None
    assert use.first is not None
    assert use.first.tokens == prompt_of(call["usage"])
    assert (use.model, use.first.model) == (run.model, run.model)
    (world.root / "inner").mkdir()
    assert use_of(world, world.root / "inner") is None


def test_sessions_without_times_have_no_first_request(tmp_path: Path) -> None:
    world = World(tmp_path, "continue")
    install(world, "continue-abort")
    use = use_of(world, world.root)
    assert use is not None
    assert (use.model, use.first) == ("gpt-4.1", None)


def test_only_so_many_bytes_are_read(tmp_path: Path) -> None:
    world = World(tmp_path, "kimi-code")
    install(world, "kimi-code-subagent")
    sources = Sources(world.readers, world.places, Roots.of([world.root]))
    read_sessions(world.ledger, sources, 10)
    with recorded_opens(world.home) as opened:
        assert find_uses(world.ledger, sources, world.root) == {}
    assert not [path for path in opened if path.endswith(".jsonl")], "the server has read them"
    read_sessions(world.ledger, sources, 1 << 40)
    assert find_uses(world.ledger, sources, world.root).keys() == {"kimi-code"}


def test_a_worktree_is_the_same_folder(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code")
    install(world, "claude-code-compaction")
    git = world.root / ".git"
    (git / "worktrees" / "other").mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / ".git").write_text(f"gitdir: {git / 'worktrees' / 'other'}\n")
    (git / "worktrees" / "other" / "gitdir").write_text(f"{other / '.git'}\n")
    (git / "worktrees" / "other" / "commondir").write_text("../..\n")
    sources = Sources(world.readers, world.places, Roots.of([other]))
    read_sessions(world.ledger, sources, 1 << 40)
    found = find_uses(world.ledger, sources, other)
    assert found["claude-code"].first is not None
