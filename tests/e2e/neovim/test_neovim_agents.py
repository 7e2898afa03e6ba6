"""Tests a real Neovim in a folder where Claude Code and Codex are working."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from benchmarks.agents.claude import MODEL, ClaudeHome, Transcript
from benchmarks.agents.codex import WINDOW, CodexHome
from sidecar.models.window import Limit, Window
from tests.e2e.neovim.harness import Editor, wait_for
from tests.e2e.stdio.agents_session import begin_now

OPUS = 1_000_000
"""The context window of Claude Code's model in the price list, in tokens."""


@pytest.fixture
def claude(tmp_path: Path) -> ClaudeHome:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    begin_now(home.clock)
    (home.folder / "projects").mkdir(parents=True)  # new folders are only detected by polling
    return home


@pytest.fixture
def codex(tmp_path: Path, claude: ClaudeHome) -> CodexHome:
    home = CodexHome(tmp_path / "home" / ".codex")
    home.clock = claude.clock  # the session that was written last must be the newest
    (home.folder / "sessions").mkdir(parents=True)
    return home


def reply(session: Transcript) -> None:
    """Append a turn with 30,000 more prompt tokens than the previous one."""
    session.user()
    session.cached += 30_000
    session.reply()


def share(tokens: int | None, limit: int = OPUS) -> str:
    """Format a percentage of the usable window, such as `43 %`."""
    assert tokens is not None
    return f"{Window(Limit(limit, 'transcript'), 500).percent(tokens)} %"


def wait_status(editor: Editor, part: str) -> str:
    def look() -> str:
        text = str(editor.variable("token_sidecar_status") or "")
        return text if part in text else ""

    return str(wait_for(look, lambda: f"{part!r} in {editor.status().get('text')!r}"))


def is_another(editor: Editor, before: str) -> bool:
    """Return whether the displayed cost has changed."""
    return str(editor.variable("token_sidecar_status")).split("$")[-1] != before.split("$")[-1]


def lines(editor: Editor) -> list[str]:
    return list(editor.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, true)"))


def listed_sessions(editor: Editor) -> list[str]:
    """Return the sessions that the user's picker shows."""
    editor.lua("""
      _G.listed = nil
      vim.ui.select = function(rows, options, done)
        _G.rows, _G.done = rows, done
        _G.listed = vim.tbl_map(options.format_item, rows)
      end""")
    editor.command("TokenSidecar sessions")
    return list(wait_for(lambda: editor.lua("return _G.listed"), "the list of sessions"))


def choose(editor: Editor, row: int) -> None:
    """Select a session in the picker. Rows are counted from 1."""
    before = len(editor.messages())
    editor.lua("local row = ...; _G.done(_G.rows[row], row)", row)
    wait_for(lambda: len(editor.messages()) > before, "the message about the choice")


def close(editor: Editor) -> None:
    editor.keys("q")
    wait_for(lambda: editor.lua("return #vim.api.nvim_list_wins()") == 1, "the window to close")


def test_hover_of_a_prompt_file_shows_no_markup(editor: Editor, claude: ClaudeHome) -> None:
    session = claude.session(editor.workspace)
    reply(session)
    editor.edit("CLAUDE.md", "# Rules\n\nWrite little.\n")
    wait_status(editor, " · $")
    editor.lua("vim.lsp.buf.hover()")
    shown = wait_for(
        lambda: editor.lua("""
          local window = vim.b.lsp_floating_preview
          return window and vim.api.nvim_buf_get_lines(vim.api.nvim_win_get_buf(window), 0, -1, true)
        """),
        "the hover",
    )
    text = "\n".join(shown)
    assert re.match("Document +~", text)
    assert "\nSent with every request: ~" in text
    assert "\ngpt-5 " in text
    assert not set("|\\*") & set(text)


def test_sessions_grow_while_somebody_types(
    editor: Editor, claude: ClaudeHome, codex: CodexHome
) -> None:
    editor.edit("a.md", "Hello, world!\n", tokens=4)
    session = claude.session(editor.workspace)
    reply(session)
    first = wait_status(editor, f" · ctx {share(claude.truth.context[session.id])} · $")
    for step in range(3):
        editor.keys(f"osome words of step {step}<Esc>")
        reply(session)
        tokens = claude.truth.context[session.id]
        wait_status(editor, f" · ctx {share(tokens)} · $")
        wait_for(partial(is_another, editor, first), "the new cost")
        text = editor.floating("TokenSidecar context")
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
    automatic, *rows = listed_sessions(editor)
    assert "automatic" in automatic
    assert [row.split()[:2] for row in rows] == [["●", "codex"], ["main", "·"]]
    assert newest in rows[0]
    assert share(claude.truth.context[session.id]) in rows[1]
    assert session.id[:8] not in rows[1]
    choose(editor, 3)
    editor.wait_message("showing main · ")
    assert "pinned" in listed_sessions(editor)[2]
    wait_status(editor, f" · ctx {share(claude.truth.context[session.id])} · $")
    reply(session)
    thread.call()
    wait_status(editor, f" · ctx {share(claude.truth.context[session.id])} · $")
    listed_sessions(editor)
    choose(editor, 1)
    assert not any("pinned" in row for row in listed_sessions(editor))
    thread.call()
    wait_status(editor, f" · ctx {share(codex.truth.context[thread.id], WINDOW)} · ")
