"""Fixtures for VS Code and a browser.

Opening a window takes longer than most tests, so tests share windows where possible. All modules
share `window`. The tests of one module share `module_window`. `open_window` is for tests that need
their own workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

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

START_SECONDS = 300
"""The timeout in seconds. A window can take 25 s to open. The first one waits for the builds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Extend the timeout, and run the tests that use the shared window first."""
    ours = [index for index, item in enumerate(items) if item.path.parent == HERE]
    shared_first = sorted(
        (items[index] for index in ours), key=lambda item: "window" not in _fixtures(item)
    )
    for index, item in zip(ours, shared_first, strict=True):
        items[index] = item
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_SECONDS))


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


@pytest.fixture(scope="session")
def code_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodeServer]:
    """A running VS Code server with our extension and a test extension."""
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
    """A Chromium browser with one page."""
    browser = Browser(code_server.vscode, editors_setup.ensure_chromium())
    yield browser
    browser.stop()


def _new_window(
    code_server: CodeServer, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Window:
    root = tmp_path_factory.mktemp("shared") / "folder"
    root.mkdir()
    return Window(code_server, browser, root)


_session_window = pytest.fixture(scope="session", name="session_window")(_new_window)
module_window = pytest.fixture(scope="module")(_new_window)
"""A window that a module's tests share. Call `tidy` at the start of each test."""


@pytest.fixture
def window(session_window: Window) -> Window:
    """A window that all modules share, with all editors closed. Each test writes its own files."""
    session_window.tidy()
    return session_window


@pytest.fixture
def project_file(window: Window) -> Iterator[Path]:
    """The project file's path in the shared window. The file is removed after the test."""
    file = window.root / ".token-sidecar.toml"
    yield file
    file.unlink(missing_ok=True)


@pytest.fixture
def open_window(code_server: CodeServer, browser: Browser, tmp_path: Path) -> Callable[..., Window]:
    """Return a function that opens a new window with the given files and user settings."""

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
