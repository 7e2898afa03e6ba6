"""Tests the hints on the entries of MCP servers in configuration files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.folders import Places
from sidecar.config.paths import state_dir
from sidecar.config.settings import Agents
from sidecar.counting.count_result import Measure
from sidecar.project.mcp_servers import (
    KeptServer,
    ServerTools,
    Tool,
    ToolList,
    count_tools_in_each_form,
    find_mcp_servers,
    keep,
    sent_tools,
)
from sidecar.workspace import prompt_files
from tests.protocol.client import Client

TEXT = """{
  "mcpServers": {
    "crates": { "command": "crates" },
    "other": { "command": "other", "args": ["--all"] }
  }
}
"""
LENSES = {"tokenSidecar": {"codeLens": True}}
TOOLS = ToolList(tuple(Tool(f"open_{one}", "Opens it.", {}) for one in range(42)), 42, "Crates.")


def keep_numbers(folder: Path) -> None:
    """Keep numbers of the first server, as if it had been measured."""
    (folder / ".mcp.json").write_text(TEXT)
    server = find_mcp_servers("claude-code", folder, Places.of(Agents()))[0]

    def count(text: str, _model: str) -> Measure:
        return Measure(len(text), "exact", "characters")

    counts = count_tools_in_each_form([server], TOOLS, ("gpt-5", "claude-sonnet-5"), count)
    keep(state_dir(), {server.digest: KeptServer(tools=42, measured_at="2026", counts=counts)})


async def open_file(client: Client, path: Path, options: object, text: str = TEXT) -> str:
    await client.initialize(
        path.parent.as_uri(),
        initializationOptions=options,
        ignored=("status/update", "textDocument/publishDiagnostics"),
    )
    client.open(text, path.as_uri())
    return path.as_uri()


async def hover(client: Client, uri: str, line: int) -> str:
    where = {"textDocument": {"uri": uri}, "position": {"line": line, "character": 0}}
    shown = await client.request("textDocument/hover", where)
    return "" if shown is None else str(shown["contents"]["value"])


async def test_an_entry_shows_what_its_tools_add_to_each_agents_calls(
    bare: Client, tmp_path: Path
) -> None:
    uri = await open_file(bare, tmp_path / ".mcp.json", LENSES)
    keep_numbers(tmp_path)
    lenses = await bare.request("textDocument/codeLens", {"textDocument": {"uri": uri}})
    titles = {one["range"]["start"]["line"]: one["command"]["title"] for one in lenses}
    lines = len("\n".join(f"mcp__crates__open_{one}" for one in range(42)) + "\n## crates\nCrates.")
    assert titles[2].startswith(f"crates: 42 tools: {lines:,} tokens in every claude-code call (")
    assert titles[2].endswith(" tokens in every copilot-cli call")
    assert titles[3].startswith("other: not measured; `token-sidecar footprint --measure-mcp`")
    shown = await hover(bare, uri, 2)
    assert "one line in codex" in shown
    assert "nothing in vibe" in shown
    assert "tokens in every opencode call" in shown
    assert "not measured" in await hover(bare, uri, 3)


async def test_hints_are_made_beside_the_event_loop(
    bare: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may have 200 servers, for each of which the forms of all agents are compared."""
    threads = list[threading.Thread]()

    def noting(*given: Any) -> ServerTools:
        threads.append(threading.current_thread())
        return sent_tools(*given)

    monkeypatch.setattr(prompt_files, "sent_tools", noting)
    uri = await open_file(bare, tmp_path / ".mcp.json", LENSES)
    keep_numbers(tmp_path)
    assert "one line in codex" in await hover(bare, uri, 2)
    assert threads
    assert threading.main_thread() not in threads


async def test_opening_a_configuration_starts_nothing(bare: Client, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    text = TEXT.replace('"other", "args": ["--all"]', f'"touch", "args": ["{planted.as_posix()}"]')
    uri = await open_file(bare, tmp_path / ".mcp.json", LENSES, text)
    for request in ("textDocument/codeLens", "textDocument/documentSymbol"):
        await bare.request(request, {"textDocument": {"uri": uri}})
    assert "not measured" in await hover(bare, uri, 3)
    assert not planted.exists()


@pytest.mark.parametrize("name", ["package.json", "mcp.json"])
async def test_other_files_have_no_hints(bare: Client, tmp_path: Path, name: str) -> None:
    uri = await open_file(bare, tmp_path / name, LENSES)
    assert "measured" not in await hover(bare, uri, 2)


@pytest.mark.parametrize("text", ["", "{", '{"mcpServers": []}', "[" * 5000, '"\\ud800"'])
async def test_a_broken_configuration_gets_an_answer(
    bare: Client, tmp_path: Path, text: str
) -> None:
    uri = await open_file(bare, tmp_path / ".mcp.json", LENSES)
    change: Any = {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"text": text}]}
    bare.notify("textDocument/didChange", change)
    assert "crates" not in await hover(bare, uri, 2)
    await bare.request("textDocument/codeLens", {"textDocument": {"uri": uri}})


async def test_agents_that_are_off_have_no_hints(bare: Client, tmp_path: Path) -> None:
    options = {"tokenSidecar": {"codeLens": True, "agents": {"enabled": False}}}
    uri = await open_file(bare, tmp_path / ".mcp.json", options)
    assert "crates" not in await hover(bare, uri, 2)
