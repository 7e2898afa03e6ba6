"""`token-sidecar statusline`: prints a status line for Claude Code, tmux or a shell prompt."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.cli.group import folder_option
from sidecar.cli.output import print_json, print_styled
from sidecar.text.printable import cost_text, duration_text, percent_text, printable, usd_text

if TYPE_CHECKING:
    from sidecar.config.settings import Context, Settings
    from sidecar.cost.ledger import Ledger
    from sidecar.workspace.claude_statusline import RateLimits, StatuslineInput

CHAIN_SECONDS = 5.0
_MAX_NAME = 100
_MAX_BYTES = 1 << 20


@click.command()
@folder_option("folder", "Workspace folder to use when there is no input")
@click.option(
    "--chain",
    metavar="COMMAND",
    help="Another status line command to run. Its line is printed first.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object whose `text` is the line."
)
def statusline(folder: Path, chain: str | None, as_json: bool) -> None:
    """Print a session's context and cost, today's cost, and the five-hour block's cost.

    Claude Code passes its session as JSON on standard input. In this case, the line shows that
    session. Its window, percentage and plan limits are also stored for editors. Without input,
    the line shows the workspace's current session.

    Exit code: always 0. If there is nothing to show, the line is empty.
    """
    from sidecar.workspace.claude_statusline import read_input

    data = b"" if sys.stdin.isatty() else sys.stdin.buffer.read(_MAX_BYTES)
    status = read_input(data) if data.strip() else None
    chained = _run_chained(chain, data) if chain else ""
    own = _claude_code_line(status) if status else _session_line(folder)
    line = " · ".join(part for part in (chained, printable(own)) if part)
    if as_json:
        print_json({"text": line})
    else:
        print_styled(line)  # the chained command may use colors


def _claude_code_line(sent: StatuslineInput) -> str:
    from sidecar.config.load import load
    from sidecar.config.paths import state_dir
    from sidecar.workspace.claude_statusline import save

    with contextlib.suppress(OSError):  # the line is printed even if the disk is full
        save(state_dir(), sent)
    folder = sent.workspace.project_dir or sent.cwd
    root = Path(folder) if folder and os.path.isdir(folder) else None
    name = (sent.model.display_name or sent.model.id or "")[:_MAX_NAME]
    settings = load(root).settings
    parts = [name, f"ctx {_context_text(sent, settings.context)}"]
    if sent.cost_usd is not None:
        parts.append(usd_text(sent.cost_usd))
    limits = sent.rate_limits
    ends_at = limits.five_hour.reset if limits and limits.five_hour else None
    parts += _ledger_texts(settings, "claude-code", ends_at, transcript=sent.transcript_path)
    return " · ".join([part for part in parts if part] + _quota_texts(limits))


def _ledger_texts(
    settings: Settings,
    agent: str,
    ends_at: datetime | None = None,
    *,
    transcript: str | None = None,
    is_behind: bool = False,
) -> list[str]:
    """Return today's cost, and the cost and remaining time of the current five-hour block.

    The costs are lower bounds if `is_behind` is true, or if the transcript has calls that the
    ledger lacks.
    """
    from sidecar.config.paths import state_dir
    from sidecar.cost.ledger import FILE_NAME, LedgerError

    if not (state_dir() / FILE_NAME).exists():
        return []
    from sidecar.cost.book import CostBook
    from sidecar.cost.protocol import CostDetailParams

    book, texts = CostBook(state_dir(), settings.prices), []
    try:
        is_behind = is_behind or _has_unread(book.ledger, settings, agent, transcript)
        today = book.detail(CostDetailParams(since="today", by=("agent",)))
        if today.rows:
            is_unpriced = all(row.cost_usd is None for row in today.rows)
            cost = None if is_unpriced else today.totals.cost_usd
            is_partial = is_behind or any(row.unpriced for row in today.rows)
            texts.append(f"{cost_text(cost, is_partial=is_partial)} today")
        block = book.current_block(agent, ends_at)
    except LedgerError:
        return []
    finally:
        book.close()
    if block is not None:
        cost_so_far = cost_text(block.cost_usd, is_partial=is_behind or block.unpriced)
        left = duration_text(block.ends_at - datetime.now(UTC))
        texts.append(f"block {cost_so_far}, {left} left")
    return texts


def _has_unread(ledger: Ledger, settings: Settings, agent: str, transcript: str | None) -> bool:
    """Return whether a session file has calls missing from the ledger."""
    from sidecar.agents.places import Places
    from sidecar.agents.registry import reader_of
    from sidecar.workspace.session_index import SessionIndex

    if transcript is None:
        return False
    store = reader_of(agent).store_at(Places.of(settings.agents), transcript)
    return store is not None and SessionIndex(ledger).has_unread([store])


def _context_text(sent: StatuslineInput, settings: Context) -> str:
    from sidecar.context.occupancy import Window, resolve_limit
    from sidecar.context.protocol import ContextUsage
    from sidecar.context.usage import in_window
    from sidecar.context.view import short_text

    tokens, limit, share = sent.tokens, sent.limit, sent.used_percentage
    usage = ContextUsage(tokens=tokens, method="exact")
    if tokens is None and share is not None:
        if limit is None:
            return f"~{percent_text(share)}"
        usage = ContextUsage(tokens=int(limit * share / 100), method="estimate")
    if limit is not None:
        window = Window(resolve_limit(transcript=limit, setting=settings.limit), settings.reserve)
        usage = in_window(usage, window, settings.warn_at)
    return short_text(usage, "percent")


def _quota_texts(limits: RateLimits | None) -> list[str]:
    names = {300: "5h", 7 * 24 * 60: "7d"}
    reported = limits.reported() if limits else []
    return [f"{names[one.minutes]} {percent_text(one.used_percent)}" for one in reported]


def _session_line(folder: Path) -> str:
    from sidecar.cli.sessions import SessionsView
    from sidecar.config.load import find_root
    from sidecar.workspace.status import context_status
    from sidecar.workspace.views import format_session_cost

    try:
        root = find_root(folder.resolve())
    except FileNotFoundError:  # the current folder was deleted
        return ""
    with SessionsView(root) as view:
        usage = view.usage()
        cost = format_session_cost(view.workspace.costs, usage.session)
        is_behind = not view.workspace.costs.read
    part = context_status(usage, "percent")
    if part is None:
        return ""
    parts = [usage.model or "", part.text]
    if usage.cost_usd is not None:
        parts.append(cost)
    if usage.session is not None and usage.session.source != "protocol":
        parts += _ledger_texts(view.workspace.settings, usage.session.source, is_behind=is_behind)
    return " · ".join(filter(None, parts))


def _run_chained(command: str, data: bytes) -> str:
    try:
        result = subprocess.run(  # noqa: S602 - the user's own command, run as Claude Code would
            command, shell=True, input=data, capture_output=True, timeout=CHAIN_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = result.stdout.decode("utf-8", "replace").splitlines()
    return lines[0] if lines else ""
