"""Tests hints and code lenses in a real Neovim, and the fixes for what agents lose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.e2e.neovim.harness import Editor, wait_for
from tests.truth import truth

SECTIONS = ["# Role\n\n审查代码。\n\n", "# Style\n\nShort sentences, 简短的句子.\n"]
ON = """
    vim.lsp.config('token_sidecar', {
      settings = { tokenSidecar = { inlayHints = true, codeLens = true } },
    })
    vim.lsp.inlay_hint.enable()
"""


def labels(tokenizer: str = "o200k_base") -> list[str]:
    """Return the sections' expected labels."""
    return [f"{truth(section, tokenizer)} tokens" for section in SECTIONS]


def hints(editor: Editor) -> list[str]:
    """Return the labels of the displayed inlay hints."""
    found = editor.lua("""
        return vim.tbl_map(function(each) return each.inlay_hint.label end,
          vim.lsp.inlay_hint.get({ bufnr = 0 }))""")
    return list(found)


def test_hints_and_lenses_come_without_an_edit_and_follow_the_model(
    open_editor: Callable[..., Editor],
) -> None:
    editor = open_editor(ON)
    editor.edit("a.md", "".join(SECTIONS))
    wait_for(lambda: hints(editor) == labels(), lambda: f"{labels()}, {hints(editor)}")
    editor.lua("vim.lsp.codelens.refresh({ bufnr = 0 })")

    def shown() -> list[str]:
        titles = (
            "return vim.tbl_map(function(e) return e.command.title end, vim.lsp.codelens.get(0))"
        )
        return list(editor.lua(titles))

    wait_for(lambda: shown() == labels(), lambda: f"{labels()}, {shown()}")
    editor.command("TokenSidecar model gpt-4")
    assert labels("cl100k_base") != labels()
    wait_for(lambda: hints(editor) == labels("cl100k_base"), lambda: f"others: {hints(editor)}")


def test_hints_and_lenses_are_disabled_by_default(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("vim.lsp.inlay_hint.enable()")
    editor.edit("a.md", "".join(SECTIONS), tokens=truth("".join(SECTIONS)))
    assert hints(editor) == []
    method = "textDocument/inlayHint"
    ask = "return require('token_sidecar.server').clients()[1]:supports_method(...)"
    assert editor.lua(ask, method) is False


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
