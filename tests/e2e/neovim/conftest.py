"""Editors for the tests: each with private folders, each closed and looked at for errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.neovim.harness import Editor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def open_editor(tmp_path: Path) -> Iterator[Callable[..., Editor]]:
    """Opens a Neovim with these lines of Lua in its init.lua and these variables around it."""
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
    """One Neovim for the tests of a module that leave nothing behind."""
    editor = Editor(tmp_path_factory.mktemp("shared"))
    yield editor
    editor.close()


@pytest.fixture
def editor(open_editor: Callable[..., Editor]) -> Editor:
    """A Neovim with the plugin on its runtimepath and nothing else."""
    return open_editor()
