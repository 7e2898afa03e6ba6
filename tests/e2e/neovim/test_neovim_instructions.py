"""Tests in a real Neovim that what agents lose is shown, and that the fixes work."""

from __future__ import annotations

from typing import Any

from tests.e2e.neovim.harness import Editor, wait_for

LOOK = """
  return vim.tbl_map(function(each)
    return { each.code, each.severity, each.lnum, each.col, each.end_lnum, each.end_col }
  end, vim.diagnostic.get(0))"""
FIX = "vim.lsp.buf.code_action({ apply = true, context = { only = { 'quickfix' } } })"
WARNING = 2


def findings(editor: Editor, *codes: str) -> list[list[Any]]:
    """Wait until the buffer's diagnostics have these codes, and return them."""

    def look() -> list[list[Any]] | bool:
        found: list[list[Any]] = editor.lua(LOOK)
        return (found or True) if [row[0] for row in found] == list(codes) else False

    found = wait_for(look, f"the findings {codes}")
    return [] if found is True else list(found)


def test_a_fix_separates_an_import_from_punctuation(clean: Editor) -> None:
    clean.write(".token-sidecar.toml", '[footprint]\nagents = ["claude-code"]\n')
    clean.write("docs/a.md", "Be brief.\n")
    clean.edit("CLAUDE.md", "# Rules\n\né 🙂 see @docs/a.md, please\n")
    (row,) = findings(clean, "import-skipped")
    before = len("é 🙂 see ".encode())
    assert row == ["import-skipped", WARNING, 2, before, 2, before + len("@docs/a.md,")]
    clean.lua(f"vim.api.nvim_win_set_cursor(0, {{ 3, {before + 2} }}); {FIX}")
    wait_for(lambda: "@docs/a.md , please" in clean.text(), "the fixed import")
    assert findings(clean) == []
    clean.keys("u")
    findings(clean, "import-skipped")


def test_a_fix_deletes_an_empty_override(clean: Editor) -> None:
    clean.write(".token-sidecar.toml", '[footprint]\nagents = ["codex"]\n')
    override = clean.write("AGENTS.override.md", "")
    clean.edit("AGENTS.md", "# Rules\n\nBe brief.\n")
    (row,) = findings(clean, "instructions-hidden")
    assert row == ["instructions-hidden", WARNING, 0, 0, 0, len("# Rules")]
    clean.lua(f"vim.api.nvim_win_set_cursor(0, {{ 1, 0 }}); {FIX}")
    wait_for(lambda: not override.exists(), "the deletion")
    assert findings(clean) == []


def test_the_end_that_codex_cuts_is_underlined(clean: Editor) -> None:
    clean.write(".token-sidecar.toml", '[footprint]\nagents = ["codex"]\n')
    text = "Be brief, é.\r\n" * 3_000
    clean.edit("AGENTS.md", text)
    (row,) = findings(clean, "instructions-cut")
    line, column = divmod(32_768, len("Be brief, é.\r\n".encode()))
    assert row[:4] == ["instructions-cut", WARNING, line, column]
