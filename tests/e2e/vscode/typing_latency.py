"""Measures the typing latency in VS Code, with token-sidecar and with an idle language server.

1,000 keys are typed into a 1 MB file.

    python -m tests.e2e.vscode.typing_latency [RUNS [BYTES]]

If BYTES is given, 300 keys are typed into a 10 KB file, and a file of BYTES is opened at the first
key. The time that VS Code takes to open this file is included for both servers.

Each run opens a new window, types at full speed, and measures the time from each key event to the
next painted frame. Runs with token-sidecar alternate with runs of the idle server. For each
server, the median of the runs' p99 is printed, followed by the ratio of the two medians. The final
count must be exact.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.corpus import source_text
from sidecar.counting.exact_engines import Reference
from tests.e2e import editors_setup
from tests.e2e.vscode.harness import (
    Browser,
    CodeServer,
    Window,
    build_probe,
    build_vsix,
    wait_for,
)

RUNS = 5
MOST = 1.25
"""The maximum acceptable ratio of token-sidecar's latency to the idle server's latency."""
KEYS = 1000
LINE = "The quick brown fox jumps over the lazy dog, then rests.\n"
TEXT = LINE * (1_000_000 // len(LINE))
WARM_UP = "The first keys pay for what an editor loads on demand. " * 2
SMALL, BESIDE_KEYS = TEXT[: len(LINE) * 180], 300
TYPED = ("Count what is typed here, key by key. " * 40)[:KEYS]

# Measures from the key event until after the next frame has been painted.
LISTEN = """
    await page.evaluate(() => {
        window.latencies = [];
        window.addEventListener("keydown", () => {
            const start = performance.now();
            requestAnimationFrame(() => {
                const channel = new MessageChannel();
                channel.port1.onmessage = () => window.latencies.push(performance.now() - start);
                channel.port2.postMessage(0);
            });
        }, { capture: true });
    });
"""


# this does not wait until the file is open, so keys are typed while it is being opened
OPEN_BESIDE = """
    const beside = { viewColumn: vscode.ViewColumn.Two, preserveFocus: true };
    void vscode.window.showTextDocument(vscode.Uri.file(args[0]), beside);
"""
IS_OPEN = "return vscode.workspace.textDocuments.some((each) => each.uri.fsPath === args[0])"


def run(
    code_server: CodeServer, browser: Browser, folder: Path, program: Path | None, beside: int = 0
) -> float:
    """Return the p99 of a run in milliseconds. With token-sidecar, check the final count."""
    folder.mkdir(parents=True)
    code_server.configure({"tokenSidecar.server.path": str(program)} if program else {})
    window = Window(code_server, browser, folder)
    window.open()
    text, typed = (SMALL, TYPED[:BESIDE_KEYS]) if beside else (TEXT, TYPED)
    window.show("large.txt", text)
    wait_for(lambda: window.server_pid() is not None, "the server")
    reference = Reference("o200k_base")
    if program is None:
        window.wait_status(f"{reference.count_whole(text):,} tokens")
    window.focus()
    _type(window, WARM_UP, text)
    window.page("await page.waitForTimeout(3000)")
    window.page(LISTEN)
    other = _open_beside(window, folder, beside) if beside else None
    _type(window, typed, WARM_UP + text)
    if program is None:
        window.wait_status(f"{reference.count_whole(WARM_UP + typed + text):,} tokens")
    if other is not None:
        wait_for(lambda: window.host(IS_OPEN, str(other)), "the other file")
    latencies = [float(each) for each in window.page("return page.evaluate('latencies')")]
    assert len(latencies) == len(typed)
    window.host("await vscode.commands.executeCommand('workbench.action.files.revert')")
    return statistics.quantiles(latencies, n=100)[98]


def _open_beside(window: Window, folder: Path, size: int) -> Path:
    other = folder / "beside.txt"
    other.write_text(source_text(size))
    window.host(OPEN_BESIDE, str(other))
    return other


def _type(window: Window, text: str, before: str) -> None:
    """Type at full speed, and wait until the extension host has received all keys."""
    window.page("await page.keyboard.type(args[0])", text)
    arrived = "return vscode.window.activeTextEditor.document.getText().length === args[0]"
    wait_for(lambda: window.host(arrived, len(text + before)), "all keys to arrive")


def main() -> int:
    """Run both servers alternately, and print the results. Return 1 if the ratio is too high."""
    runs, beside = [*map(int, sys.argv[1:]), *(RUNS, 0)[len(sys.argv) - 1 :]][:2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        idle = folder / "idle"
        script = Path(__file__).with_name("idle_server.py")
        idle.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        idle.chmod(0o755)
        code_server = CodeServer(folder, editors_setup.ensure_vscode())
        code_server.install(build_vsix(), build_probe(folder))
        code_server.start()
        browser = Browser(code_server.vscode, editors_setup.ensure_chromium())
        results: dict[str, list[float]] = {"idle server": [], "token-sidecar": []}
        try:
            for turn in range(runs):
                pair = (("idle server", idle), ("token-sidecar", None))
                # a run affects the next one, so the servers take turns going first
                for kind, program in pair[:: -1 if turn % 2 else 1]:
                    place = folder / f"{turn}-{program is None}" / "folder"
                    results[kind].append(run(code_server, browser, place, program, beside))
        finally:
            browser.stop()
            code_server.stop()
    return _report(results)


def _report(results: dict[str, list[float]]) -> int:
    for kind, values in results.items():
        each = ", ".join(f"{value:.1f}" for value in values)
        sys.stdout.write(f"{kind}: p99 {statistics.median(values):.1f} ms (runs: {each})\n")
    idle, ours = (statistics.median(values) for values in results.values())
    sys.stdout.write(f"ratio: {ours / idle:.2f}\n")
    return int(ours / idle > MOST)


if __name__ == "__main__":
    sys.exit(main())
