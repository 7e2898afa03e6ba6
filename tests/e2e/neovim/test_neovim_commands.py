"""Tests each subcommand with the real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.workspace.views import NO_CONTEXT, NO_COST
from tests.e2e.neovim.harness import ROOT, Editor, wait_for
from tests.truth import truth

HELLO = "Hello, world!\n"
PALETTE = {
    "compare": "compareModels",
    "context": "contextUsage",
    "cost": "costReport",
    "count": "count",
    "fit": "fitToBudget",
    "fitcontext": "fitContext",
    "footprint": "footprint",
    "log": "showLog",
    "map": "tokenMap",
    "model": "selectModel",
    "probe": "probeEndpoints",
    "reset": "resetContext",
    "restart": "restart",
    "sessions": "sessions",
    "undofit": "undoFitContext",
}
"""The VS Code command for each subcommand."""


@pytest.fixture
def ready(clean: Editor) -> Editor:
    """The shared editor with a counted file."""
    clean.edit("a.md", HELLO, tokens=4)
    return clean


def ask(editor: Editor, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the server, and return the result."""
    answer = editor.lua(
        "return require('token_sidecar.server').clients()[1]:request_sync(...)",
        method, params, 20000,
    )  # fmt: skip
    assert "result" in answer, answer
    return dict(answer["result"])


def choose(editor: Editor, row: int) -> None:
    """Make the next picker select this row."""
    editor.lua(
        """
        local row = ...
        vim.ui.select = function(rows, options, done)
          _G.rows = vim.tbl_map(options.format_item or tostring, rows)
          done(rows[row], row)
        end""",
        row,
    )


def test_compare_shows_each_model(ready: Editor) -> None:
    lines = ready.floating("TokenSidecar compare gpt-5 gpt-4 claude-sonnet-4-5")
    assert lines[0].split() == ["model", "tokens", "of", "window", "input", "cost", "method"]
    rows = {line.split()[0]: line for line in lines[1:]}
    assert rows["gpt-5"].split()[1] == str(truth(HELLO))
    assert rows["gpt-4"].split()[1] == str(truth(HELLO, "cl100k_base"))
    assert rows["claude-sonnet-4-5"].split()[1].startswith("~")
    ready.keys("q")
    wait_for(lambda: ready.lua("return #vim.api.nvim_list_wins()") == 1, "the window to close")


def test_context_of_a_conversation(ready: Editor) -> None:
    turns = [{"role": "user", "content": "one two three"}]
    ask(ready, "context/set", {"session": "s", "systemPrompt": "You count.", "model": "gpt-5"})
    usage = ask(ready, "context/append", {"session": "s", "turns": turns})
    lines = ready.floating("TokenSidecar context")
    assert lines[0].startswith(f"Context     ~{usage['tokens']} tokens (")
    assert "Session     1 turn" in lines
    assert any(line.split()[:2] == ["System", "prompt"] for line in lines)


def test_reset_forgets_the_conversation(ready: Editor) -> None:
    turns = [{"role": "user", "content": "one two three"}]
    ask(ready, "context/append", {"session": "s", "turns": turns})
    ready.command("TokenSidecar reset")
    ready.wait_message("context has been reset")
    assert ask(ready, "context/usage", {}).get("tokens") is None


@pytest.fixture
def unused(editor: Editor) -> Editor:
    """An editor whose server has no conversations and calls yet."""
    editor.edit("a.md", HELLO, tokens=4)
    return editor


def test_commands_explain_what_is_missing(unused: Editor) -> None:
    unused.errors_expected = True
    for command in ("fitcontext", "undofit"):
        unused.command(f"TokenSidecar {command}")
        unused.wait_message("No conversation found for this workspace yet.")
        unused.lua("_G.messages = {}")
    for command, expected in (("context", NO_CONTEXT), ("cost", NO_COST)):
        assert unused.floating(f"TokenSidecar {command}") == [expected]
        unused.command("fclose!")


def test_cost_shows_each_row(unused: Editor) -> None:
    unused.lua("vim.o.columns = 120")
    record = {
        "session": "s",
        "model": "anthropic/claude-haiku-4.5",
        "usage": {"input_tokens": 179, "output_tokens": 8},
        "estimatedTokens": 150,
        "requestId": "r1",
    }
    ask(unused, "cost/record", record)
    lines = unused.floating("TokenSidecar cost")
    assert lines[0].split() == [
        "Model",
        "Category",
        "Calls",
        "Prompt",
        "Cache",
        "read",
        "Completion",
        "Cost",
    ]
    assert {"By day", "By model", "By agent"} <= set(lines)
    row = ["anthropic/claude-haiku-4.5", "main", "1", "179", "~est=150", "0", "8", "<$0.001"]
    assert lines[1].split() == row
    unused.keys("q")
    ask(unused, "cost/record", record | {"model": "nobody-knows-me", "requestId": "r2"})
    lines = unused.floating("TokenSidecar cost")
    assert [line.split()[-1] for line in lines[1:4]] == ["<$0.001", "unpriced", "≥<$0.001"]


def test_model_applies_at_once(ready: Editor) -> None:
    ready.command("TokenSidecar model gpt-4")
    ready.wait_message("counting for gpt-4")
    ready.edit("b.md", "日本語\n", tokens=truth("日本語\n", "cl100k_base"))
    ready.command("TokenSidecar count")
    ready.wait_message(f"{truth('日本語' + chr(10), 'cl100k_base')} tokens (exact, gpt-4)")


def test_model_can_be_chosen_with_the_picker(ready: Editor) -> None:
    ready.lua("""
      vim.ui.select = function(items, options, chosen)
        for _, item in ipairs(items) do
          if item == _G.wanted then
            _G.label = options.format_item(item)
            return chosen(item)
          end
        end
      end""")
    ready.lua("_G.wanted = 'gpt-4'")
    ready.command("TokenSidecar model")
    ready.wait_message("counting for gpt-4")
    assert ready.lua("return _G.label") == "gpt-4"
    ready.lua("_G.wanted = 'automatic'")
    ready.command("TokenSidecar model")
    ready.wait_message("counting for the configured model, or the shown session's")
    ready.command("TokenSidecar count")
    ready.wait_message("(exact, gpt-5)")


def test_model_can_be_chosen_with_inputlist(ready: Editor) -> None:
    """Neovim's own picker would print all models, so the user is asked for part of the name first."""
    ready.lua("""
      vim.ui.input = function(options, entered) _G.prompt = options.prompt; entered(_G.entered) end
      vim.fn.inputlist = function(lines) _G.offered = lines; return 1 end""")
    ready.lua("_G.entered = 'no-such-model'")
    ready.command("TokenSidecar model")
    ready.wait_message("no model matches no-such-model")
    ready.lua("_G.entered = 'claude haiku'")
    ready.command("TokenSidecar model")
    ready.wait_message("counting for claude-")
    assert "Part of the model" in ready.lua("return _G.prompt")
    names = ready.lua("return _G.offered")[1:]
    assert 1 < len(names) < 200
    assert all("claude" in name and "haiku" in name for name in names)
    assert len(set(names)) == len(names)
    ready.lua("_G.entered = ''")
    ready.command("TokenSidecar model")
    ready.wait_message("counting for the configured model")
    assert "more: type part of the name" in ready.lua("return _G.offered")[0]
    assert len(ready.lua("return _G.offered")) < 60


@pytest.mark.parametrize("text", ["word " * 15 + "\n", "one\n" + "word " * 15])
def test_fit_handles_a_budget_that_ends_in_the_last_line(clean: Editor, text: str) -> None:
    choose(clean, 1)
    edit_with_budget(clean, text, 10)
    clean.command("TokenSidecar fit")
    wait_for(lambda: clean.text() != text, lambda: f"the fix, {clean.messages()}")
    assert truth(clean.text()) <= 10
    assert clean.messages() == []


def edit_with_budget(editor: Editor, text: str, budget: int) -> None:
    """Open a file in a project of its own, which has a budget, and wait for the count."""
    rule = f'[[budget]]\nfiles = "*.md"\nmax-tokens = {budget}\n'
    editor.write("project/.token-sidecar.toml", rule)
    editor.edit("project/AGENTS.md", text, tokens=truth(text))


def test_a_range_is_counted_and_fitted_for_the_model_of_the_status(clean: Editor) -> None:
    rule = '[[budget]]\nfiles = "*.md"\nmax-tokens = 5000\nmodel = "gpt-4"\n'
    clean.write("project/.token-sidecar.toml", f'model = "gpt-5"\n{rule}')
    text = "Ich esse gern süße Äpfel.\n" * 9  # the two models' counts differ
    clean.edit("project/AGENTS.md", text, tokens=truth(text, "cl100k_base"))
    part = "Ich esse gern süße Äpfel.\n" * 3
    assert clean.count("2,4TokenSidecar count") == truth(part, "cl100k_base") != truth(part)
    clean.lua("_G.messages = {}")
    clean.command(f"2,4TokenSidecar fit {truth(part, 'cl100k_base')}")
    clean.wait_message(f"it already fits ({truth(part, 'cl100k_base')} tokens)")
    clean.lua("vim.g.token_sidecar_selection = true")
    clean.keys("2GVjj")
    shown = f"{truth(part, 'cl100k_base')} tokens"
    wait_for(lambda: any(shown in row for row in clean.screen()[:9]), "the selection's count")


def test_fit_reports_what_it_cannot_do(ready: Editor) -> None:
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
    ready.edit("long.md", LONG, tokens=truth(LONG))
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


def test_fit_reports_that_the_text_fits(ready: Editor) -> None:
    ready.command("TokenSidecar fit 100")
    ready.wait_message("it already fits (4 tokens)")
    assert ready.text() == HELLO


def test_a_budget_is_exceeded_fixed_and_undone(clean: Editor) -> None:
    edit_with_budget(clean, LONG, 200)
    look = """
      return vim.tbl_map(function(d)
        return { d.source, d.code, d.severity, d.lnum, d.end_lnum }
      end, vim.diagnostic.get(0))"""
    ((source, code, severity, first, last),) = wait_for(lambda: clean.lua(look), "the diagnostic")
    assert (source, code) == ("token-sidecar", "budget-exceeded")
    assert severity == 1
    assert 0 < first < last
    assert clean.status()["severity"] == "error"
    clean.lua("""
      vim.ui.select = function(items, _, chosen)
        for _, item in ipairs(items) do
          _G.titles = vim.tbl_map(function(each) return each.action.title end, items)
        end
        chosen(items[1])
      end""")
    clean.command("TokenSidecar fit")
    wait_for(lambda: clean.text() != LONG, "the fix")
    fitted = clean.text()
    assert truth(fitted) <= 200
    assert fitted.endswith("\n")
    assert all(title.startswith("Fit to budget") for title in clean.lua("return _G.titles"))
    clean.wait_tokens(truth(fitted))
    clean.keys("u")
    clean.wait_tokens(truth(LONG))


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
    ready.wait_message("selection: 1 token ")


def test_winbar_is_colored_and_escaped(ready: Editor) -> None:
    ready.lua("""
      vim.o.columns = 120
      vim.b.token_sidecar_status_dict = {
        text = '5 tokens (100 %) · ctx 45 %',
        document = { text = '5 tokens (100 %)', tokens = 5, method = 'exact', severity = 'warning' },
        context = { text = 'ctx 45 %', severity = 'ok' },
        cost = vim.NIL,
      }
      vim.o.winbar = "%{%v:lua.require'token_sidecar'.winbar()%}" """)
    assert ready.screen()[0] == "5 tokens (100 %) · ctx 45 %"
    evaluated = ready.lua(
        "return vim.api.nvim_eval_statusline(vim.o.winbar, { highlights = true })"
    )
    groups = [highlight["group"] for highlight in evaluated["highlights"]]
    assert groups.count("TokenSidecarWarning") == 1
    assert groups[-1] != "TokenSidecarWarning", "the context is within its limits"


def test_parts_of_the_status_are_short_in_a_narrow_editor(editor: Editor) -> None:
    editor.lua("""
      vim.b.token_sidecar_status_dict = {
        text = '~12,345 tokens · ctx 45 % · $1.92 today',
        document = { text = '~12,345 tokens', tokens = 12345, method = 'estimate', severity = 'ok' },
        context = { text = 'ctx 45 %', severity = 'error' },
        cost = { text = '$1.92 today', severity = 'ok' },
      }""")

    def parts(columns: int) -> list[str]:
        editor.lua("vim.o.columns = ...", columns)
        return [
            editor.lua("return require('lualine.components.token_sidecar_' .. ...)()", name)
            for name in ("tokens", "context", "cost")
        ]

    assert parts(80) == ["~12k", "45 %%", "$1.92"]
    assert parts(100) == ["~12,345 tokens", "ctx 45 %%", "$1.92 today"]
    highlight = "return require('token_sidecar').highlight(...)"
    assert editor.lua(highlight, "context") == "TokenSidecarError"
    assert editor.lua(highlight, "tokens") == "TokenSidecarOk"


@pytest.mark.parametrize("columns", [80, 120])
def test_reports_fit_the_editor(ready: Editor, columns: int) -> None:
    ready.lua("vim.o.columns = ...", columns)
    for number in range(3):
        model = "anthropic/claude-haiku-4.5-with-a-rather-long-name"
        usage = {"input_tokens": 12_345_678 + number, "output_tokens": 1_234_567}
        ask(ready, "cost/record", {"session": "s", "model": f"{model}{number}", "usage": usage})
    lines = ready.floating("TokenSidecar cost")
    width = ready.lua("return vim.api.nvim_win_get_width(0)")
    assert width <= columns - 4
    table = lines[: lines.index("")]
    assert all(len(line) <= width for line in table)
    assert table[0].split()[-1] == "Cost"


def test_the_footprint_shows_what_agents_send_and_what_is_hidden(ready: Editor) -> None:
    ready.write("CLAUDE.md", HELLO)
    ready.write("AGENTS.md", "Be brief.\n")
    lines = ready.floating("TokenSidecar footprint claude-code")
    assert lines[0].startswith("Claude Code ")
    assert any(re.fullmatch(r" +CLAUDE\.md +~[1-9]\d* +sent", line) for line in lines)
    assert any(line.endswith(" hidden by CLAUDE.md") for line in lines)
    report = ask(ready, "context/footprint", {"width": ready.lua("return vim.o.columns - 5")})
    ready.command("close")
    assert ready.floating("TokenSidecar footprint") == report["text"].split("\n")
    assert "codex" in report["others"]


def test_the_token_map_folds_and_opens_files(ready: Editor) -> None:
    for number in range(3):
        ready.write(f"src/deep/{number}.md", HELLO * (number + 1))
    ready.write("CLAUDE.md", HELLO)
    ready.lua("vim.o.lines = 40")
    lines = ready.floating(f"TokenSidecar map {ready.workspace}")
    assert lines[0] == f"{truth(HELLO) * 8} tokens in 5 files for gpt-5"
    names = [line.split()[-1] for line in lines[1:4]]
    assert names == ["src/", "deep/", "2.md"]
    assert "Sent with every agent request" in lines
    assert any("CLAUDE.md  claude-code" in line for line in lines)
    levels = [ready.lua("return vim.fn.foldlevel(...)", row) for row in range(1, 7)]
    assert levels == [0, 1, 2, 2, 2, 2]
    assert ready.lua("return vim.fn.foldclosed(3)") == 3
    ready.keys("gg2j<CR>")
    wait_for(lambda: ready.lua("return vim.fn.foldclosed(3)") == -1, "the open fold")
    ready.keys("<Tab>")
    wait_for(lambda: ready.lua("return vim.fn.foldclosed(3)") == 3, "the closed fold")
    ready.keys("<Tab>")
    wait_for(lambda: ready.lua("return vim.fn.foldclosed(3)") == -1, "the open fold")
    ready.keys("j<CR>")
    wait_for(lambda: ready.lua("return vim.fn.expand('%:t')") == "2.md", "the file")


def test_the_token_map_leaves_the_cursor_to_a_user_who_types(ready: Editor) -> None:
    ready.command(f"TokenSidecar map {ready.workspace}")
    ready.keys("itext")
    wait_for(lambda: "counting the tokens in " in "\n".join(ready.messages()), "the progress")
    count = "return #vim.tbl_filter(function(w) return vim.bo[vim.api.nvim_win_get_buf(w)].filetype == 'token-sidecar' end, vim.api.nvim_list_wins())"
    wait_for(lambda: ready.lua(count) == 1, "the map")
    assert ready.lua("return vim.fn.mode()") == "i"
    assert ready.lua("return vim.api.nvim_win_get_config(0).relative") == ""
    ready.keys("<Esc><C-w>w")
    assert ready.lua("return vim.wo.foldmethod") == "expr"


def test_the_token_map_counts_for_the_chosen_model(ready: Editor) -> None:
    (ready.workspace / "src").mkdir()
    ready.command("TokenSidecar model gpt-4")
    wait_for(lambda: "gpt-4" in "\n".join(ready.messages()), "the choice")
    assert ready.floating(f"TokenSidecar map {ready.workspace}/src/")[0].endswith("for gpt-4")


def test_health_reports_configuration_model_agents_endpoints_and_errors(unused: Editor) -> None:
    (unused.folder / "config.toml").write_text("")
    unused.lua("require('token_sidecar.status').warn({ message = ('nearly full '):rep(20) })")
    unused.command("checkhealth token_sidecar")
    lines = "\n".join(unused.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, true)"))
    for part in ("configuration", "coding agents", "endpoints", "last error"):
        assert f"token-sidecar: {part}" in lines
    assert "token-sidecar, version" in lines
    assert "buffers: 1" in lines
    assert "model: gpt-" in lines
    assert "state folder: " in lines
    assert "none configured; no text leaves this machine" in lines
    assert "nearly full" not in lines, "a warning about the context is not an error"
    assert "❌" not in lines


def test_a_setting_that_is_ignored_is_a_warning_in_health(unused: Editor) -> None:
    unused.write(".token-sidecar.toml", "[team]\n")
    unused.command("checkhealth token_sidecar")
    lines = unused.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, true)")
    found = [line for line in lines if "team: ignored, because " in line]
    assert "WARNING" in found[0], "the server's log may repeat it under the last error"


def test_the_selection_is_counted_next_to_the_document(clean: Editor) -> None:
    clean.lua("vim.g.token_sidecar_selection = true")
    clean.edit("a.md", "alpha beta gamma\nshort\n", tokens=truth("alpha beta gamma\nshort\n"))
    clean.keys("gg0vee")
    expected = f"alpha beta gamma {truth('alpha beta')} tokens"
    wait_for(lambda: clean.screen()[0] == expected, f"{expected!r}, {clean.screen()[0]!r}")
    clean.keys("Vj")
    wait_for(lambda: clean.screen()[1].startswith("short "), "the count beside the cursor")
    assert clean.screen()[0] == "alpha beta gamma"
    clean.keys("<Esc>gg0<C-v>jl")
    block = f"short {truth('al' + chr(10) + 'sh')} tokens"
    wait_for(lambda: clean.screen()[1] == block, f"{block!r}, {clean.screen()[1]!r}")
    assert clean.lua("return vim.fn.mode()") == "\x16"
    clean.keys("<Esc>")
    wait_for(lambda: clean.screen()[1] == "short", "no count beside the cursor")


def test_a_stale_selection_count_is_not_shown_for_another_selection(clean: Editor) -> None:
    clean.lua("vim.g.token_sidecar_selection = true")
    clean.edit("a.md", "alpha beta gamma\nshort\n", tokens=truth("alpha beta gamma\nshort\n"))
    clean.lua("""
      local client = require('token_sidecar.server').clients()[1]
      local request = client.request
      client.request = function(self, method, params, done, ...)
        return request(self, method, params, function(...)
          local answer = vim.F.pack_len(...)
          _G.deliver = function() done(vim.F.unpack_len(answer)) end
          if _G.released then _G.deliver() end
        end, ...)
      end""")
    clean.keys("gg0vee")
    wait_for(lambda: clean.lua("return _G.deliver ~= nil"), "the delayed answer")
    # The selection grows. The next count is requested only after the previous result has arrived.
    shown = clean.lua("""
      _G.released = true
      vim.api.nvim_win_set_cursor(0, { 2, 0 })
      vim.api.nvim_exec_autocmds('CursorMoved', {})
      _G.deliver()
      local namespace = vim.api.nvim_get_namespaces().token_sidecar_selection
      return #vim.api.nvim_buf_get_extmarks(0, namespace, 0, -1, {})""")
    assert shown == 0
    wait_for(lambda: clean.screen()[1].startswith("short "), "the count of the selection")


def test_a_disabled_selection_count_disappears(clean: Editor) -> None:
    clean.lua("""vim.g.token_sidecar_selection = true
      vim.keymap.set('x', 'x', '<Plug>(token-sidecar-selection)')""")
    clean.edit("a.md", "alpha beta gamma\n", tokens=truth("alpha beta gamma\n"))
    clean.keys("gg0vee")
    wait_for(lambda: "tokens" in clean.screen()[0], "the count")
    clean.keys("x")
    wait_for(lambda: clean.screen()[0] == "alpha beta gamma", "no count beside the cursor")


def test_settings_of_the_editor_reach_the_server(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("""
      vim.lsp.config('token_sidecar', { settings = { tokenSidecar = { model = 'gpt-4' } } })""")
    editor.edit("a.md", "日本語\n", tokens=truth("日本語\n", "cl100k_base"))
    editor.command("TokenSidecar count")
    editor.wait_message("(exact, gpt-4)")


def test_context_warnings_are_notified(ready: Editor) -> None:
    turns = [{"role": "user", "content": "a long story " * 400}]
    ask(ready, "context/set", {"session": "s", "limit": 1000, "model": "gpt-5"})
    ask(ready, "context/append", {"session": "s", "turns": turns})
    wait_for(ready.messages, "a warning")
    (message,) = ready.messages()
    assert message.startswith("token-sidecar: ")


def test_a_long_warning_is_shortened_on_screen_and_complete_in_the_log(ready: Editor) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools = [{"name": f"a_tool_of_a_long_name_{n}", "input_schema": schema} for n in range(5)]
    turns = [{"role": "user", "content": "a long story " * 400}]
    ask(ready, "context/set", {"session": "s", "limit": 1000, "model": "gpt-4o", "tools": tools})
    ask(ready, "context/append", {"session": "s", "turns": turns})
    (message,) = wait_for(ready.messages, "a warning")
    assert re.fullmatch(r"token-sidecar: Context ~100 % full: .* tokens, gpt-4o\.", message)
    assert len(message) <= ready.lua("return vim.v.echospace")
    log = Path(ready.lua("return vim.lsp.log.get_filename()"))
    whole = "Largest tool schemas: a_tool_of_a_long_name_"
    wait_for(lambda: log.is_file() and whole in log.read_text("utf-8"), "the log")
    assert ready.lua("return vim.api.nvim_get_mode().mode") == "n"


def test_a_name_in_a_message_is_not_interpreted(ready: Editor) -> None:
    hostile = "a\x1b[2J\x9bx\u202e\u2028\u2066\ufeff\x00\nb 計画 é"
    plain = "return require('token_sidecar.format').plain(...)"
    assert ready.lua(plain, hostile) == (
        "a\\u001b[2J\\u009bx\\u202e\\u2028\\u2066\\ufeff\\u0000\nb 計画 é"
    )
    ready.command("TokenSidecar model a\u202e\x9bb")
    ready.wait_message("counting for a\\u202e\\u009bb")


def test_the_subcommands_match_the_palette(clean: Editor) -> None:
    """VS Code's menu, installer and list buttons have commands that are not needed in Neovim."""
    manifest = json.loads((ROOT / "editors/vscode/package.json").read_text())
    palette = {command["command"].split(".")[1] for command in manifest["contributes"]["commands"]}
    known = clean.lua("return require('token_sidecar.commands').complete('', 'TokenSidecar ')")
    assert known == sorted(PALETTE)
    assert set(PALETTE.values()) == palette - {
        "hideEndedSessions",
        "installServer",
        "pinSession",
        "sessionReport",
        "showEndedSessions",
        "showMenu",
        "sortSessions",
        "unpinSession",
    }


def test_a_fit_plan_is_shown_applied_and_undone(ready: Editor) -> None:
    ask(ready, "context/set", {"session": "s", "model": "gpt-4o", "limit": 4000})
    turns = [
        {"role": role, "content": f"{number} " + "seven words that fill the window up " * 20}
        for number in range(20)
        for role in ("user", "assistant")
    ]
    before = ask(ready, "context/append", {"session": "s", "turns": turns})["tokens"]
    choose(ready, 1)
    lines = ready.floating("TokenSidecar fitcontext")
    assert lines[0].startswith(f"{before:,} -> ")
    assert "cached tokens lost" in lines[0]
    assert any(line.startswith("turn 0 (user): ") for line in lines)
    ready.wait_message("fitted: ")
    assert ask(ready, "context/usage", {"session": "s"})["tokens"] < before
    ready.command("TokenSidecar undofit")
    ready.wait_message("Undone: the context is back to ")
    assert ask(ready, "context/usage", {"session": "s"})["tokens"] == before
    ready.command("TokenSidecar undofit")
    ready.wait_message("Nothing to undo: no plan has been applied")
    assert ask(ready, "context/usage", {"session": "s"})["tokens"] == before


@pytest.fixture
def second_project(ready: Editor, tmp_path: Path) -> Path:
    """Open and count a file in another project."""
    ready.command(f"cd {ready.workspace}")
    path = tmp_path / "second/b.md"
    (path.parent / ".git").mkdir(parents=True)
    path.write_text(HELLO)
    ready.command(f"edit {path}")
    ready.wait_tokens(4)
    return path


IN_SECOND = """
  local method, params = ...
  for _, client in ipairs(require('token_sidecar.server').clients()) do
    if vim.endswith(client.root_dir, 'second') then
      return client:request_sync(method, params, 20000).result
    end
  end"""


def test_a_context_is_fitted_in_the_project_of_its_plan(
    ready: Editor, second_project: Path
) -> None:
    turns = [
        {"role": role, "content": "seven words that fill the window up " * 20}
        for _ in range(20)
        for role in ("user", "assistant")
    ]
    ready.lua(IN_SECOND, "context/set", {"session": "s", "model": "gpt-4o", "limit": 4000})
    before = ready.lua(IN_SECOND, "context/append", {"session": "s", "turns": turns})["tokens"]
    choose(ready, 1)
    ready.floating("TokenSidecar fitcontext")
    ready.wait_message("fitted: ")
    assert ready.lua(IN_SECOND, "context/usage", {"session": "s"})["tokens"] < before


def test_the_model_is_set_for_the_project_that_opened_the_picker(
    ready: Editor, second_project: Path
) -> None:
    ready.lua(
        "vim.ui.select = function(rows, _, done) _G.done = function() done(rows[3], 3) end end"
    )
    ready.command("TokenSidecar model")
    wait_for(lambda: ready.lua("return _G.done ~= nil"), "the list")
    ready.edit("a.md")
    ready.lua("_G.done()")
    chosen = ready.wait_message("counting for ").split()[-1]
    usage = ready.lua(IN_SECOND, "context/usage", {"workspace": second_project.parent.as_uri()})
    assert usage["model"] == chosen


def test_a_session_can_be_selected(ready: Editor) -> None:
    turns = [{"role": "user", "content": "Hello"}]
    for session in ("one", "two"):
        ask(ready, "context/append", {"session": session, "turns": turns})
    choose(ready, 3)
    ready.command("TokenSidecar sessions")
    ready.wait_message("showing one until it ends")
    rows = ready.lua("return _G.rows")
    assert rows[0].strip() == "Newest session (automatic)"
    assert rows[1].startswith("● two ")
    shown = "return require('token_sidecar.server').clients()[1]:request_sync('context/usage', {workspace = vim.NIL}).result.session.id"
    wait_for(lambda: ready.lua(shown) == "one", "the older session")


def test_a_probe_without_endpoints_explains_why(ready: Editor) -> None:
    ready.command("TokenSidecar probe")
    assert "config init --user" in ready.wait_message("no endpoint is configured")


@pytest.mark.parametrize(
    ("switch", "line"),
    [
        ("true", ": start the server or correct its url; the request is retried automatically"),
        ("false", "endpoints are disabled: set use-endpoint = true under [tokenize]"),
    ],
)
def test_a_probe_explains_why_a_server_does_not_count_and_what_to_do(
    switch: str, line: str, open_editor: Callable[..., Editor], tmp_path: Path
) -> None:
    config = tmp_path / "endpoint.toml"
    config.write_text(
        f'model = "qwen-x"\n[tokenize]\nuse-endpoint = {switch}\n'
        '[[endpoint]]\nurl = "http://127.0.0.1:9"\nmodels = ["qwen-*"]\n'
    )
    editor = open_editor(TOKEN_SIDECAR_CONFIG=str(config))
    editor.edit("a.md", HELLO)
    head, reason = editor.floating("TokenSidecar probe")[:2]
    assert re.match(r"http://127\.0\.0\.1:9 qwen-.*: text un\w+, chat un\w+, window unknown", head)
    assert line in reason


def test_the_log_level_is_a_setting(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("vim.g.token_sidecar_log_level = 'debug'")
    editor.edit("a.md", HELLO, tokens=4)
    (pid,) = editor.server_pids()
    command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
    assert command[-3:-1] == ["--log-level", "debug"]


def report_rows(editor: Editor, text: str) -> list[str]:
    """Show a text in a report's window, and return the window's rows on the screen."""
    editor.lua("require('token_sidecar.report').open('Context', ...)", text)
    rows = [line.split("│")[1].rstrip() for line in editor.screen() if "│" in line]
    editor.command("close")
    return rows


TITLE = "Read the whole repository and do not forget anything of what you have read"


def test_a_long_value_is_wrapped_below_its_start(ready: Editor) -> None:
    text = f"Context  88,434 tokens  ███\nSession  {TITLE}, claude-code\nCost     $1.12"
    assert report_rows(ready, text) == [
        "Context  88,434 tokens  ███",
        "Session  Read the whole repository and do not forget anything of what you",
        "         have read, claude-code",
        "Cost     $1.12",
    ]


def test_a_value_after_a_wide_label_is_wrapped_below_its_start(ready: Editor) -> None:
    assert report_rows(ready, f"計画  {TITLE}, claude-code") == [
        "計画  Read the whole repository and do not forget anything of what you have",
        "      read, claude-code",
    ]


def test_a_long_label_leaves_room_for_its_value(ready: Editor) -> None:
    rows = report_rows(ready, f"{TITLE[:70]}  {'x' * 74}")
    assert [row.count("x") for row in rows] == [0, 20, 20, 20, 14]


def test_labels_are_dimmed_and_names_are_not(ready: Editor) -> None:
    text = "Model        gpt-5\n7-day limit  41 % used\nclaude-sonnet-4-5  $1.12\n2026-11-26  $1.03"
    ready.lua("require('token_sidecar.report').open('Context', ...)", text)
    marks = ready.lua(
        "return vim.api.nvim_buf_get_extmarks(0, -1, 0, -1, { details = true, type = 'highlight' })"
    )
    ready.command("close")
    dimmed = [line for _, line, _, found in marks if found["hl_group"] == "TokenSidecarLabel"]
    assert dimmed == [0, 1]
