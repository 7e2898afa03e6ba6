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
    from sidecar.context.protocol import ContextUsage, SessionRow

POLL_SECONDS = 5.0
"""How often to check for changes that the file system does not report."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT."""

READ_COST = "Run `token-sidecar cost` to read the newest calls of coding agents."
READ_SESSIONS = (
    "Older sessions may be missing. Run `token-sidecar cost` to read all sessions of coding agents."
)


@click.command()
@workspace_option("Workspace folder")
@click.option(
    "--session",
    metavar="ID",
    help="Session id, or its first characters (default: the session that the editor shows).",
)
@click.option("--all", "show_all", is_flag=True, help="List all sessions of the workspace.")
@click.option("--watch", is_flag=True, help="Print again after every change, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per update.")
def usage(workspace: Path, session: str | None, show_all: bool, watch: bool, as_json: bool) -> None:
    """Show how full the context of a session is.

    Sessions belong to coding agents or chat plugins. Those of chat plugins are shown while their
    editor runs, or if the plugin stores them (`persist`).

    Exit codes: 0, even without a session; 2 an error in the configuration; 130 Ctrl-C during
    --watch.
    """
    from sidecar.cli.sessions import SessionsView
    from sidecar.config.load import find_root

    with SessionsView(find_root(workspace.resolve())) as view:
        has_errors = print_problems(view.problems)
        before: object = None
        try:
            for _ in _wait_for_changes(view) if watch else ((),):
                shown = view.rows() if show_all else view.usage(session)
                if shown != before:
                    _print_usage(shown, as_json, session, is_cost_read=view.workspace.costs.read)
                before = shown
        except BadParamsError as error:
            raise click.UsageError(str(error)) from error
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
    sys.exit(2 if has_errors else 0)


def _wait_for_changes(view: SessionsView) -> Iterator[object]:
    from sidecar.workspace.file_watcher import Changes, FileWatcher

    yield ()
    changed: queue.SimpleQueue[Changes] = queue.SimpleQueue()
    FileWatcher().subscribe(partial(_paths_to_watch, view), changed.put, POLL_SECONDS)
    while True:
        with suppress(queue.Empty):  # on Windows, Ctrl-C does not end a wait without a timeout
            yield changed.get(timeout=1.0)


def _paths_to_watch(view: SessionsView) -> tuple[str, ...]:
    from sidecar.agents.registry import paths_to_watch

    settings, path = view.workspace.settings.agents, view.workspace.path
    shared = str(view.services.live.folder)
    return *paths_to_watch(settings, [str(path)] if path else []), shared


def _print_usage(
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
        text = shown.text
        if shown.session is None and session is not None:
            text = f"This workspace has no session {session}; `--all` lists its sessions."
    print_lines(*text.split("\n"))
    if sources - {"protocol"} and not is_cost_read:
        print_lines(READ_SESSIONS if isinstance(shown, list) else READ_COST)
