"""Tests session labels: the title, the branch and start time, or the first prompt if requested."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from benchmarks.agents.truth import Tokens
from sidecar.agents.folders import Roots
from sidecar.agents.reader_registry import Sources
from sidecar.agents.session_events import StoredSession
from sidecar.models.names import short_names
from sidecar.workspace.sessions import label_of
from tests.unit.agents_world import World
from tests.unit.test_agents_written import RUNS, Written, install

PROMPT = "Mend the zebra crossing\nof the parser"


def read_sessions(world: World, *, with_prompts: bool = False) -> list[StoredSession]:
    world.ingest()
    roots = Roots.of([world.root])
    return world.index.sessions(Sources(world.readers, world.places, roots, with_prompts))


def labels(world: World, *, with_prompts: bool = False) -> list[str]:
    return [label_of(session) for session in read_sessions(world, with_prompts=with_prompts)]


def test_an_ai_title_before_the_newest_call_names_a_session_of_claude_code(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code")
    session = ClaudeHome(tmp_path / ".claude").session(world.root)
    session.user()
    session.write({"type": "ai-title", "aiTitle": "Mend the\ncrossing", "sessionId": session.id})
    for _ in range(50):
        session.reply()
    assert labels(world) == ["Mend the crossing"]


def test_a_thread_name_at_the_head_names_a_session_of_codex(tmp_path: Path) -> None:
    world = World(tmp_path, "codex")
    thread = CodexHome(tmp_path / ".codex").thread(world.root)
    thread.event("thread_name_updated", thread_id=thread.id, thread_name="Mend the crossing")
    for size in range(1_000, 9_000, 100):
        thread.count(Tokens(size, output=10))
    assert labels(world) == ["Mend the crossing"]


def test_session_without_a_title_is_named_by_branch_and_start(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code")
    session = ClaudeHome(tmp_path / ".claude").session(world.root)
    began = session.clock.now
    session.user()
    session.reply()
    (label,) = labels(world)
    assert re.fullmatch(r"main · (\d\d [A-Z][a-z]{2} )?\d\d:\d\d", label)
    (stored,) = read_sessions(world)
    assert stored.began_at is not None
    assert abs((stored.began_at - began).total_seconds()) < 60


@pytest.mark.parametrize(
    ("branch", "label"), [("fix/x", "fix/x"), ("HEAD", "codex"), (None, "codex")]
)
def test_detached_head_is_not_a_branch(branch: str | None, label: str) -> None:
    now = datetime.now(UTC)
    session = StoredSession(id="a", source="codex", branch=branch, began_at=now, updated_at=now)
    assert label_of(session) == f"{label} · {now.astimezone():%H:%M}"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.folder)
def test_real_agent_sessions_have_names(run: Written, tmp_path: Path) -> None:
    world = World(tmp_path, run.agent)
    install(world, run.folder)
    found = read_sessions(world)
    assert len(found) == len(run.contexts)
    for session, label in zip(found, labels(world), strict=True):
        assert label
        assert session.id[:8] not in label


def test_first_prompts_name_sessions_only_if_asked_for_and_are_never_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, "claude-code")
    session = ClaudeHome(tmp_path / ".claude").session(world.root)
    for text in ("<command-name>/clear</command-name>", PROMPT, "later words"):
        session.write(session.line("user", message={"role": "user", "content": text}))
    session.reply()
    assert not any("zebra" in label for label in labels(world))
    with caplog.at_level(0):
        assert labels(world, with_prompts=True) == ["Mend the zebra crossing of the parser"]
    assert "zebra" not in caplog.text
    world.ledger.close()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert session.id.encode() in kept
    assert b"zebra" not in kept


def test_a_title_comes_before_the_first_prompt(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code")
    session = ClaudeHome(tmp_path / ".claude").session(world.root)
    session.write(session.line("user", message={"role": "user", "content": PROMPT}))
    session.reply()
    session.write({"type": "custom-title", "customTitle": "Crossings"})
    assert labels(world, with_prompts=True) == ["Crossings"]


def test_context_added_by_codex_is_not_the_first_prompt(tmp_path: Path) -> None:
    world = World(tmp_path, "codex")
    thread = CodexHome(tmp_path / ".codex").thread(world.root)
    for text in ("<environment_context>cwd</environment_context>", PROMPT):
        content = [{"type": "input_text", "text": text}]
        thread.write("response_item", {"type": "message", "role": "user", "content": content})
    thread.count(Tokens(1_000, output=10))
    assert labels(world, with_prompts=True) == ["Mend the zebra crossing of the parser"]


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("claude-opus-5", "opus-5"),
        ("anthropic/claude-sonnet-4-5-20250929", "sonnet-4-5"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("us.anthropic.claude-opus-4-20250514-v1:0", "opus-4"),
        ("gemini-2.5-pro", "gemini-2.5-pro"),
    ],
)
def test_short_names_of_models(model: str, short: str) -> None:
    assert short_names([model, "another"])[model] == short


def test_models_with_the_same_short_name_keep_their_full_names() -> None:
    models = ["anthropic/claude-opus-5", "claude-opus-5", "gpt-5", "gpt-5"]
    assert short_names(models) == {name: name for name in models}


def test_dated_and_undated_names_of_a_model_have_one_short_name() -> None:
    dated, bare = "claude-sonnet-4-5-20250929", "claude-sonnet-4-5"
    assert short_names([bare, dated, bare]) == {dated: "sonnet-4-5", bare: "sonnet-4-5"}
    versions = ["gpt-4o", "gpt-4o-2024-05-13", "gpt-4o-2024-08-06"]  # these differ in price
    assert set(short_names(versions[1:]).values()) == set(versions[1:])
    assert short_names(versions)["gpt-4o-2024-05-13"] == "gpt-4o-2024-05-13"
    other = ["openrouter/anthropic/claude-sonnet-4-5", dated]
    assert short_names(other) == {name: name for name in other}
