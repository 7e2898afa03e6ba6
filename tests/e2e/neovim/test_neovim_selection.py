"""Tests `:TokenSidecar count` for a buffer, a range of lines and a selection."""

from __future__ import annotations

import pytest

from tests.e2e.neovim.harness import Editor
from tests.truth import truth

TEXT = "alpha beta gamma\nshort\n\n日本語 and 🦜 birds\n\ttabbed delta epsilon\nlast line\n"


@pytest.fixture
def ready(clean: Editor) -> Editor:
    clean.edit("a.txt", TEXT)
    clean.wait_tokens(truth(TEXT))
    return clean


def test_the_whole_buffer_is_counted_in_one_message(ready: Editor) -> None:
    assert ready.count() == truth(TEXT)
    (message,) = ready.messages()
    assert message == f"token-sidecar: {truth(TEXT)} tokens (exact, gpt-5)"


def test_an_edit_just_before_is_counted(ready: Editor) -> None:
    ready.lua("vim.api.nvim_buf_set_lines(0, 0, 0, true, { 'a line before' })")
    assert ready.count() == truth("a line before\n" + TEXT)


def test_a_range_of_lines_is_counted(ready: Editor) -> None:
    assert ready.count("2,4TokenSidecar count") == truth("short\n\n日本語 and 🦜 birds\n")
    assert ready.count("6TokenSidecar count") == truth("last line\n")
    assert ready.count("%TokenSidecar count") == truth(TEXT)


@pytest.mark.parametrize(
    ("keys", "selected"),
    [
        ("gg0wve", "beta"),
        ("gg0wvj0", "beta gamma\ns"),
        ("gg0v$", "alpha beta gamma\n"),
        ("gg0v2j", "alpha beta gamma\nshort\n\n"),
        ("4G0lv3l", "本語 a"),
        ("4G$hhhhhhv", "🦜"),
        ("4G0v$", "日本語 and 🦜 birds\n"),
        ("G0v$", "last line"),
        ("ggVj", "alpha beta gamma\nshort\n"),
        ("GV", "last line\n"),
        ("gg0ll<C-v>jl", "ph\nor"),  # a block has the same screen columns in each line
        ("gg0ll<C-v>3jl", "pha \nort\n\n本語"),
        ("gg0ll<C-v>j$", "pha beta gamma\nort"),
        ("4G0<C-v>jl", "日本語 an\n\tt"),
    ],
)
def test_exactly_the_selected_text_is_counted(ready: Editor, keys: str, selected: str) -> None:
    ready.normal(keys + "<Esc>")
    before = ready.lua("return { vim.fn.getreginfo(), vim.fn.winsaveview(), vim.b.changedtick }")
    sent = ready.lua(
        "return require('token_sidecar.selection').of_command(...)",
        {"range": 2, "line1": ready.lua("return vim.fn.line(\"'<\")"),
         "line2": ready.lua("return vim.fn.line(\"'>\")")},
    )  # fmt: skip
    assert sent == selected
    assert ready.count("'<,'>TokenSidecar count") == truth(selected)
    assert before == ready.lua(
        "return { vim.fn.getreginfo(), vim.fn.winsaveview(), vim.b.changedtick }"
    )


def test_characterwise_selections_are_what_vim_yanks(ready: Editor) -> None:
    for row in range(2, 7):
        for keys in (f"{row}G0v", f"{row}G0v$", f"{row}G$v", f"{row}G0vk", f"ggv{row}G$"):
            ready.normal(keys + '"zy')
            yanked = ready.lua("return vim.fn.getreg('z')")
            ready.normal(keys + "<Esc>")
            sent = ready.lua("""
                return require('token_sidecar.selection').of_command({
                  range = 2, line1 = vim.fn.line("'<"), line2 = vim.fn.line("'>") })""")
            assert sent == yanked, keys


def test_an_exclusive_selection_is_counted(ready: Editor) -> None:
    ready.command("set selection=exclusive")
    ready.normal("gg0vw<Esc>")
    assert ready.count("'<,'>TokenSidecar count") == truth("alpha ")


def test_line_ends_of_a_dos_file_are_counted(clean: Editor) -> None:
    clean.edit("dos.txt", b"one\r\ntwo\r\nthree\r\n")
    clean.wait_tokens(truth("one\r\ntwo\r\nthree\r\n"))
    clean.normal("gg0lvj<Esc>")
    assert clean.count("'<,'>TokenSidecar count") == truth("ne\r\ntw")
    assert clean.count("2,3TokenSidecar count") == truth("two\r\nthree\r\n")


def test_a_buffer_without_a_file_is_counted(clean: Editor) -> None:
    clean.lua("vim.api.nvim_buf_set_lines(0, 0, -1, true, { 'Hello, world!' })")
    assert clean.count() == truth("Hello, world!\n")
    assert clean.lua("return #vim.lsp.get_clients({ bufnr = 0 })") == 0


def test_a_selection_can_be_counted_from_the_keyboard(ready: Editor) -> None:
    ready.keys("ggwve:TokenSidecar count<CR>")
    assert "selection: " in ready.wait_message(f" {truth('beta')} token")


def test_unknown_subcommands_are_reported(editor: Editor) -> None:
    editor.errors_expected = True
    editor.command("TokenSidecar frobnicate")
    assert "no command frobnicate" in editor.wait_message("frobnicate")
