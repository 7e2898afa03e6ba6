"""Claude Code and Codex work in the folder of a real Neovim while a user types."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from benchmarks.agents.claude import MODEL, ClaudeHome
from benchmarks.agents.codex import WINDOW, CodexHome
from sidecar.context.window import Limit, Window
from tests.e2e.neovim.harness import wait_for
from tests.e2e.stdio.agents_session import begin_now

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.agents.claude import Transcript
    from tests.e2e.neovim.harness import Editor

OPUS = 1_000_000
"""The context window of Claude Code's model in the catalogue, in tokens."""


@pytest.fixture
def claude(tmp_path: Path) -> ClaudeHome:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    begin_now(home.clock)
    (home.folder / "projects").mkdir(parents=True)  # polling finds a folder that appears later
    return home


@pytest.fixture
def codex(tmp_path: Path, claude: ClaudeHome) -> CodexHome:
    home = CodexHome(tmp_path / "home" / ".codex")
    home.clock = claude.clock  # the session written last is the newest
    (home.folder / "sessions").mkdir(parents=True)
    return home


def reply(session: Transcript) -> None:
    """Append a turn whose prompt is 30,000 tokens longer than the one before."""
    session.user()
    session.cached += 30_000
    session.reply()


def share(tokens: int | None, limit: int = OPUS) -> str:
    """Format a share of the usable window, such as `43 %`."""
    assert tokens is not None
    return f"{Window(Limit(limit, 'transcript'), 500).percent(tokens)} %"


def wait_status(editor: Editor, part: str) -> str:
    def look() -> str:
        text = str(editor.variable("token_sidecar_status") or "")
        return text if part in text else ""

    return str(wait_for(look, lambda: f"{part!r} in {editor.status().get('text')!r}"))


def is_another(editor: Editor, before: str) -> bool:
    """Return whether the status shows a different cost."""
    return str(editor.variable("token_sidecar_status")).split("$")[-1] != before.split("$")[-1]


def lines(editor: Editor) -> list[str]:
    return list(editor.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, true)"))


def floating(editor: Editor, command: str) -> list[str]:
    """Return the lines of the floating window that a command opens."""
    editor.command(command)
    opened = "return vim.api.nvim_win_get_config(0).relative == 'editor'"
    wait_for(lambda: editor.lua(opened), f"the window of {command}, {editor.messages()}")
    return lines(editor)


def is_automatic(shown: list[str]) -> bool:
    """Return whether these lines list sessions of which none is selected."""
    return "automatic" in shown[0] and not any("pinned" in line for line in shown)


def close(editor: Editor) -> None:
    editor.keys("q")
    wait_for(lambda: editor.lua("return #vim.api.nvim_list_wins()") == 1, "the window's end")


def test_sessions_grow_while_somebody_types(
    editor: Editor, claude: ClaudeHome, codex: CodexHome
) -> None:
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    session = claude.session(editor.workspace)
    reply(session)
    first = wait_status(editor, f" · ctx {share(claude.truth.context[session.id])} · $")
    for step in range(3):
        editor.keys(f"osome words of step {step}<Esc>")
        reply(session)
        tokens = claude.truth.context[session.id]
        wait_status(editor, f" · ctx {share(tokens)} · $")
        wait_for(partial(is_another, editor, first), "the new cost")
        text = floating(editor, "TokenSidecar context")
        assert " ".join(text[0].split()).startswith(f"Context {tokens:,} tokens, ")
        assert share(tokens) in text[0]
        assert any(MODEL in line for line in text)
        close(editor)
        first = wait_status(editor, " · $")
    assert lines(editor)[-1] == "some words of step 2"

    thread = codex.thread(editor.workspace)
    thread.begin_turn()
    thread.call()
    newest = share(codex.truth.context[thread.id], WINDOW)
    wait_status(editor, f" · ctx {newest} · ")
    automatic, *rows = floating(editor, "TokenSidecar sessions")
    assert "automatic" in automatic
    assert [row.split()[:2] for row in rows] == [["●", "codex"], ["claude-code", session.id[:8]]]
    assert newest in rows[0]
    assert share(claude.truth.context[session.id]) in rows[1]
    assert "█" in rows[1]
    editor.keys("G<CR>")
    wait_for(lambda: any("pinned" in line for line in lines(editor)), "the list with the choice")
    close(editor)
    wait_status(editor, f" · ctx {share(claude.truth.context[session.id])} · $")
    reply(session)
    thread.call()
    wait_status(editor, f" · ctx {share(claude.truth.context[session.id])} · $")
    floating(editor, "TokenSidecar sessions")
    editor.keys("gg<CR>")
    wait_for(lambda: is_automatic(lines(editor)), "the list without a choice")
    close(editor)
    thread.call()
    wait_status(editor, f" · ctx {share(codex.truth.context[thread.id], WINDOW)} · ")


def test_the_cost_report_has_a_table_and_charts(
    editor: Editor, claude: ClaudeHome, codex: CodexHome
) -> None:
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    session = claude.session(editor.workspace)
    reply(session)
    thread = codex.thread(editor.workspace)
    thread.begin_turn()
    thread.call()
    text = floating(editor, "TokenSidecar cost")
    for home, source in ((claude, "claude-code"), (codex, "codex")):
        total = home.truth.total
        row = next(line for line in text if f"{total.prompt:,}" in line)
        assert f"{total.output:,}" in row
        chart = text[text.index("By agent") :]
        assert any(line.startswith(source) and "$" in line for line in chart)
    assert {"By day", "By model", "By agent"} <= set(text)
    assert any(line.startswith(f"{MODEL} main 1 calls, ") for line in text)
    close(editor)
