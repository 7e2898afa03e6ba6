"""`token-sidecar usage`: how full the context of a workspace's session is, as editors show it."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from sidecar.cli.options import workspace_option
from sidecar.cli.output import say, say_json, warn_of
from sidecar.context.usage import ContextUsage, SessionInfo, SessionRow
from sidecar.counting.count import number_text, tokens_text
from sidecar.errors import BadParamsError
from sidecar.text.printable import counted, percent_text
from sidecar.workspace.wording import NOT_READ

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.cli.sessions import SessionsView

POLL_SECONDS = 5.0
"""What changes without a word of the file system's is seen after so long."""

INTERRUPTED = 130
"""What a shell makes of a program that Ctrl-C ended: 128 and the number of SIGINT."""


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
        wrong = warn_of(view.problems)
        before: object = None
        try:
            for _ in _changes(view) if watch else ((),):
                found = view.rows() if every else view.usage(session)
                if found != before:
                    _show(found, as_json, session, view.cost)
                before = found
        except BadParamsError as error:
            raise click.UsageError(str(error)) from error
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
    sys.exit(2 if wrong else 0)


def _changes(view: SessionsView) -> Iterator[object]:
    """At once, and after each change of what sessions are read from."""
    from sidecar.workspace.file_watcher import Changes, FileWatcher

    yield ()
    changed: queue.SimpleQueue[Changes] = queue.SimpleQueue()
    FileWatcher().subscribe(partial(_paths_to_watch, view), changed.put, POLL_SECONDS)
    while True:
        with suppress(queue.Empty):  # on Windows a wait without end does not hear Ctrl-C
            yield changed.get(timeout=1.0)


def _paths_to_watch(view: SessionsView) -> tuple[str, ...]:
    """The agents' files, and where running servers share their conversations."""
    from sidecar.agents.watch import paths_to_watch

    settings, path = view.workspace.settings.agents, view.workspace.path
    shared = str(view.services.live.folder)
    return *paths_to_watch(settings, [str(path)] if path else []), shared


def _show(
    found: ContextUsage | list[SessionRow],
    as_json: bool,
    session: str | None,
    cost: Callable[[SessionInfo | None], str],
) -> None:
    if as_json:
        say_json(found)
    elif isinstance(found, list):
        say(*([_row_text(row, cost) for row in found] or ["No sessions found for this workspace."]))
    else:
        say(_usage_text(found, session, cost(found.session)))


def _usage_text(found: ContextUsage, session: str | None, cost: str) -> str:
    if found.session is None and session is not None:
        return f"No session {session} in this workspace; --all lists the known ones."
    if found.session is None:
        return (
            "No conversation is known here. Coding agents' sessions are picked up automatically, "
            "chat plugins' while the editor runs or where the plugin keeps them."
        )
    if cost == NOT_READ:
        cost += " (`token-sidecar cost` reads it)"
    parts = [_fill(found), found.model or "", cost]
    if found.turns is not None:
        parts.insert(1, counted(found.turns, "turn"))
    if found.session.source != "protocol":
        parts.append(found.session.source)
    parts_text = ", ".join(part for part in parts if part)
    return f"{found.session.id}: {parts_text}, as of {_time(found.session.updated_at)}"


def _fill(found: ContextUsage) -> str:
    if found.tokens is None:
        return found.note or "size unknown"
    method = found.method or "estimate"
    if found.percent is None:
        return tokens_text(found.tokens, method)
    tokens, share = number_text(found.tokens, method), percent_text(found.percent)
    return f"{tokens} of {found.usable:,} usable tokens ({share})"


def _row_text(row: SessionRow, cost: Callable[[SessionInfo | None], str]) -> str:
    size = row.note or "size unknown"
    if row.tokens is not None:
        share = "" if row.percent is None else f" ({percent_text(row.percent)})"
        size = tokens_text(row.tokens, row.method or "estimate") + share
    usd = cost(SessionInfo(id=row.id, source=row.source, updated_at=row.updated_at))
    parts = (row.source, row.id, row.state, size, row.model, usd, row.title)
    return f"{_time(row.updated_at)}  " + ", ".join(part for part in parts if part)


def _time(at: str) -> str:
    """To the second, on this machine's clock; what is no time stays as it is."""
    try:
        return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return at
