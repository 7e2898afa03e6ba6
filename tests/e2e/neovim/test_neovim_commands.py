"""The subcommands, each against the real server: what they show, and what they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.neovim.harness import wait_for
from tests.truth import truth

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.neovim.harness import Editor

HELLO = "Hello, world!\n"


@pytest.fixture
def ready(editor: Editor) -> Editor:
    editor.edit("a.md", HELLO)
    editor.wait_tokens(4)
    return editor


def ask(editor: Editor, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The server's answer to a request of the test's own."""
    answer = editor.lua(
        "return require('token_sidecar.server').clients()[1]:request_sync(...)",
        method, params, 20000,
    )  # fmt: skip
    assert "result" in answer, answer
    return dict(answer["result"])


def floating(editor: Editor, command: str) -> list[str]:
    """The lines of the floating window that a command opens."""
    editor.command(command)
    wait_for(
        lambda: editor.lua("return vim.api.nvim_win_get_config(0).relative") == "editor",
        f"the report of {command}, {editor.messages()}",
    )
    return list(editor.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, true)"))


def test_compare_shows_each_model(ready: Editor) -> None:
    lines = floating(ready, "TokenSidecar compare gpt-5 gpt-4 claude-sonnet-4-5")
    assert lines[0].split() == ["model", "tokens", "of", "window", "as", "input", "method"]
    rows = {line.split()[0]: line for line in lines[1:]}
    assert rows["gpt-5"].split()[1] == str(truth(HELLO))
    assert rows["gpt-4"].split()[1] == str(truth(HELLO, "cl100k_base"))
    assert rows["claude-sonnet-4-5"].split()[1].startswith("~")
    ready.keys("q")
    wait_for(lambda: ready.lua("return #vim.api.nvim_list_wins()") == 1, "the window's end")


def test_context_before_and_after_a_conversation(ready: Editor) -> None:
    assert floating(ready, "TokenSidecar context") == ["No conversation is known here."]
    ready.keys("q")
    turns = [{"role": "user", "content": "one two three"}]
    ask(ready, "context/set", {"session": "s", "systemPrompt": "You count.", "model": "gpt-5"})
    usage = ask(ready, "context/append", {"session": "s", "turns": turns})
    ready.command("wincmd p")
    lines = floating(ready, "TokenSidecar context")
    assert lines[0].lstrip("~").startswith(f"{usage['tokens']} of ")
    assert "session s (protocol), 1 turns" in lines
    assert any(line.split()[:1] == ["system"] for line in lines)


def test_reset_forgets_the_conversation(ready: Editor) -> None:
    turns = [{"role": "user", "content": "one two three"}]
    ask(ready, "context/append", {"session": "s", "turns": turns})
    ready.command("TokenSidecar reset")
    ready.wait_message("context forgotten")
    assert ask(ready, "context/usage", {}).get("tokens") is None


def test_cost_shows_each_row(ready: Editor) -> None:
    assert floating(ready, "TokenSidecar cost") == ["Nothing has been recorded for this workspace."]
    ready.keys("q")
    record = {
        "session": "s",
        "model": "anthropic/claude-haiku-4.5",
        "usage": {"input_tokens": 179, "output_tokens": 8},
        "estimatedTokens": 150,
        "requestId": "r1",
    }
    ask(ready, "cost/record", record)
    expected = ask(ready, "cost/detail", {})["rows"][0]["text"]
    assert expected.startswith("anthropic/claude-haiku-4.5 main 1 calls, 179 ~est=150 / 8 tokens")
    lines = floating(ready, "TokenSidecar cost")
    assert lines[0] == expected
    assert len(lines) == 1
    ready.keys("q")
    ask(ready, "cost/record", record | {"model": "nobody-knows-me", "requestId": "r2"})
    lines = floating(ready, "TokenSidecar cost")
    assert lines == ask(ready, "cost/detail", {})["text"].split("\n")
    assert lines[-1].startswith("total 2 calls")
    assert lines[-1].endswith("+ 1 calls unpriced")


def test_model_applies_at_once(ready: Editor) -> None:
    ready.command("TokenSidecar model gpt-4")
    ready.wait_message("counting for gpt-4")
    ready.edit("b.md", "日本語\n")
    ready.wait_tokens(truth("日本語\n", "cl100k_base"))
    ready.command("TokenSidecar count")
    ready.wait_message(f"{truth('日本語' + chr(10), 'cl100k_base')} tokens (exact, gpt-4)")


def test_model_by_the_picker(ready: Editor) -> None:
    ready.lua("""
      vim.ui.select = function(items, options, chosen)
        for _, item in ipairs(items) do
          if item.id == 'gpt-4' then
            _G.label = options.format_item(item)
            return chosen(item)
          end
        end
      end""")
    ready.command("TokenSidecar model")
    ready.wait_message("counting for gpt-4")
    assert ready.lua("return _G.label") in ("gpt-4", "openai/gpt-4")


def test_model_by_the_list_of_neovim_itself(ready: Editor) -> None:
    """It prints all that it is given: a part of the name comes first, and the list is short."""
    ready.lua("""
      vim.ui.input = function(options, entered) _G.prompt = options.prompt; entered(_G.entered) end
      vim.fn.inputlist = function(lines) _G.offered = lines; return 1 end""")
    ready.lua("_G.entered = 'no-such-model'")
    ready.command("TokenSidecar model")
    ready.wait_message("no model is known by no-such-model")
    ready.lua("_G.entered = 'claude haiku'")
    ready.command("TokenSidecar model")
    ready.wait_message("counting for claude-")
    assert "Part of the model" in ready.lua("return _G.prompt")
    names = ready.lua("return _G.offered")[1:]
    assert 1 < len(names) < 200
    assert all("claude" in name and "haiku" in name for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("text", ["word " * 15 + "\n", "one\n" + "word " * 15])
def test_a_budget_that_ends_in_the_last_line_is_fitted(
    open_editor: Callable[..., Editor], text: str
) -> None:
    editor = open_editor("vim.ui.select = function(items, _, chosen) chosen(items[1]) end")
    editor.write(".token-sidecar.toml", '[[budget]]\nfiles = "*.md"\nmax-tokens = 10\n')
    editor.edit("a.md", text)
    editor.wait_tokens(truth(text))
    editor.command("TokenSidecar fit")
    wait_for(lambda: editor.text() != text, lambda: f"the fix, {editor.messages()}")
    assert truth(editor.text()) <= 10
    assert editor.messages() == []


def test_fit_says_what_it_cannot_do(ready: Editor) -> None:
    for wrong in ("3x", "-5", "20 side"):
        ready.lua("_G.messages = {}")
        ready.command(f"TokenSidecar fit {wrong}")
        ready.wait_message("fit takes a number of tokens, then start, middle or end")
    ready.command("set nomodifiable")
    for command in ("fit 2", "fit"):
        ready.lua("_G.messages = {}")
        ready.command(f"TokenSidecar {command}")
        ready.wait_message("this buffer cannot be changed")
    assert ready.text() == HELLO


@pytest.mark.parametrize("buffer", ["file", "scratch"])
def test_fit_without_an_exceeded_budget_asks_for_a_size(ready: Editor, buffer: str) -> None:
    if buffer == "scratch":
        ready.command("enew | set buftype=nofile | call setline(1, 'Hello, world!')")
    ready.lua(
        "vim.ui.input = function(options, entered) _G.prompt = options.prompt; entered('2') end"
    )
    ready.command("TokenSidecar fit")
    wait_for(lambda: ready.text() != HELLO, "the fitted text")
    assert "No budget is exceeded" in ready.lua("return _G.prompt")
    assert truth(ready.text()) <= 2


LONG = "".join(f"This is line number {n} of a long file.\n" for n in range(400))


@pytest.mark.parametrize("mode", ["start", "middle", "end"])
def test_fit_to_a_number(ready: Editor, mode: str) -> None:
    ready.edit("long.md", LONG)
    ready.wait_tokens(truth(LONG))
    ready.command(f"TokenSidecar fit 100 {mode}")
    wait_for(lambda: ready.text() != LONG, "the fitted text")
    fitted = ready.text()
    assert 70 < truth(fitted) <= 100
    assert fitted.endswith("\n")
    assert (LONG[:100] in fitted) == (mode != "end")
    assert (LONG[-100:-50] in fitted) == (mode != "start")
    ready.wait_tokens(truth(fitted))
    ready.keys("u")
    ready.wait_tokens(truth(LONG))


def test_fit_says_when_it_fits(ready: Editor) -> None:
    ready.command("TokenSidecar fit 100")
    ready.wait_message("it fits: 4 tokens")
    assert ready.text() == HELLO


def test_a_budget_is_exceeded_fixed_and_undone(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor()
    rule = '[[budget]]\nfiles = "AGENTS.md"\nmax-tokens = 200\n'
    editor.write(".token-sidecar.toml", rule)
    editor.edit("AGENTS.md", LONG)
    editor.wait_tokens(truth(LONG))
    look = """
      return vim.tbl_map(function(d)
        return { d.source, d.code, d.severity, d.lnum, d.end_lnum }
      end, vim.diagnostic.get(0))"""
    ((source, code, severity, first, last),) = wait_for(lambda: editor.lua(look), "the diagnostic")
    assert (source, code) == ("token-sidecar", "budget-exceeded")
    assert severity == 1
    assert 0 < first < last
    assert editor.status()["severity"] == "error"
    editor.lua("""
      vim.ui.select = function(items, _, chosen)
        for _, item in ipairs(items) do
          _G.titles = vim.tbl_map(function(each) return each.action.title end, items)
        end
        chosen(items[1])
      end""")
    editor.command("TokenSidecar fit")
    wait_for(lambda: editor.text() != LONG, "the fix")
    fitted = editor.text()
    assert truth(fitted) <= 200
    assert fitted.endswith("\n")
    assert all(title.startswith("Fit to budget") for title in editor.lua("return _G.titles"))
    editor.wait_tokens(truth(fitted))
    editor.keys("u")
    editor.wait_tokens(truth(LONG))


def test_log_opens(ready: Editor) -> None:
    ready.command("TokenSidecar log")
    assert ready.lua("return vim.fn.expand('%:t')") == "lsp.log"


def test_completion(ready: Editor) -> None:
    def offered(line: str) -> list[str]:
        return list(ready.lua("return vim.fn.getcompletion(..., 'cmdline')", line))

    assert offered("TokenSidecar co") == ["compare", "context", "cost", "count"]
    assert offered("'<,'>TokenSidecar re") == ["reset", "restart"]
    assert offered("TokenSidecar fit 100 ") == ["end", "middle", "start"]
    names = wait_for(lambda: offered("TokenSidecar model gpt-4o"), "the catalogue")
    assert "gpt-4o-mini" in names
    assert len(names) == len(set(names))
    assert offered("TokenSidecar count ") == []


def test_plug_maps(ready: Editor) -> None:
    ready.lua("vim.keymap.set('n', 'gt', '<Plug>(token-sidecar-count)')")
    ready.lua("vim.keymap.set('x', 'gt', '<Plug>(token-sidecar-count)')")
    ready.keys("gt")
    ready.wait_message("token-sidecar: 4 tokens")
    ready.keys("gg0vegt")
    ready.wait_message("selection: 1 tokens")


def test_winbar_is_coloured_and_escaped(ready: Editor) -> None:
    ready.lua("""
      vim.b.token_sidecar_status_dict = { text = '5 tokens (100%)', severity = 'warning' }
      vim.o.winbar = "%{%v:lua.require'token_sidecar'.winbar()%}" """)
    assert ready.screen()[0] == "5 tokens (100%)"
    evaluated = ready.lua(
        "return vim.api.nvim_eval_statusline(vim.o.winbar, { highlights = true })"
    )
    assert "TokenSidecarWarning" in str(evaluated["highlights"])


def test_the_selection_is_counted_beside_it(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("vim.g.token_sidecar_selection = true")
    editor.edit("a.md", "alpha beta gamma\nshort\n")
    editor.wait_tokens(truth("alpha beta gamma\nshort\n"))
    editor.keys("gg0vee")
    expected = f"alpha beta gamma {truth('alpha beta')} tokens"
    wait_for(lambda: editor.screen()[0] == expected, f"{expected!r}, {editor.screen()[0]!r}")
    editor.keys("Vj")
    wait_for(lambda: editor.screen()[1].startswith("short "), "the count beside the cursor")
    assert editor.screen()[0] == "alpha beta gamma"
    editor.keys("<Esc>gg0<C-v>jl")
    block = f"short {truth('al' + chr(10) + 'sh')} tokens"
    wait_for(lambda: editor.screen()[1] == block, f"{block!r}, {editor.screen()[1]!r}")
    assert editor.lua("return vim.fn.mode()") == "\x16"
    editor.keys("<Esc>")
    wait_for(lambda: editor.screen()[1] == "short", "nothing beside it")


def test_settings_of_the_editor_reach_the_server(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("""
      vim.lsp.config('token_sidecar', { settings = { tokenSidecar = { model = 'gpt-4' } } })""")
    editor.edit("a.md", "日本語\n")
    editor.wait_tokens(truth("日本語\n", "cl100k_base"))
    editor.command("TokenSidecar count")
    editor.wait_message("(exact, gpt-4)")


def test_warnings_of_the_context_are_told(ready: Editor) -> None:
    turns = [{"role": "user", "content": "a long story " * 400}]
    ask(ready, "context/set", {"session": "s", "limit": 1000, "model": "gpt-5"})
    ask(ready, "context/append", {"session": "s", "turns": turns})
    wait_for(ready.messages, "a warning")
    (message,) = ready.messages()
    assert message.startswith("token-sidecar: ")
