"""`token-sidecar statusline`: prints a status line for Claude Code, tmux or a shell prompt."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from sidecar.cli.group import folder_option
from sidecar.cli.output import print_json, print_styled, warn
from sidecar.text.printable import cost_text, percent_text, printable, usd_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.agents.claude_statusline import StatuslineInput
    from sidecar.agents.session_events import ReportedLimit, StoredSession
    from sidecar.config.settings import Settings
    from sidecar.conversations.context_protocol import ContextUsage
    from sidecar.cost.book import CostBook
    from sidecar.cost.ledger import Ledger
    from sidecar.workspace.spending import Costs
    from sidecar.workspace.state_folder import State

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

    Exit code: always 0. If there is nothing to show, the line is empty. If the input names no
    session, standard error says so.
    """
    from sidecar.agents.claude_statusline import read_input

    data = b"" if sys.stdin.isatty() else sys.stdin.buffer.read(_MAX_BYTES)
    chained = _run_chained(chain, data) if chain else ""
    if data.strip():
        sent = read_input(data)
        own = "" if sent is None else _claude_code_line(sent)  # never another session's line
        if not own:
            warn("the input names no session of Claude Code, so there is nothing to show")
    else:
        own = _session_line(folder)
    line = " · ".join(part for part in (chained, printable(own)) if part)
    if as_json:
        print_json({"text": line})
    else:
        print_styled(line)  # the chained command may use colors


def _claude_code_line(sent: StatuslineInput) -> str:
    from sidecar.agents.claude_statusline import save
    from sidecar.agents.readers.claude_code import AGENT
    from sidecar.config.load import load
    from sidecar.config.paths import state_dir
    from sidecar.conversations.context_protocol import SessionInfo
    from sidecar.conversations.context_rows import short_text
    from sidecar.workspace.state_folder import State
    from sidecar.workspace.views import format_session_cost

    with contextlib.suppress(OSError):  # the line is printed even if the disk is full
        save(state_dir(), sent)
    root = _existing_folder(sent.folder)
    named = sent.model.display_name if sent.model else None
    name = (named or sent.model_id or "")[:_MAX_NAME]
    if not (name or sent.session):
        return ""
    settings = load(root).settings
    limits = sent.rate_limits.reported() if sent.rate_limits else []
    with contextlib.closing(State()) as state:
        book = state.book(settings)
        session = _read_session(sent, settings, book.ledger)
        costs = _read_costs(state, settings, sent.session, root)
        sums = _ledger_texts(costs, book, AGENT, settings, limits)
        usage = _context_usage(sent, session, settings)
        cache = _cache_text(book, usage, session, settings) if costs.read else ""
    cost = format_session_cost(costs, SessionInfo.of(sent.session, AGENT, session.updated_at))
    if costs.session_usd(sent.session) is None:  # the ledger has no calls of this session
        own = sent.cost_usd
        cost = "" if own is None else f"{usd_text(own)} by Claude Code"
    is_unknown = session.tokens is None and sent.limit is None and not session.note
    share = sent.used_percentage if is_unknown else None
    size = short_text(usage, "percent") if share is None else f"~{percent_text(share)}"
    parts = [name, f"ctx {size}", cost, *sums, cache, costs.caps_text.rstrip(".")]
    return " · ".join(part for part in parts if part)


def _existing_folder(path: str | None) -> Path | None:
    with contextlib.suppress(OSError, ValueError):
        folder = Path(path or "").resolve(strict=True)
        return folder if path and folder.is_dir() else None
    return None


def _read_session(sent: StatuslineInput, settings: Settings, ledger: Ledger) -> StoredSession:
    """Return the session in the transcript that the input names, with the reported window.

    If the transcript cannot be read, the session contains only what the input reports.
    """
    from sidecar.agents.claude_statusline import is_same_model, with_window
    from sidecar.agents.folders import Places
    from sidecar.agents.reader_registry import agents_of, reader_of
    from sidecar.agents.readers.claude_code import AGENT
    from sidecar.agents.session_events import StoredSession
    from sidecar.agents.session_index import SessionIndex
    from sidecar.cost.ledger import LedgerError, MemoryLedger

    now, found = datetime.now(UTC), None
    path, places = sent.transcript_path, Places.of(settings.agents)
    reader = reader_of(AGENT)
    if path and AGENT in agents_of(settings.agents) and (store := reader.store_at(places, path)):
        try:
            found = SessionIndex(ledger).read_session(reader, places, store)
        except LedgerError:
            found = SessionIndex(MemoryLedger()).read_session(reader, places, store)
    session = found or StoredSession(id=sent.session, source=AGENT, updated_at=now)
    model = sent.model_id or session.model
    if sent.tokens is not None:  # newer than the transcript
        has_new_model = model and session.model and not is_same_model(model, session.model)
        session = msgspec.structs.replace(
            session,
            tokens=sent.tokens,
            quality="exact",
            model=model,
            limit=sent.needed_window or (None if has_new_model else session.limit),
        )
    return with_window(session, sent.window)


def _read_costs(state: State, settings: Settings, session: str, root: Path | None) -> Costs:
    """Return the session's cost in the ledger, and whether the ledger lacks any calls."""
    from sidecar.agents.reader_registry import Sources
    from sidecar.agents.session_index import find_unread
    from sidecar.cost.ledger import LedgerError
    from sidecar.workspace.spending import Costs, Spending

    costs = Costs(reading=False)
    sources = None if root is None else Sources.of(settings.agents, str(root))
    with contextlib.suppress(LedgerError):
        unread = None if sources is None else find_unread(state.book(settings), sources)
        costs.set_history(read=unread is None, unread=unread)
        uri = None if root is None else root.as_uri()
        spending = Spending(state, settings, uri, settings.model, root)
        costs.update(spending.stored_sums(session))
    return costs


def _ledger_texts(
    costs: Costs,
    book: CostBook,
    agent: str,
    settings: Settings,
    limits: Sequence[ReportedLimit] | None = None,
) -> list[str]:
    """Return today's cost, the current five-hour block, and the subscription's limits.

    The limits are read from the agent's files if `limits` is None.
    """
    from sidecar.agents.plan_limits import block_end, current_limits, end_of_block
    from sidecar.config.paths import state_dir
    from sidecar.conversations.context_rows import block_text, limit_name, limit_text
    from sidecar.cost.ledger import LedgerError
    from sidecar.workspace.usage_details import plan_limits

    texts, block, now = list[str](), None, datetime.now(UTC)
    spent, is_behind = costs.sums, not costs.read
    if spent.calls_today:
        today = None if "day" in spent.unknown else spent.day
        is_partial = is_behind or "day" in spent.partial
        texts.append(f"{cost_text(today, is_partial=is_partial)} today")
    end = end_of_block(limits or (), now) or block_end(agent, settings.agents, state_dir())
    with contextlib.suppress(LedgerError):
        block = book.current_block(agent, end, now)
        if block is not None:
            texts.append(f"block {block_text(block, now, is_behind=is_behind)}")
    if limits is None:
        limits = current_limits(agent, settings.agents, state_dir(), now)
    return texts + [
        f"{limit_name(limit, is_short=True)} {limit_text(limit, now)}"
        for limit in plan_limits(limits, block, now)
        if limit.resets_at is None or datetime.fromisoformat(limit.resets_at) > now
    ]


def _context_usage(
    sent: StatuslineInput, session: StoredSession, settings: Settings
) -> ContextUsage:
    from sidecar.counting.windows import find_agent_window
    from sidecar.models import catalogue
    from sidecar.models.window import NamedLimits
    from sidecar.workspace.sessions import stored_usage

    share = sent.used_percentage
    if session.tokens is None and share is not None and sent.limit and not session.note:
        tokens = int(sent.limit * share / 100)
        session = msgspec.structs.replace(session, tokens=tokens, quality="estimate")
    if session.tokens is not None and session.limit is None:
        catalogue.refresh()
    named = NamedLimits(transcript=session.limit)
    limit = find_agent_window(session.model or sent.model_id, settings, named)
    return stored_usage(session, limit, settings.context, None)


def _cache_text(
    book: CostBook, usage: ContextUsage, session: StoredSession, settings: Settings
) -> str:
    """Return until when the session's prompt is cached, as the status shows it."""
    from sidecar.conversations.context_protocol import SessionInfo
    from sidecar.workspace.status import cache_status
    from sidecar.workspace.usage_details import forecast

    info = SessionInfo.of(session.id, session.source, session.updated_at)
    usage, now = msgspec.structs.replace(usage, session=info), datetime.now(UTC)
    found = forecast(book, usage, now, is_running=session.state(now) == "running")
    status = cache_status(msgspec.structs.replace(usage, forecast=found), settings.cost, now)
    return status.text if status else ""


def _session_line(folder: Path) -> str:
    from sidecar.cli.sessions_view import SessionsView
    from sidecar.config.paths import find_root
    from sidecar.workspace.status import cache_status, context_status
    from sidecar.workspace.views import format_session_cost

    try:
        root = find_root(folder.resolve())
    except FileNotFoundError:  # the current folder was deleted
        return ""
    with SessionsView(root) as view:
        usage = view.usage()
        part = context_status(usage, "percent")
        if part is None:
            return ""
        session, costs = usage.session, view.workspace.costs
        parts = [usage.model or "", part.text]
        if usage.cost_usd is not None:
            parts.append(format_session_cost(costs, session))
        if session is not None and session.source != "protocol":
            book = view.services.spending(view.workspace).book
            settings = view.workspace.settings
            parts += _ledger_texts(costs, book, session.source, settings)
        if cache := cache_status(usage, view.workspace.settings.cost):
            parts.append(cache.text)
        parts.append(costs.caps_text.rstrip("."))
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
