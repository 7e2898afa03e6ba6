"""`token-sidecar usage`: the view of a session's context that editors show, or all sessions."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from sidecar.cli.group import workspace_option
from sidecar.cli.output import print_json, print_lines, print_problems
from sidecar.errors import BadParamsError

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.cli.sessions import SessionsView
    from sidecar.context.usage import ContextUsage, SessionRow

POLL_SECONDS = 5.0
"""Longest time until a change is noticed that the file system does not report."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it: 128 and the number of SIGINT."""

READ_COST = "Run `token-sidecar cost` to read the newest calls of coding agents."
READ_SESSIONS = (
    "Older sessions may be missing. Run `token-sidecar cost` to read all sessions of coding agents."
)


@click.command()
@workspace_option("Workspace folder")
@click.option(
    "--session",
    metavar="ID",
    help="Session by its id or the beginning of it (default: the one the editor shows).",
)
@click.option("--all", "every", is_flag=True, help="List all sessions of the workspace.")
@click.option("--watch", is_flag=True, help="Print again after every change, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line each time.")
def usage(workspace: Path, session: str | None, every: bool, watch: bool, as_json: bool) -> None:
    """Show how full the context of a coding agent's or chat plugin's session is.

    Conversations of chat plugins are known while their editor runs, or if the plugin keeps them
    (`persist`).

    Exit codes: 0, also without any session; 2 an error in the configuration; 130 Ctrl-C during
    --watch.
    """
    from sidecar.cli.sessions import SessionsView
    from sidecar.config.load import find_root

    with SessionsView(find_root(workspace.resolve())) as view:
        wrong = print_problems(view.problems)
        before: object = None
        try:
            for _ in _changes(view) if watch else ((),):
                shown = view.rows() if every else view.usage(session)
                if shown != before:
                    _show(shown, as_json, session, is_cost_read=view.workspace.costs.read)
                before = shown
        except BadParamsError as error:
            raise click.UsageError(str(error)) from error
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
    sys.exit(2 if wrong else 0)


def _changes(view: SessionsView) -> Iterator[object]:
    """Yield at once, and after each change of the files that sessions are read from."""
    from sidecar.workspace.file_watcher import Changes, FileWatcher

    yield ()
    changed: queue.SimpleQueue[Changes] = queue.SimpleQueue()
    FileWatcher().subscribe(partial(_paths_to_watch, view), changed.put, POLL_SECONDS)
    while True:
        with suppress(queue.Empty):  # on Windows, Ctrl-C does not end a wait without a timeout
            yield changed.get(timeout=1.0)


def _paths_to_watch(view: SessionsView) -> tuple[str, ...]:
    """Return the agents' folders, and where running servers share their conversations."""
    from sidecar.agents.watch import paths_to_watch

    settings, path = view.workspace.settings.agents, view.workspace.path
    shared = str(view.services.live.folder)
    return *paths_to_watch(settings, [str(path)] if path else []), shared


def _show(
    shown: ContextUsage | list[SessionRow],
    as_json: bool,
    session: str | None,
    *,
    is_cost_read: bool,
) -> None:
    if as_json:
        print_json(shown)
        return
    if isinstance(shown, list):
        sources = {row.source for row in shown}
        text = "\n".join(row.text for row in shown) or "No sessions found for this workspace."
    else:
        sources = {shown.session.source} if shown.session else set()
        is_missing = shown.session is None and session is not None
        text = f"No session {session} in this workspace; --all lists the known ones."
        text = text if is_missing else shown.text
    print_lines(*text.split("\n"))
    if sources - {"protocol"} and not is_cost_read:
        print_lines(READ_SESSIONS if isinstance(shown, list) else READ_COST)
