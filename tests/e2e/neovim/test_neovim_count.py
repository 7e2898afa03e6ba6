"""Tests that counts are right after a user opens files and types, and for ranges and selections."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from tests.e2e.neovim.harness import Editor
from tests.truth import truth


def test_the_count_follows_typing(clean: Editor) -> None:
    clean.edit("prompt.md", "Hello, world!\n", tokens=4)
    clean.keys("GoHow many tokens is this?<Esc>")
    clean.wait_tokens(truth("Hello, world!\nHow many tokens is this?\n"))
    clean.keys("ggdd")
    clean.wait_tokens(truth("How many tokens is this?\n"))
    assert clean.status()["uri"] == clean.lua("return vim.uri_from_bufnr(0)")


@pytest.mark.parametrize(
    "typed",
    [
        "你好，世界。天気がいいから、散歩しましょう。",
        "🦜🦜👩‍👩‍👧‍👦 naïve café",
        "x = {'ſ': \"\t//\"}",
    ],
)
def test_unusual_characters_are_counted(clean: Editor, typed: str) -> None:
    clean.edit("a.py", f"{typed}\n", tokens=truth(f"{typed}\n"))
    clean.lua("vim.api.nvim_buf_set_lines(0, 0, 0, true, {...})", typed)
    clean.lua("vim.api.nvim_buf_set_text(0, 1, 0, 1, 0, {'ab', ''})")
    clean.wait_tokens(truth(f"{typed}\nab\n{typed}\n"))


def test_dos_line_ends_are_counted(clean: Editor) -> None:
    clean.edit("dos.txt", b"one\r\ntwo\r\n\r\n")
    assert clean.lua("return vim.bo.fileformat") == "dos"
    clean.wait_tokens(truth("one\r\ntwo\r\n\r\n"))
    clean.keys("Gothree<Esc>")
    clean.wait_tokens(truth("one\r\ntwo\r\n\r\nthree\r\n"))


def test_bytes_that_are_not_utf_8_are_counted_as_the_command_counts_them(clean: Editor) -> None:
    path = clean.workspace / "bad.md"
    path.write_bytes(b"caf\xe9 na\xefve \xff\xfe\n" * 3)
    line = "caf\ufffd na\ufffdve \ufffd\ufffd\n"
    printed = CliRunner().invoke(main, ["count", "--json", str(path)], catch_exceptions=False)
    assert json.loads(printed.stdout)["files"][0]["tokens"] == truth(line * 3)
    clean.command(f"edit ++enc=utf-8 ++bad=keep {path}")
    clean.wait_tokens(truth(line * 3))
    assert clean.count("1,2TokenSidecar count") == truth(line * 2)
    clean.keys("gg0fvitext <Esc>A the end<Esc>")  # behind a byte that is not UTF-8
    typed = "caf\ufffd na\ufffdtext ve \ufffd\ufffd the end\n"
    clean.wait_tokens(truth(typed + line * 2))
    assert clean.count("%TokenSidecar count") == truth(typed + line * 2)
    clean.lua("_G.messages = {}")
    clean.command("TokenSidecar fit 5")
    clean.wait_message("the text is not UTF-8; reload it with its own encoding")
    clean.lua("vim.v.errmsg = ''")


def test_a_file_without_a_final_newline_is_counted(clean: Editor) -> None:
    clean.edit("bare.txt", "no newline here\n\n\nend", tokens=truth("no newline here\n\n\nend"))


@pytest.mark.parametrize("name", ["no-type-at-all", "notes.unheardof", "new-and-empty.md"])
def test_every_file_is_attached(clean: Editor, name: str) -> None:
    clean.edit(name)
    clean.keys("iHello, world!<Esc>")
    clean.wait_tokens(truth("Hello, world!\n"))


def test_a_new_buffer_is_counted_once_it_has_a_name(clean: Editor) -> None:
    clean.keys("iHello, world!<Esc>")
    clean.command(f"write {clean.workspace / 'named'}")
    clean.wait_tokens(4)


def test_scratch_buffers_are_ignored(clean: Editor) -> None:
    clean.edit("a.md", "Hello, world!\n", tokens=4)
    clean.command("new | set filetype=markdown")
    clean.lua("vim.wait(200)")
    assert clean.lua("return #vim.lsp.get_clients({ bufnr = 0 })") == 0
    clean.command("help")
    assert clean.lua("return #vim.lsp.get_clients({ bufnr = 0 })") == 0
    assert clean.variable("token_sidecar_status") is None


def test_two_buffers_keep_their_own_numbers(clean: Editor) -> None:
    clean.edit("a.md", "Hello, world!\n", tokens=4)
    clean.edit("b.md", "one two three\n", tokens=truth("one two three\n"))
    clean.command("buffer #")
    assert clean.tokens() == 4
    assert len(clean.server_pids()) == 1


def test_big_paste_and_undo(clean: Editor) -> None:
    text = "def f(x):\n    return x * 2  # 二倍\n" * 3000
    clean.edit("big.py", "pass\n")
    clean.lua("vim.fn.setreg('a', ...)", text)
    clean.keys('"ap')
    clean.wait_tokens(truth("pass\n" + text))
    clean.keys("u")
    clean.wait_tokens(truth("pass\n"))


def test_a_buffer_reloaded_from_disk_is_counted(clean: Editor) -> None:
    clean.edit("a.txt", "Hello, world!\n", tokens=4)
    clean.write("a.txt", "quite another text\n")
    clean.command("edit!")
    clean.wait_tokens(truth("quite another text\n"))


def test_changed_line_ends_are_counted_at_once(clean: Editor) -> None:
    clean.edit("a.txt", "one\ntwo\n\n\nthree\n", tokens=truth("one\ntwo\n\n\nthree\n"))
    clean.command("set fileformat=dos")
    clean.wait_tokens(truth("one\r\ntwo\r\n\r\n\r\nthree\r\n"))
    clean.command("set fileformat=unix | set fileformat=dos | normal! ggOzero")
    clean.wait_tokens(truth("zero\r\none\r\ntwo\r\n\r\n\r\nthree\r\n"))
    clean.command("set fileformat=unix noendofline nofixendofline")
    clean.wait_tokens(truth("zero\none\ntwo\n\n\nthree"))


def test_a_renamed_buffer_is_followed(clean: Editor) -> None:
    clean.edit("a.txt", "Hello, world!\n", tokens=4)
    clean.command(f"file {clean.workspace / 'b.txt'}")
    clean.keys("Goone two three<Esc>")
    clean.wait_tokens(truth("Hello, world!\none two three\n"))
    assert clean.status()["uri"].endswith("/b.txt")
    clean.lua("vim.cmd.saveas(...); vim.cmd.normal('dd')", str(clean.workspace / "c.txt"))
    clean.wait_tokens(4)
    assert clean.status()["uri"].endswith("/c.txt")
    assert len(clean.server_pids()) == 1
    assert clean.messages() == []


TEXT = "alpha beta gamma\nshort\n\n日本語 and 🦜 birds\n\ttabbed delta epsilon\nlast line\n"


@pytest.fixture
def ready(clean: Editor) -> Editor:
    clean.edit("a.txt", TEXT, tokens=truth(TEXT))
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
    clean.edit("dos.txt", b"one\r\ntwo\r\nthree\r\n", tokens=truth("one\r\ntwo\r\nthree\r\n"))
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
