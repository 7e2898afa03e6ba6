"""`token-sidecar statusline`: one line for Claude Code's status line, tmux or a prompt."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.cli.options import workspace_option
from sidecar.cli.output import say_json, say_styled
from sidecar.text.printable import counted, percent_text, printable, usd_text

if TYPE_CHECKING:
    from sidecar.config.settings import Context
    from sidecar.workspace.statuslines import Quota, RateLimits, StatuslineInput

CHAIN_SECONDS = 5.0
_MOST_NAME = 100
_MOST_PERCENT = 10_000
_MOST_BYTES = 1 << 20


@click.command()
@workspace_option("Workspace folder when there is no input")
@click.option(
    "--chain", metavar="COMMAND", help="Also run this status line command and print its line first."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object with the line as `text`."
)
def statusline(workspace: Path, chain: str | None, as_json: bool) -> None:
    """Print one line: how full the context is and what the session cost.

    Reads the JSON that Claude Code passes to status line commands, and keeps the window, the
    percentage and the plan's limits for the editor. Without input, shows the current session of the
    workspace. Always exits with 0, so that a failure leaves the status line empty.
    """
    from sidecar.workspace.statuslines import read_input

    data = b"" if sys.stdin.isatty() else sys.stdin.buffer.read(_MOST_BYTES)
    sent = read_input(data) if data.strip() else None
    first = _chained(chain, data) if chain else ""
    mine = _of_claude_code(sent) if sent is not None else _live(workspace.resolve())
    line = " · ".join(part for part in (first, printable(mine)) if part)
    if as_json:
        say_json({"text": line})
    else:
        say_styled(line)  # colours are meant in the person's own line, not in a model's name


def _of_claude_code(sent: StatuslineInput) -> str:
    """The line of what Claude Code says; its numbers are kept for the editor."""
    from sidecar.config.load import load
    from sidecar.config.paths import state_dir
    from sidecar.workspace.statuslines import keep

    with contextlib.suppress(OSError):  # a full disk must not take the line away
        keep(state_dir(), sent)
    folder = sent.workspace.project_dir or sent.cwd
    root = Path(folder) if folder and os.path.isdir(folder) else None
    settings = load(root).settings.context
    name = (sent.model.display_name or sent.model.id or "")[:_MOST_NAME]
    parts = [name, f"ctx {_fill(sent, settings)}"]
    if sent.cost_usd is not None:
        parts.append(usd_text(sent.cost_usd))
    return " · ".join([part for part in parts if part] + _quotas(sent.rate_limits))


def _fill(sent: StatuslineInput, settings: Context) -> str:
    """How full the context is; estimated where the percentage alone is named, which is rounded."""
    from sidecar.context.window import Window, resolve_limit

    tokens, limit, share = sent.tokens, sent.limit, sent.used_percentage
    if limit is None:
        if tokens is not None:
            return counted(tokens, "token")
        return "?" if share is None else f"~{percent_text(share)}"
    mark = "" if tokens is not None else "~"
    if tokens is None and share is not None:
        tokens = int(limit * share / 100)
    window = Window(resolve_limit(transcript=limit, setting=settings.limit), settings.reserve)
    return "?" if tokens is None else f"{mark}{percent_text(window.percent(tokens))}"


def _quotas(limits: RateLimits | None) -> list[str]:
    if limits is None:
        return []
    named: tuple[tuple[str, Quota | None], ...] = (
        ("5h", limits.five_hour),
        ("7d", limits.seven_day),
    )
    return [
        f"{name} {percent_text(quota.used_percentage)}"
        for name, quota in named
        if quota is not None
        and quota.used_percentage is not None
        and 0 <= quota.used_percentage <= _MOST_PERCENT
    ]


def _live(root: Path) -> str:
    """The line of the session that the editor would show; "" where there is none."""
    from sidecar.cli.sessions import SessionsView
    from sidecar.config.load import find_root
    from sidecar.workspace.status import context_status

    with SessionsView(find_root(root)) as view:
        usage = view.usage()
        cost = view.cost(usage.session)
    part = context_status(usage, "ok", "percent")
    if part is None:
        return ""
    parts = [usage.model or "", part.text]
    if usage.cost_usd is not None:
        parts.append(cost)
    return " · ".join(filter(None, parts))


def _chained(command: str, data: bytes) -> str:
    """The first line that another status line prints for the same input; "" where it fails."""
    try:
        done = subprocess.run(  # noqa: S602 - the person's own command, as Claude Code would run it
            command, shell=True, input=data, capture_output=True, timeout=CHAIN_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return lines[0] if lines else ""
