"""Tests that the count is right after a user opens files and types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.truth import truth

if TYPE_CHECKING:
    from tests.e2e.neovim.harness import Editor


def test_the_count_follows_typing(editor: Editor) -> None:
    editor.edit("prompt.md", "Hello, world!\n")
    editor.wait_tokens(4)
    editor.keys("GoHow many tokens is this?<Esc>")
    editor.wait_tokens(truth("Hello, world!\nHow many tokens is this?\n"))
    editor.keys("ggdd")
    editor.wait_tokens(truth("How many tokens is this?\n"))
    assert editor.status()["uri"] == editor.lua("return vim.uri_from_bufnr(0)")


@pytest.mark.parametrize(
    "typed",
    [
        "你好，世界。天気がいいから、散歩しましょう。",
        "🦜🦜👩‍👩‍👧‍👦 naïve café",
        "x = {'ſ': \"\t//\"}",
    ],
)
def test_unusual_characters_are_counted(editor: Editor, typed: str) -> None:
    editor.edit("a.py", f"{typed}\n")
    editor.wait_tokens(truth(f"{typed}\n"))
    editor.lua("vim.api.nvim_buf_set_lines(0, 0, 0, true, {...})", typed)
    editor.lua("vim.api.nvim_buf_set_text(0, 1, 0, 1, 0, {'ab', ''})")
    editor.wait_tokens(truth(f"{typed}\nab\n{typed}\n"))


def test_dos_line_ends_are_counted(editor: Editor) -> None:
    editor.edit("dos.txt", b"one\r\ntwo\r\n\r\n")
    assert editor.lua("return vim.bo.fileformat") == "dos"
    editor.wait_tokens(truth("one\r\ntwo\r\n\r\n"))
    editor.keys("Gothree<Esc>")
    editor.wait_tokens(truth("one\r\ntwo\r\n\r\nthree\r\n"))


def test_a_file_without_a_final_newline_is_counted(editor: Editor) -> None:
    editor.edit("bare.txt", "no newline here\n\n\nend")
    editor.wait_tokens(truth("no newline here\n\n\nend"))


@pytest.mark.parametrize("name", ["no-type-at-all", "notes.unheardof", "new-and-empty.md"])
def test_every_file_is_attached(editor: Editor, name: str) -> None:
    editor.edit(name)
    editor.keys("iHello, world!<Esc>")
    editor.wait_tokens(truth("Hello, world!\n"))


def test_a_new_buffer_is_counted_once_it_has_a_name(editor: Editor) -> None:
    editor.keys("iHello, world!<Esc>")
    editor.command(f"write {editor.workspace / 'named'}")
    editor.wait_tokens(4)


def test_scratch_buffers_are_ignored(editor: Editor) -> None:
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    editor.command("new | set filetype=markdown")
    editor.lua("vim.wait(200)")
    assert editor.lua("return #vim.lsp.get_clients({ bufnr = 0 })") == 0
    editor.command("help")
    assert editor.lua("return #vim.lsp.get_clients({ bufnr = 0 })") == 0
    assert editor.variable("token_sidecar_status") is None


def test_two_buffers_keep_their_own_numbers(editor: Editor) -> None:
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    editor.edit("b.md", "one two three\n")
    editor.wait_tokens(truth("one two three\n"))
    editor.command("buffer #")
    assert editor.tokens() == 4
    assert len(editor.server_pids()) == 1


def test_big_paste_and_undo(editor: Editor) -> None:
    text = "def f(x):\n    return x * 2  # 二倍\n" * 3000
    editor.edit("big.py", "pass\n")
    editor.lua("vim.fn.setreg('a', ...)", text)
    editor.keys('"ap')
    editor.wait_tokens(truth("pass\n" + text))
    editor.keys("u")
    editor.wait_tokens(truth("pass\n"))


def test_a_buffer_reloaded_from_disk_is_counted(editor: Editor) -> None:
    editor.edit("a.txt", "Hello, world!\n")
    editor.wait_tokens(4)
    editor.write("a.txt", "quite another text\n")
    editor.command("edit!")
    editor.wait_tokens(truth("quite another text\n"))


def test_changed_line_ends_are_counted_at_once(editor: Editor) -> None:
    editor.edit("a.txt", "one\ntwo\n\n\nthree\n")
    editor.wait_tokens(truth("one\ntwo\n\n\nthree\n"))
    editor.command("set fileformat=dos")
    editor.wait_tokens(truth("one\r\ntwo\r\n\r\n\r\nthree\r\n"))
    editor.command("set fileformat=unix | set fileformat=dos | normal! ggOzero")
    editor.wait_tokens(truth("zero\r\none\r\ntwo\r\n\r\n\r\nthree\r\n"))
    editor.command("set fileformat=unix noendofline nofixendofline")
    editor.wait_tokens(truth("zero\none\ntwo\n\n\nthree"))


def test_a_renamed_buffer_is_followed(editor: Editor) -> None:
    editor.edit("a.txt", "Hello, world!\n")
    editor.wait_tokens(4)
    editor.command(f"file {editor.workspace / 'b.txt'}")
    editor.keys("Goone two three<Esc>")
    editor.wait_tokens(truth("Hello, world!\none two three\n"))
    assert editor.status()["uri"].endswith("/b.txt")
    editor.lua("vim.cmd.saveas(...); vim.cmd.normal('dd')", str(editor.workspace / "c.txt"))
    editor.wait_tokens(4)
    assert editor.status()["uri"].endswith("/c.txt")
    assert len(editor.server_pids()) == 1
    assert editor.messages() == []
