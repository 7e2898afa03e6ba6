"""Tests the status in the status line, in lualine and in autocommands."""

from __future__ import annotations

from typing import Any

from sidecar.server.methods import json_schema
from tests.e2e.neovim.harness import Editor, wait_for
from tests.truth import truth

LONG = "one two three four five six seven eight nine ten\n" * 2000


def without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(item) for key, item in value.items() if item is not None}


def test_variables_hold_the_last_update_unchanged(clean: Editor) -> None:
    clean.edit("a.md", LONG, tokens=truth(LONG))
    clean.lua("""
      local handlers = require('token_sidecar.server').clients()[1].handlers
      local update = handlers['status/update']
      handlers['status/update'] = function(err, status, ctx)
        _G.sent = vim.json.encode(status)
        return update(err, status, ctx)
      end""")
    shown = clean.status()
    assert shown["text"] == clean.variable("token_sidecar_status")
    assert f"{truth(LONG):,} tokens" in shown["text"]
    clean.keys("ggdd")
    clean.wait_tokens(truth(LONG) - truth("one two three four five six seven eight nine ten\n"))
    sent = clean.lua("return vim.json.decode(_G.sent)")
    shown = clean.status()
    # Neovim's decoder drops null fields, so the test adds them again.
    assert without_nulls(shown) == without_nulls(sent)


def test_every_status_part_has_all_its_members(clean: Editor) -> None:
    """The status in Neovim has every field of the schema, including null fields."""
    clean.edit("a.md", LONG, tokens=truth(LONG))
    ask = "return require('token_sidecar.server').clients()[1]:request_sync(...)"
    usage = {"input_tokens": 10, "output_tokens": 1}
    record = {"model": "gpt-5", "usage": usage}
    turns = [{"role": "user", "content": "one two three"}]
    clean.lua(ask, "cost/record", record, 20000)
    clean.lua(ask, "context/append", {"session": "s", "turns": turns}, 20000)
    wait_for(lambda: clean.status()["context"] and clean.status()["cost"], "context and cost")
    types = json_schema()["$defs"]
    status = clean.status()
    assert status.keys() == types["StatusUpdate"]["properties"].keys()
    for part, name in (("document", "DocumentStatus"), ("context", "ContextStatus")):
        assert status[part].keys() == types[name]["properties"].keys()
    assert status["cost"].keys() == types["CostStatus"]["properties"].keys()


def test_windows_on_other_buffers_are_redrawn(clean: Editor) -> None:
    clean.edit("a.md", "Hello, world!\n", tokens=4)
    clean.command("set columns=160 | vsplit")
    clean.edit("b.md", LONG, tokens=truth(LONG))
    last = clean.screen()[-2]
    assert "a.md|4 tokens" in last
    assert f"b.md|{truth(LONG):,} tokens" in last


def test_the_autocommand_carries_buffer_and_status(clean: Editor) -> None:
    clean.lua("""
      _G.seen = {}
      vim.api.nvim_create_autocmd('User', { pattern = 'TokenSidecarStatus', callback = function(e)
        local kept = vim.b[e.data.buf].token_sidecar_status
        table.insert(_G.seen, { e.data.buf, e.data.status.text, kept })
      end })""")
    clean.edit("a.md", "Hello, world!\n", tokens=4)
    seen = clean.lua("return _G.seen")
    buffer, text, variable = seen[-1]
    assert (buffer, text, variable) == (
        clean.lua("return vim.api.nvim_get_current_buf()"),
        text,
        text,
    )
    assert "4 tokens" in text


def test_a_cold_cache_has_an_event_and_a_part_but_no_message(clean: Editor) -> None:
    clean.edit("a.md", "Hello, world!\n", tokens=4)
    clean.lua("""
      vim.api.nvim_create_autocmd('User', { pattern = 'TokenSidecarCold', callback = function(e)
        _G.cold = e.data.message
      end })
      local text = 'cold: next input $4.10 instead of $0.41'
      local handlers = require('token_sidecar.server').clients()[1].handlers
      handlers['context/warning'](nil, { kind = 'cold', message = text })
      local status = vim.b.token_sidecar_status_dict
      status.cache = { text = text, severity = 'warning', extraUsd = 3.69 }
      vim.b.token_sidecar_status_dict = status""")
    assert clean.lua("return _G.cold") == "cold: next input $4.10 instead of $0.41"
    assert "instead of" not in "\n".join(clean.messages())
    part = "return require('token_sidecar').winbar()"
    clean.lua("vim.o.columns = 90")
    assert clean.lua(part).endswith("%#TokenSidecarWarning#cold: next input $4.10%*")
    clean.lua("vim.o.columns = 120")
    assert clean.lua(part).endswith("next input $4.10 instead of $0.41%*")


def test_lualine_component_reads_and_escapes(clean: Editor) -> None:
    """lualine loads `lualine.components.NAME`, and displays its function's result."""
    clean.edit("a.md", "Hello, world!\n", tokens=4)
    clean.lua("vim.b.token_sidecar_status = '12,345 tokens (62 %)'")
    clean.lua("""
      local component = require('lualine.components.token_sidecar')
      assert(type(component) == 'function')
      _G.lualine = function() return component() end
      vim.o.statusline = '%!v:lua.lualine()'""")
    assert clean.screen()[-2] == "12,345 tokens (62 %)"


def test_reading_the_status_starts_no_server(editor: Editor) -> None:
    text = editor.lua("return require('token_sidecar').statusline()")
    assert text == ""
    assert editor.lua("return package.loaded['token_sidecar.server'] == nil")
    assert editor.server_pids() == []


def test_the_help_is_available(clean: Editor) -> None:
    copy = clean.folder / "help/doc"
    copy.mkdir(parents=True)
    source = clean.lua("return vim.api.nvim_get_runtime_file('doc/token-sidecar.txt', false)[1]")
    with open(source, encoding="utf-8") as file:
        (copy / "token-sidecar.txt").write_text(file.read(), encoding="utf-8")
    clean.lua("vim.opt.runtimepath:prepend(...)", str(copy.parent))
    clean.command(f"helptags {copy}")
    for tag in ("token-sidecar", ":TokenSidecar", "b:token_sidecar_status", "g:token_sidecar_cmd"):
        clean.command(f"help {tag}")
        assert clean.lua("return vim.bo.filetype") == "help"
        assert "token-sidecar.txt" in clean.lua("return vim.fn.expand('%:t')")
