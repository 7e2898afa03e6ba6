"""Tests a real server in a folder where Claude Code and Codex are working."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from sidecar.text.printable import markdown
from tests.e2e.stdio.agents_session import AgentsServer, begin_now


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "home" / "work" / "my proj.ect"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def claude(tmp_path: Path) -> ClaudeHome:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    begin_now(home.clock)
    return home


@pytest.fixture
def server(root: Path) -> Iterator[AgentsServer]:
    made = AgentsServer(root)
    yield made
    made.close()
    made.end_streams()


def test_a_growing_session_is_followed(
    claude: ClaudeHome, tmp_path: Path, root: Path, server: AgentsServer
) -> None:
    session = claude.session(root)
    for _ in range(3):
        session.user()
        session.reply()
        shown = server.context(claude.truth.context[session.id])
        assert shown["workspace"] == server.root
    usage = server.request("context/usage", {})
    assert usage["session"]["source"] == "claude-code"
    assert (usage["tokens"], usage["model"]) == (claude.truth.context[session.id], session.model)

    session.compact()
    shown = server.context(None)
    assert shown["context"]["text"] == "ctx ?"
    assert "the new size appears with the next turn" in shown["context"]["tooltip"]
    session.user()
    session.reply()
    server.context(claude.truth.context[session.id])

    codex = CodexHome(tmp_path / "home" / ".codex")
    codex.clock.now = claude.clock.now
    thread = codex.thread(root)
    thread.begin_turn()
    thread.call()
    server.context(codex.truth.context[thread.id])
    rows = server.request("context/sessions", {})
    assert [(row["source"], row["id"], row["tokens"]) for row in rows] == [
        ("codex", thread.id, codex.truth.context[thread.id]),
        ("claude-code", session.id, claude.truth.context[session.id]),
    ]
    pinned = server.request("context/select", {"session": session.id})
    assert pinned["tokens"] == claude.truth.context[session.id]
    server.context(claude.truth.context[session.id])
    thread.call()
    session.reply()
    server.context(claude.truth.context[session.id])


def test_costs_are_right_at_every_step(
    claude: ClaudeHome, tmp_path: Path, root: Path, server: AgentsServer
) -> None:
    session = claude.session(root)
    session.reply()
    server.context(claude.truth.context[session.id])
    shown = 0.0
    for _ in range(3):
        found = server.request("cost/detail", {"by": ["agent", "workspace", "session", "day"]})
        (row,) = found["rows"]
        assert (row["agent"], row["session"]) == ("claude-code", session.id)
        assert row["workspace"] == server.root
        total = claude.truth.total
        assert found["totals"]["calls"] == len(claude.truth.calls)
        assert (row["promptTokens"], row["completionTokens"]) == (total.prompt, total.output)
        status = server.cost(above=shown)
        shown = status["costUsd"]
        assert shown == pytest.approx(row["costUsd"])
        assert "at API prices" in status["tooltip"]
        assert server.request("context/usage", {})["costUsd"] == pytest.approx(shown)
        session.user()
        session.reply()
        server.context(claude.truth.context[session.id])
        # costs are updated when calls are recorded, without a request from the client
        shown = server.cost(above=shown)["costUsd"]
        (row,) = server.request("cost/detail", {"by": ["session"]})["rows"]
        assert row["costUsd"] == pytest.approx(shown)
        session.reply()
        server.context(claude.truth.context[session.id])
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert b"claude-code" in kept
    assert b"tokenizer reads a line" not in kept


def test_recording_a_call_of_an_agents_session_is_refused(
    claude: ClaudeHome, root: Path, server: AgentsServer
) -> None:
    session = claude.session(root)
    session.reply()
    server.context(claude.truth.context[session.id])
    usage = {"prompt_tokens": 9, "completion_tokens": 1}
    with pytest.raises(RuntimeError, match="belongs to a coding agent"):
        server.request("cost/record", {"session": session.id, "model": "gpt-5", "usage": usage})
    with pytest.raises(RuntimeError, match="belongs to a coding agent"):
        server.request("context/set", {"session": session.id, "model": "gpt-5"})
    server.request("cost/record", {"model": "gpt-5", "usage": usage})
    rows = server.request("cost/detail", {"by": ["session"]})["rows"]
    assert {row["session"] for row in rows} == {session.id, None}


def test_the_costs_of_a_prompt_file_are_shown_in_lens_and_hover(
    claude: ClaudeHome, root: Path
) -> None:
    text = "# Rules\n\nWrite little.\n\n## Tests\n\nRun them.\n"
    (root / "CLAUDE.md").write_text(text)
    (root / ".token-sidecar.toml").write_text("code-lens = true\n")
    session = claude.session(root)
    session.reply()
    session.reply()
    server = AgentsServer(root)
    (row,) = server.request("cost/files", {})
    assert (row["uri"], row["requests"], row["cachedPercent"]) == (
        f"{server.root}/CLAUDE.md",
        2,
        50,
    )
    assert row["costUsd"] > 0
    server.open(text, row["uri"])
    place = {"textDocument": {"uri": row["uri"]}, "position": {"line": 0, "character": 0}}
    hover = server.request("textDocument/hover", place)
    assert markdown(row["text"]) in hover["contents"]["value"]
    assert row["text"].endswith(f" · counted for {session.model}")
    lenses = server.request("textDocument/codeLens", {"textDocument": {"uri": row["uri"]}})
    titles = [lens["command"]["title"] for lens in lenses]
    assert titles[0] == row["text"]
    assert titles[1] == "Sent by Claude Code"
    assert [lens["range"]["start"]["line"] for lens in lenses] == [0, 0, 4], "no count is repeated"
    assert server.request("cost/files", {"uris": [f"{server.root}/other.md"]}) == []
    server.close()
    server.end_streams()
