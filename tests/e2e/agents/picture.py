"""Draws the picture in docs/how-to/mcp.md. Run it as `python -m tests.e2e.agents.picture`.

It runs Codex with the fake vendor, which requests a call to the tool `context_usage`. Then it
writes an SVG file that shows the output in a terminal.
"""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.e2e.agents.adapters import mcp_agents
from tests.e2e.agents.install import ensure_installed
from tests.e2e.agents.scene import Scene
from tests.e2e.agents.test_mcp_tools import ASK, CLIENTS, GREET, NAMES, VENV, run_in
from tests.fake_vendor import Reply

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "codex-mcp.svg"
ANSWER = "About 4 % of my context window is used, so there is room for the large files."
_HIDDEN = re.compile(r"^(workdir|provider|session id|warning|reasoning|approval|sandbox)\b|^-+$")


def main() -> None:
    (agent,) = (one for one in mcp_agents() if one.name == "codex")
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene("mcp", agent, ensure_installed(agent.package), Path(folder))
        command = ("mcp", "--install", CLIENTS[agent.name], "--yes")
        code, output = run_in(scene, str(VENV / "token-sidecar"), *command)
        assert code == 0, output
        scene.script.on(GREET, Reply("Hello there."))
        scene.turn(GREET)
        scene.script.on(ASK, Reply("", (NAMES[agent.name],)), Reply(ANSWER))
        ended = scene.turn(ASK, resume=True)
        scene.close()
    draw(f"$ codex exec resume --last {ASK!r}\n{_tidy(ended.output)}")


def _tidy(output: str) -> str:
    """Remove the lines about the sandbox, and everything after the token count."""
    lines = [line for line in output.splitlines() if not _HIDDEN.match(line)]
    return "\n".join(lines[: lines.index("tokens used") + 2])


def draw(text: str) -> None:
    """Write an SVG of a terminal that shows the text."""
    console = Console(record=True, width=92, file=io.StringIO())
    for line in text.splitlines():
        style = "bold" if line.startswith("$") else "cyan" if line.startswith("mcp: ") else ""
        console.print(Text(line, style=style))
    console.save_svg(str(PICTURE), title="Codex with token-sidecar")


if __name__ == "__main__":
    main()
