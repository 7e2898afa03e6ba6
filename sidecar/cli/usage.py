"""`token-sidecar usage`: shows a session's context, or lists all sessions."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.cli.group import also_option, workspace_option
from sidecar.cli.ledger_updates import exit_on_errors
from sidecar.cli.output import print_json, print_lines, print_problems, to_encodable
from sidecar.errors import BadParamsError
from sidecar.text.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sidecar.cli.sessions_view import SessionsView
    from sidecar.conversations.context_protocol import ContextUsage, SessionRow

POLL_SECONDS = 5.0
"""Seconds between checks for file changes, because the system does not report all of them."""

READ_SECONDS = 2.0
"""How long to read new calls of coding agents before the sessions are shown, in seconds."""

INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 plus the signal number of SIGINT."""

READ_COST = "Run `token-sidecar cost` to read the latest calls of coding agents."
READ_SESSIONS = (
    "Older sessions may be missing. Run `token-sidecar cost` to read all sessions of coding agents."
)
_STYLES = {"ok": "green", "warning": "yellow", "error": "red"}
"""The bar color for each severity."""
_AGENT_WIDTH, _WIDE = 100, 120
"""Minimum widths for showing the agent column, and for showing ids and wide bars."""


@click.command()
@workspace_option("Workspace folder")
@click.option(
    "--session",
    metavar="SESSION",
    help="Session id, its first characters, or a part of its name (default: the session that the "
    "editor shows).",
)
@click.option("--all", "show_all", is_flag=True, help="List all sessions of the workspace.")
@click.option(
    "--watch", is_flag=True, help="Print the output again after every change. Stop with Ctrl-C."
)
@also_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line per update."
)
def usage(
    root: Path,
    session: str | None,
    show_all: bool,
    watch: bool,
    also: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Show how full a session's context is.

    Sessions of coding agents are found in their files. Sessions of chat plugins are shown while
    the editor is running, or at any time if the plugin stores them (`persist`).

    Exit codes: 0, even without a session; 2 if the configuration is invalid or there is no such
    SESSION; 130 after Ctrl-C during --watch.
    """
    from sidecar.cli.sessions_view import SessionsView

    with exit_on_errors(), SessionsView(root, READ_SECONDS, also) as view:
        has_errors = print_problems(view.problems)
        before: object = None
        try:
            with _output(as_json=as_json, watch=watch) as show:
                for _ in _wait_for_changes(view) if watch else ((),):
                    shown = view.rows() if show_all else view.usage(session)
                    if shown != before:
                        show(shown, view)
                    before = shown
        except BadParamsError as error:
            raise click.UsageError(str(error)) from error
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
    sys.exit(2 if has_errors else 0)


@contextmanager
def _output(*, as_json: bool, watch: bool) -> Iterator[Callable[..., None]]:
    """Yield a function that prints the context or the sessions. On a terminal, it uses colors."""
    if as_json or not sys.stdout.isatty():
        yield partial(_print_plain, as_json=as_json)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False)
    if not watch:
        yield lambda *shown: console.print(_render(console.width, *shown))
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda *shown: live.update(_render(console.width, *shown), refresh=True)


def _wait_for_changes(view: SessionsView) -> Iterator[object]:
    from sidecar.project.file_watcher import Changes, FileWatcher

    yield ()
    changed: queue.SimpleQueue[Changes] = queue.SimpleQueue()
    FileWatcher().subscribe(partial(_paths_to_watch, view), changed.put, POLL_SECONDS)
    while True:
        with suppress(queue.Empty):  # on Windows, Ctrl-C only interrupts waits that have a timeout
            yield changed.get(timeout=1.0)


def _paths_to_watch(view: SessionsView) -> tuple[str, ...]:
    from sidecar.agents.reader_registry import paths_to_watch

    settings, path = view.workspace.settings.agents, view.workspace.path
    shared = str(view.services.shared_conversations.folder)
    return *paths_to_watch(settings, [str(path)] if path else []), shared


def _print_plain(
    shown: ContextUsage | list[SessionRow],
    view: SessionsView,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(shown)
        return
    print_lines(*_plain_lines(shown))
    if note := _note(shown, view):
        print_lines(note)


def _plain_lines(shown: ContextUsage | list[SessionRow]) -> list[str]:
    if isinstance(shown, list):
        return [row.text for row in shown] or ["No sessions found for this workspace."]
    return shown.text.split("\n")


def _note(shown: ContextUsage | list[SessionRow], view: SessionsView) -> str:
    """Return a note if some calls have not been read yet, otherwise an empty string."""
    if view.workspace.costs.problem:
        return view.workspace.costs.problem if isinstance(shown, list) else ""
    if isinstance(shown, list):
        sources, text = {row.source for row in shown}, READ_SESSIONS
    else:
        sources, text = {shown.session.source} if shown.session else set(), READ_COST
    return text if sources - {"protocol"} and not view.workspace.costs.read else ""


def _render(
    width: int, shown: ContextUsage | list[SessionRow], view: SessionsView
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    body: RenderableType
    if isinstance(shown, list) and shown:
        body = _sessions_text(shown, view, width)
    elif not isinstance(shown, list) and shown.session is not None:
        body = _usage_text(shown, width)
    else:
        body = Text("\n".join(map(printable, _plain_lines(shown))))
    note = _note(shown, view)
    return Group(body, Text(note, style="dim")) if note else body


def _usage_text(usage: ContextUsage, width: int) -> RenderableType:
    """Return the context view's lines, with bars colored by severity."""
    from rich.text import Text

    from sidecar.text.tables import wrap_line

    lines = [to_encodable(wrap_line(line, width)) for line in usage.text.split("\n")]
    text = Text("\n".join(lines))
    text.highlight_regex(r"(?m)^\S.*?(?=  |$)", "dim")
    text.highlight_regex(r"(?m)[▏▎▍▌▋▊▉█]+$", "cyan")
    first, found = lines[0], _STYLES[usage.severity]
    bar = len(first) - len(first.rstrip("▏▎▍▌▋▊▉█"))
    text.stylize(f"bold {found}", len("Context"), len(first) - bar)
    text.stylize(found, len(first) - bar, len(first))
    return text


def _sessions_text(rows: list[SessionRow], view: SessionsView, width: int) -> RenderableType:
    """Return a table of sessions. Only their names are shortened."""
    from rich.text import Text

    from sidecar.text.tables import GAP, align_cells, align_columns
    from sidecar.workspace.views import all_row_cells, size_text

    cells = all_row_cells(rows, view.workspace.costs, datetime.now(UTC))
    more = ["agent"] * (width >= _AGENT_WIDTH) + ["id"] * (width >= _WIDE)
    table, ends = [("  session", "context", "cost", "updated")], [["model", *more]]
    for row, each in zip(rows, cells, strict=True):
        name = f"{'●' if row.shown else ' '} {printable(row.label)}"
        size, age = size_text(row, 16 if width >= _WIDE else 8), each.age.removesuffix(" ago")
        table.append((name, to_encodable(size), each.cost, age))
        last = {"agent": row.source, "id": printable(row.id[:8])}
        ends.append([each.model, *(last[column] for column in more)])
    aligned = align_columns(ends, left=len(more) + 1)
    whole = [(*cells, end) for cells, end in zip(table, aligned, strict=True)]
    head, *body = align_cells(whole, left=2, width=width, names=1)
    lines = [Text(GAP.join(head), "dim")]
    for row, (name, size, *numbers, age, end) in zip(rows, body, strict=True):
        line = Text(style="dim" if row.state == "ended" else "")
        line.append(to_encodable(name[0]), "green")
        line.append(to_encodable(name[1:]), "bold" if row.shown else "")
        line.append(GAP).append(size, _STYLES[row.severity])
        line.append(GAP).append(GAP.join(numbers))
        line.append(GAP).append(age, "green" if row.state == "running" else "")
        lines.append(line.append(GAP).append(end))
    return Text("\n", no_wrap=True, overflow="crop").join(lines)
