"""Tests the status in the status line, in lualine and in autocommands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.server.schema import json_schema
from tests.e2e.neovim.harness import wait_for
from tests.truth import truth

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.neovim.harness import Editor

LONG = "one two three four five six seven eight nine ten\n" * 2000


def without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(item) for key, item in value.items() if item is not None}


def test_variables_hold_the_last_update_unchanged(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("""
      local update
      vim.api.nvim_create_autocmd('LspAttach', { callback = function(event)
        local client = vim.lsp.get_client_by_id(event.data.client_id)
        update = update or client.handlers['status/update']
        client.handlers['status/update'] = function(err, status, ctx)
          _G.sent = vim.json.encode(status)
          return update(err, status, ctx)
        end
      end })""")
    editor.edit("a.md", LONG)
    editor.wait_tokens(truth(LONG))
    shown = editor.status()
    assert shown["text"] == editor.variable("token_sidecar_status")
    assert f"{truth(LONG):,} tokens" in shown["text"]
    editor.keys("ggdd")
    editor.wait_tokens(truth(LONG) - truth("one two three four five six seven eight nine ten\n"))
    sent = editor.lua("return vim.json.decode(_G.sent)")
    shown = editor.status()
    # Neovim's decoder drops null fields, so the test adds them again.
    assert without_nulls(shown) == without_nulls(sent)
    assert shown["document"].keys() >= {"tokens", "method", "percent", "budget", "tooltip"}
    assert shown.keys() == {
        "workspace", "uri", "version", "text", "severity", "document", "context", "cost",
        "costRevision", "model",
    }  # fmt: skip


def test_every_status_part_has_all_its_members(open_editor: Callable[..., Editor]) -> None:
    """The status in Neovim has every field of the schema, including null fields."""
    editor = open_editor()
    editor.edit("a.md", LONG)
    editor.wait_tokens(truth(LONG))
    ask = "return require('token_sidecar.server').clients()[1]:request_sync(...)"
    usage = {"input_tokens": 10, "output_tokens": 1}
    record = {"model": "gpt-5", "usage": usage}
    turns = [{"role": "user", "content": "one two three"}]
    editor.lua(ask, "cost/record", record, 20000)
    editor.lua(ask, "context/append", {"session": "s", "turns": turns}, 20000)
    wait_for(lambda: editor.status()["context"] and editor.status()["cost"], "context and cost")
    types = json_schema()["$defs"]
    status = editor.status()
    assert status.keys() == types["StatusUpdate"]["properties"].keys()
    for part, name in (("document", "DocumentStatus"), ("context", "ContextStatus")):
        assert status[part].keys() == types[name]["properties"].keys()
    assert status["cost"].keys() == types["CostStatus"]["properties"].keys()


def test_the_status_line_is_redrawn_without_a_key_press(editor: Editor) -> None:
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    status_line = editor.screen()[-2]
    assert "a.md|4 tokens" in status_line


def test_windows_on_other_buffers_are_redrawn(editor: Editor) -> None:
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    editor.command("vsplit")
    editor.edit("b.md", LONG)
    editor.wait_tokens(truth(LONG))
    last = editor.screen()[-2]
    assert "a.md|4 tokens" in last
    assert f"b.md|{truth(LONG):,} tokens" in last


def test_the_autocommand_carries_buffer_and_status(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("""
      _G.seen = {}
      vim.api.nvim_create_autocmd('User', { pattern = 'TokenSidecarStatus', callback = function(e)
        local kept = vim.b[e.data.buf].token_sidecar_status
        table.insert(_G.seen, { e.data.buf, e.data.status.text, kept })
      end })""")
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    seen = editor.lua("return _G.seen")
    buffer, text, variable = seen[-1]
    assert (buffer, text, variable) == (
        editor.lua("return vim.api.nvim_get_current_buf()"),
        text,
        text,
    )
    assert "4 tokens" in text


def test_lualine_component_reads_and_escapes(editor: Editor) -> None:
    """lualine loads `lualine.components.NAME`, and displays its function's result."""
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    editor.lua("vim.b.token_sidecar_status = '12,345 tokens (62 %)'")
    editor.lua("""
      local component = require('lualine.components.token_sidecar')
      assert(type(component) == 'function')
      _G.lualine = function() return component() end
      vim.o.statusline = '%!v:lua.lualine()'""")
    assert editor.screen()[-2] == "12,345 tokens (62 %)"


def test_reading_the_status_starts_no_server(editor: Editor) -> None:
    text = editor.lua("return require('token_sidecar').statusline()")
    assert text == ""
    assert editor.lua("return package.loaded['token_sidecar.server'] == nil")
    assert editor.server_pids() == []


def test_the_help_is_available(editor: Editor) -> None:
    copy = editor.folder / "help/doc"
    copy.mkdir(parents=True)
    source = editor.lua("return vim.api.nvim_get_runtime_file('doc/token-sidecar.txt', false)[1]")
    with open(source, encoding="utf-8") as file:
        (copy / "token-sidecar.txt").write_text(file.read(), encoding="utf-8")
    editor.lua("vim.opt.runtimepath:prepend(...)", str(copy.parent))
    editor.command(f"helptags {copy}")
    for tag in ("token-sidecar", ":TokenSidecar", "b:token_sidecar_status", "g:token_sidecar_cmd"):
        editor.command(f"help {tag}")
        assert editor.lua("return vim.bo.filetype") == "help"
        assert "token-sidecar.txt" in editor.lua("return vim.fn.expand('%:t')")


def test_health_names_version_and_state(editor: Editor) -> None:
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_tokens(4)
    (editor.folder / "config.toml").write_text("")
    editor.command("checkhealth token_sidecar")
    report = wait_for(
        lambda: editor.lua(
            "return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, true), '\\n')"
        ),
        "the report",
    )
    assert "token-sidecar, version" in report
    assert "buffers: 1" in report
    assert "❌" not in report
