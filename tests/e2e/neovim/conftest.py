"""Fixtures for Neovim with private folders. Closing Neovim fails if it reported errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.neovim import plugins
from tests.e2e.neovim.chat_plugins import PATIENT, ChatPlugin
from tests.e2e.neovim.harness import Editor
from tests.model_server import ModelServer

DESELECTED = pytest.StashKey[int]()


@pytest.fixture
def open_editor(tmp_path: Path) -> Iterator[Callable[..., Editor]]:
    """Return a function that opens Neovim with extra code in init.lua and environment variables."""
    editors: list[Editor] = []

    def opened(lua: str = "", **env: str) -> Editor:
        folder = tmp_path / f"editor{len(editors)}"
        folder.mkdir()
        editors.append(Editor(folder, lua, env))
        return editors[-1]

    yield opened
    for editor in editors:
        editor.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    """A Neovim that a module's tests share. `clean` resets it."""
    editor = Editor(tmp_path_factory.mktemp("shared"))
    editor.lua(KEEP)
    yield editor
    editor.close()


KEEP = """
  _G.kept = { select = vim.ui.select, input = vim.ui.input, statusline = vim.o.statusline,
    folder = vim.fn.getcwd() }"""
RESET = """
  vim.cmd('stopinsert | silent fclose!')
  vim.cmd('silent only | silent %bwipeout!')
  vim.cmd('set modifiable& columns=80 lines=24 winbar& selection& fileformat& endofline& fixendofline&')
  vim.o.statusline, vim.g.token_sidecar_selection = _G.kept.statusline, nil
  vim.ui.select, vim.ui.input, vim.fn.inputlist = _G.kept.select, _G.kept.input, nil
  vim.cmd.cd(_G.kept.folder)
  local server = package.loaded['token_sidecar.server']
  for _, client in ipairs(server and server.clients() or {}) do
    if client.root_dir ~= ... then
      client:stop()
    else
      local function ask(method, params) return client:request_sync(method, params, 60000).result end
      ask('context/select', { session = vim.NIL })
      ask('context/set', { model = vim.NIL })
      server.remember(client, nil)
      for _, session in ipairs(ask('context/sessions', { all = true })) do
        ask('context/reset', { session = session.id })
      end
    end
  end
  _G.messages = {}"""
"""Undoes what a test has done to the editor and its server. Recorded calls are kept."""


@pytest.fixture
def clean(shared: Editor) -> Editor:
    """The shared Neovim with an empty buffer and workspace, and no messages or conversations."""
    shared.lua(RESET, str(shared.workspace))
    for path in shared.workspace.iterdir():
        if path.is_dir() and path.name != ".git":
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    return shared


@pytest.fixture
def editor(open_editor: Callable[..., Editor]) -> Editor:
    """A Neovim with only this plugin on its runtimepath."""
    return open_editor()


@pytest.fixture
def begin(open_editor: Callable[..., Editor]) -> Iterator[Callable[..., Any]]:
    """Return a function that opens Neovim with a chat plugin and a model server."""
    servers: list[ModelServer] = []

    def opened(
        plugin: ChatPlugin, *, waits: bool = True, lua: str = PATIENT, before: str = "", **env: str
    ) -> Any:
        server = ModelServer(plugin.answer, waits=waits, usage=plugin.usage)
        servers.append(server.__enter__())
        editor = open_editor(plugin.lua + lua, **env)
        editor.command(f"cd {editor.workspace}")
        editor.edit("a.md", "Hello, world!\n")
        if not env:
            editor.wait_tokens(4)
        return editor, server, plugin.start(editor, server, before)

    yield opened
    for server in servers:
        server.__exit__()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect chat plugin tests if the plugins are not available."""
    needing = [item for item in items if item.get_closest_marker("plugins")]
    if not needing or plugins.folder() is not None:
        return
    items[:] = [item for item in items if item not in needing]
    config.hook.pytest_deselected(items=needing)
    config.stash[DESELECTED] = len(needing)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Report in one line how many plugin tests were deselected."""
    number = config.stash.get(DESELECTED, 0)
    if number:
        terminalreporter.write_line(
            f"{number} tests deselected, because the chat plugins could not be downloaded from GitHub."
            " Set TOKEN_SIDECAR_PLUGINS to a folder with their archives."
        )
