"""Live exact counts in a real VS Code: typed on the page, seen in the status bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.counting.engines.reference import Reference

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.vscode.harness import Window

O200K = Reference("o200k_base")


def test_typing_shows_the_exact_count(window: Window, tmp_path: Path) -> None:
    """Text is typed on the page; the status bar ends at the reference's number for it."""
    window.show("typed.md", "")
    window.focus()
    text = "Review the diff, then answer in one paragraph."
    window.page("await page.keyboard.type(args[0], {delay: 5})", text)
    window.wait_status(f"{O200K.count_whole(text)} tokens")
    window.screenshot(tmp_path / "typed.png")
