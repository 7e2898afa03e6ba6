"""One VS Code and one browser for all tests; a fresh workspace wherever a test asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e import editors_setup
from tests.e2e.vscode.harness import (
    HERE,
    Browser,
    CodeServer,
    Window,
    build_probe,
    build_sample,
    build_vsix,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


START_SECONDS = 300
"""A window on two busy cores takes up to 25 s to open, and the first one builds all there is."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """More time for what opens windows."""
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_SECONDS))


@pytest.fixture(scope="session")
def code_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodeServer]:
    """A running VS Code server with our extension and the probe."""
    folder = tmp_path_factory.mktemp("code")
    server = CodeServer(folder, editors_setup.ensure_vscode())
    server.install(build_vsix(), build_probe(folder), build_sample(folder))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def browser(code_server: CodeServer) -> Iterator[Browser]:
    """Chromium with one page."""
    browser = Browser(code_server.vscode, editors_setup.ensure_chromium())
    yield browser
    browser.stop()


@pytest.fixture(scope="module")
def window(
    code_server: CodeServer, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Window:
    """A window on a folder that the tests of a module share; each writes files of its own."""
    root = tmp_path_factory.mktemp("shared") / "folder"
    root.mkdir()
    code_server.configure({})
    window = Window(code_server, browser, root)
    window.open()
    return window


@pytest.fixture
def open_window(code_server: CodeServer, browser: Browser, tmp_path: Path) -> Callable[..., Window]:
    """Opens a window of its own on a folder with these files, under these user settings."""

    def opened(files: dict[str, str] | None = None, **settings: object) -> Window:
        root = tmp_path / "folder"
        root.mkdir()
        for name, text in (files or {}).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text.encode())
        code_server.configure({name.replace("__", "."): value for name, value in settings.items()})
        window = Window(code_server, browser, root)
        window.open()
        return window

    return opened
