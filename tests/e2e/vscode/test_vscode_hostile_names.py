"""Tests Markdown in model names and headings. VS Code must display it as text, and load nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.vscode.harness import STATUS_ITEM, Window, wait_for


class Host:
    """A local server that does nothing but record its connections."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(5)
                said = connection.recv(4096)
                if said == b"end":
                    return
                self.asked.append(said)

    def end(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(b"end")
        self._thread.join()
        self._socket.close()


@pytest.fixture
def host() -> Iterator[Host]:
    found = Host()
    yield found
    found.end()


def test_an_image_in_a_name_is_never_fetched(
    open_window: Callable[..., Window], host: Host
) -> None:
    image = f"![p](http://127.0.0.1:{host.port}/x.png)"
    link = "[run](command:workbench.action.files.newUntitledFile) $(zap)"
    files = {
        ".token-sidecar.toml": f'model = "{image}{link}"\n',
        "plan.md": f"# {image}{link}\n\nWhat to do.\n",
    }
    window = open_window(files)
    window.show("plan.md")
    wait_for(lambda: "tokens" in (window.status() or ""), "a count in the status bar")

    window.page("await page.locator(`[id='${args[0]}'] a`).hover()", STATUS_ITEM)
    table = "page.locator('.monaco-hover table').first()"
    window.page(f"await {table}.waitFor()")
    assert image + link in window.page(f"return await {table}.innerText()")
    _holds_nothing_active(window)
    window.page("await page.mouse.move(400, 300); await page.keyboard.press('Escape')")

    window.focus()
    window.host("await vscode.commands.executeCommand('editor.action.showHover')")
    shown = f"page.locator('.monaco-hover table', {{hasText: '{host.port}'}}).first()"
    window.page(f"await {shown}.waitFor()")
    _holds_nothing_active(window)

    window.host("await vscode.commands.executeCommand('tokenSidecar.count')")
    wait_for(lambda: any(str(host.port) in text for text in window.messages()), "a message")
    links = "page.locator('.notification-list-item-message a')"
    assert window.page(f"return await {links}.count()") == 0
    assert host.asked == []


def _holds_nothing_active(window: Window) -> None:
    """Check that a hover contains no images, links or icons."""
    active = ".monaco-hover :is(img, table a, table .codicon)"
    assert window.page(f"return await page.locator('{active}').count()") == 0
