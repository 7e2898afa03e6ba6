"""Draws the pictures in the README and the docs: `python -m tests.e2e.pictures [NAME …]`.

It generates the sessions of a working day, and runs commands and Neovim in a real terminal. Each
screen becomes an SVG file that follows the browser's light or dark color scheme.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from tests.e2e.neovim import debian
from tests.e2e.neovim.harness import NVIM, SERVER, SHIM, environment
from tests.e2e.pictures.sessions import write_day

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "docs" / "images"
THEMES: dict[str, TerminalTheme] = {"light": DEFAULT_TERMINAL_THEME, "dark": SVG_EXPORT_THEME}
_FONT_FACE = re.compile(r"@font-face \{.*?\}", re.DOTALL)
"""Matches the web fonts, which browsers do not load for embedded pictures."""
_STYLE = (
    "<style>.dark{display:none}"
    "@media (prefers-color-scheme:dark){.light{display:none}.dark{display:inline}}</style>"
)
_STARTED_SECONDS, _DRAWN_SECONDS = 12.0, 4.0

NEOVIM = """\
vim.opt.runtimepath:prepend('{shim}')
vim.o.background, vim.o.termguicolors, vim.o.swapfile = '{theme}', true, false
vim.o.laststatus, vim.o.showmode, vim.o.ruler = 2, false, false
vim.api.nvim_set_hl(0, 'Normal', {{}})
vim.o.statusline = " %f%=%{{%v:lua.require'token_sidecar'.winbar()%}} "
"""


class Terminal(NamedTuple):
    """A picture of commands and their output."""

    name: str
    width: int
    commands: tuple[tuple[str, ...], ...]


class Editor(NamedTuple):
    """A picture of Neovim after some keys have been typed."""

    name: str
    width: int
    height: int
    keys: tuple[str, ...]


TERMINALS = (
    Terminal("usage", 88, (("usage", "--all"), ("usage", "--session", "parser"))),
    Terminal("cost", 88, (("cost",), ("cost", "--by", "block,agent"))),
)
FOOTPRINT = Terminal("footprint", 104, (("footprint",),))
"""The picture of the project with more instructions, which other pictures do not have."""
EDITORS = (
    Editor("neovim", 104, 30, (":TokenSidecar context", "Enter")),
    Editor("neovim-map", 104, 30, (":TokenSidecar map", "Enter")),
)


def main(*names: str) -> None:
    """Draw the pictures with these names, or all."""
    terminals = [one for one in TERMINALS if not names or one.name in names]
    editors = [one for one in EDITORS if not names or one.name in names]
    with tempfile.TemporaryDirectory() as folder:
        project, env = _write_world(Path(folder) / "day")
        for terminal in terminals:
            _draw_terminal(terminal, project, env)
        for editor in editors:
            screens = {
                theme: _screen_of_neovim(editor, theme, project, env, Path(folder))
                for theme in THEMES
            }
            _draw(screens, editor.width, editor.name, "Neovim")
        if not names or FOOTPRINT.name in names:
            _draw_terminal(FOOTPRINT, *_write_world(Path(folder) / "footprint", has_more=True))


def _write_world(folder: Path, *, has_more: bool = False) -> tuple[Path, dict[str, str]]:
    """Write a project and a day's sessions. Return its folder and the environment.

    Args:
        folder: A new folder.
        has_more: Whether the project has more instructions. The sessions then begin later than
            now, because a file that changed after a session began may not be what it sent.
    """
    home, now = folder / "home", datetime.now(UTC)
    project = home / "parser"
    _write_project(project)
    if has_more:
        _write_instructions(project)
        now += timedelta(hours=6)
    write_day(home, project, now)
    env = environment(folder, {"HOME": str(home), "TERM": "xterm-256color"})
    Path(env["TOKEN_SIDECAR_CONFIG"]).touch()
    del env["XDG_DATA_HOME"]  # opencode keeps its sessions in this folder
    subprocess.run([SERVER, "cost"], cwd=project, env=env, check=True, capture_output=True)
    return project, env


def _write_project(project: Path) -> None:
    """Write a small project that contains copies of files from this repository."""
    (project / ".git").mkdir(parents=True)
    for source, target in (("sidecar/text", "src"), ("docs/explanation", "docs")):
        shutil.copytree(
            ROOT / source, project / target, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "docs" / "reference" / "glossary.md", project / "AGENTS.md")


def _write_instructions(project: Path) -> None:
    """Write instructions that agents send, cut, hide or send later."""
    pages = [
        ROOT / "docs/reference" / name for name in ("glossary.md", "agents.md", "endpoints.md")
    ]
    rules = project / ".claude" / "rules"
    rules.mkdir(parents=True)
    texts = {
        project / "AGENTS.md": "".join(page.read_text() for page in pages),
        project / "CLAUDE.md": "# Parser\n\nRun `pytest -q` before you say that it works.\n" * 20,
        rules / "style.md": "Write short functions with one purpose, and name them by it.\n" * 30,
        rules / "tables.md": "---\npaths: src/tables.py\n---\nAlign columns with spaces.\n" * 20,
    }
    for path, text in texts.items():
        path.write_text(text)


def _draw_terminal(terminal: Terminal, project: Path, env: Mapping[str, str]) -> None:
    outputs = [_run(command, terminal.width, project, env) for command in terminal.commands]
    screens = dict.fromkeys(THEMES, "\n".join(outputs))
    _draw(screens, terminal.width, terminal.name, "token-sidecar")


def _run(command: tuple[str, ...], width: int, folder: Path, env: Mapping[str, str]) -> str:
    """Return a command line and its colored output in a terminal of this width."""
    sized = {**env, "COLUMNS": str(width), "FORCE_COLOR": "1"}
    script = ["script", "-qec", f"stty cols {width}; {SERVER} {' '.join(command)}", "/dev/null"]
    result = subprocess.run(
        script, cwd=folder, env=sized, capture_output=True, text=True, check=True
    )
    return f"\x1b[1m$ token-sidecar {' '.join(command)}\x1b[0m\n{result.stdout}".replace("\r", "")


def _screen_of_neovim(
    editor: Editor, theme: str, project: Path, env: Mapping[str, str], folder: Path
) -> str:
    """Return Neovim's screen in color after typing the keys."""
    init = folder / "init.lua"
    init.write_text(NEOVIM.format(shim=SHIM, theme=theme))
    tmux = [
        debian.ensure("tmux", "tmux"),
        "-S",
        str(folder / f"{editor.name}-{theme}"),
        "-f",
        "/dev/null",
    ]

    def run(*arguments: str) -> str:
        command = [*tmux, *arguments]
        return subprocess.run(
            command, cwd=project, env={**env, "COLORTERM": "truecolor"}, capture_output=True,
            text=True, check=True,
        ).stdout  # fmt: skip

    size = ("-x", str(editor.width), "-y", str(editor.height))
    vim = f"{NVIM} --clean -n -u {init} src/tables.py"
    run("new-session", "-d", "-s", "t", *size, f"cd {project} && exec {vim}")
    run("set-option", "-ga", "terminal-overrides", ",*:Tc")
    time.sleep(_STARTED_SECONDS)
    for key in editor.keys:
        run("send-keys", "-t", "t", key)
    time.sleep(_DRAWN_SECONDS)
    screen = run("capture-pane", "-e", "-p", "-t", "t")
    run("kill-server")
    return screen


def _draw(screens: Mapping[str, str], width: int, name: str, title: str) -> None:
    """Write an SVG file that contains the screens of both themes."""
    groups, outer = [], ""
    for theme, screen in screens.items():
        drawn = _svg_of(screen, width, f"{name}-{theme}", THEMES[theme], title)
        outer, _, content = drawn.partition(">")
        groups.append(f'<g class="{theme}">{content.rpartition("</svg>")[0]}</g>')
    path = IMAGES / f"{name}.svg"
    path.write_text("".join((f"{outer}>{_STYLE}", *groups, "</svg>\n")))
    sys.stdout.write(f"{path.relative_to(ROOT)}\n")


def _svg_of(screen: str, width: int, name: str, theme: TerminalTheme, title: str) -> str:
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in screen.rstrip("\n").split("\n"):
        text = Text.from_ansi(line)
        text.no_wrap = True
        console.print(text, overflow="crop", highlight=False)
    drawn = console.export_svg(title=title, theme=theme, unique_id=name)
    return _FONT_FACE.sub("", drawn).replace("Fira Code", "ui-monospace")


if __name__ == "__main__":
    os.umask(0o022)
    main(*sys.argv[1:])
