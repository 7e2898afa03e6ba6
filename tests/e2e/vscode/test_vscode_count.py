"""Live exact counts in a real VS Code: typed on the page, seen in the status bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tiktoken

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.vscode.harness import Window

ENCODING = tiktoken.get_encoding("o200k_base")


def test_typing_shows_the_exact_count(window: Window, tmp_path: Path) -> None:
    """Text is typed on the page; the status bar ends at tiktoken's number for it."""
    window.show("typed.md", "")
    window.page(
        "await page.locator('.monaco-editor textarea, .native-edit-context').first().focus()"
    )
    text = "Review the diff, then answer in one paragraph."
    window.page("await page.keyboard.type(args[0], {delay: 5})", text)
    window.wait_status(f"{len(ENCODING.encode(text))} tokens")
    window.screenshot(tmp_path / "typed.png")
