"""Draws the pictures in the documentation: `python -m tests.e2e.vscode.pictures`.

A real VS Code displays two weeks of generated sessions in a light and a dark theme.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from tests.e2e import editors_setup
from tests.e2e.editors_setup import ROOT
from tests.e2e.vscode.harness import (
    REPORT,
    Browser,
    CodeServer,
    Window,
    build_probe,
    build_vsix,
    wait_for,
)

IMAGES = ROOT / "docs/images"
TITLES = (
    "Release notes for 2.4",
    "Migrate the store to SQLite",
    "Explain the flaky login test",
    "Rename the config keys",
    "Upload queue: retry with backoff",
    "Speed up the nightly import",
    "Review the OAuth change",
    "Fix nested lists in the parser",
)
PROMPT = """# Agent guide

## Build

Run `make check` before each commit. Tests live beside the code that they prove.

## Style

Prefer small functions, plain names and early returns. Errors say what to do next.
"""


def write_sessions(home: Path, root: Path) -> None:
    """Write Claude Code and Codex sessions. The last session is still running."""
    claude, codex = ClaudeHome(home / ".claude", seed=7), CodexHome(home / ".codex", seed=7)
    now = datetime.now(UTC)
    for number, title in enumerate(TITLES):
        age = timedelta(days=2 * (len(TITLES) - 1 - number))
        claude.clock.now = codex.clock.now = now - age - timedelta(minutes=40)
        if number % 4 == 1:
            thread = codex.thread(root)
            thread.begin_turn()
            for _ in range(6):
                thread.call()
        session = claude.session(root)
        session.write({"type": "ai-title", "aiTitle": title, "sessionId": session.id})
        session.cached = 24_000
        for _ in range(12 + 5 * (number % 3)):
            session.user()
            session.cached += 4_000 + 3_500 * number
            session.reply()
    ends = claude.clock.now
    assert ends <= now, "sessions must not end in the future"


def draw(folder: Path) -> None:
    server = CodeServer(folder, editors_setup.ensure_vscode())
    server.install(build_vsix(), build_probe(folder))
    root = folder / "work" / "parser"
    root.mkdir(parents=True)
    (root / "AGENTS.md").write_text(PROMPT)
    write_sessions(folder / "home", root)
    server.start()
    browser = Browser(server.vscode, editors_setup.ensure_chromium())
    try:
        window = Window(server, browser, root)
        browser.run("await page.setViewportSize({width: 1360, height: 800})")
        window.open()
        window.show("AGENTS.md")
        wait_for(lambda: "ctx" in (window.status() or ""), "the status")
        run = "await vscode.commands.executeCommand(args[0])"
        window.host(run, "tokenSidecar.contextUsage")
        window.host(run, "tokenSidecar.costReport")
        wait_for(lambda: "Tokens" in window.frame_text(REPORT), "the cost report")
        wait_for(lambda: "What comes next" in window.context(), window.context)
        window.host(run, "notifications.clearAll")
        for theme in itertools.islice(window.themes(), 2):
            window.page("await page.waitForTimeout(1500)")  # until all colors have changed
            picture = IMAGES / f"vscode-{theme}.png"
            window.page("await page.screenshot({path: args[0]})", str(picture))
            sys.stdout.write(f"{picture}\n")
    finally:
        browser.stop()
        server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pictures") as made:
        draw(Path(made))
