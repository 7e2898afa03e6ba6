"""Tests inlay hints and code lenses in a real Neovim. They are disabled by default."""

from __future__ import annotations

from collections.abc import Callable

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
    editor.edit("a.md", "".join(SECTIONS))
    editor.wait_tokens(truth("".join(SECTIONS)))
    assert hints(editor) == []
    method = "textDocument/inlayHint"
    ask = "return require('token_sidecar.server').clients()[1]:supports_method(...)"
    assert editor.lua(ask, method) is False
