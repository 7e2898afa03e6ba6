"""A real terminal for programs that draw on a screen."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.e2e.neovim import debian
from tests.e2e.neovim.harness import wait_for


class Terminal:
    """A terminal in a private tmux server."""

    def __init__(self, folder: Path) -> None:
        self._tmux = [debian.ensure("tmux", "tmux"), "-S", str(folder / "tmux.sock")]

    def run(self, *argv: str) -> str:
        """Run a tmux command, and return its output."""
        result = subprocess.run([*self._tmux, *argv], capture_output=True, text=True, check=True)
        return result.stdout

    def start(self, *argv: str, columns: int = 90) -> None:
        """Run a program in a new terminal with 30 rows."""
        size = ["-x", str(columns), "-y", "30"]
        self.run("-f", "/dev/null", "new-session", "-d", "-s", "t", *size, *argv)

    def type(self, *keys: str) -> None:
        """Type keys, in tmux's notation."""
        self.run("send-keys", "-t", "t", *keys)

    def wait(self, part: str) -> str:
        """Wait until the screen contains the text, and return the screen."""

        def look() -> str | None:
            screen = self.run("capture-pane", "-p", "-t", "t")
            return screen if part in screen else None

        return str(wait_for(look, f"{part!r} on the screen"))

    def stop(self) -> None:
        """Stop the program, and close the terminal."""
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)
