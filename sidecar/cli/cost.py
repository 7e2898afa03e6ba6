"""`token-sidecar cost`: reports the cost of all calls recorded by editors and agents."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from sidecar.cli.group import also_option, workspace_option
from sidecar.cli.ledger_updates import (
    exit_on_errors,
    open_ledger,
    try_to_update_costs,
    update_ledger,
    updated_book,
    warn_of_unread,
)
from sidecar.cli.output import (
    flush_output,
    print_json,
    print_lines,
    print_problems,
    to_encodable,
    warn,
    write_page,
)
from sidecar.cli.team import ship
from sidecar.models.names import short_names
from sidecar.text.printable import (
    HOW_RECORDED,
    compact_number,
    cost_text,
    counted,
    printable,
    usd_text,
)
from sidecar.text.tables import GAP, align_cells, draw_bar

if TYPE_CHECKING:
    from rich.console import Console

    from sidecar.config.settings import Settings
    from sidecar.cost.book import CostBook
    from sidecar.cost.cost_protocol import (
        CostDetailParams,
        CostKey,
        CostReport,
        CostRow,
        FileCost,
        Period,
    )
    from sidecar.cost.export import ExportFormat
    from sidecar.cost.team import TeamStore
    from sidecar.cost.vendor_bill import Vendor, VendorBill

Command = TypeVar("Command", bound="Callable[..., Any]")

NO_CALLS = f"No calls recorded yet. {HOW_RECORDED}"
NONE_MATCH = "No calls match; run `token-sidecar cost` without options to see all recorded calls."
_BARS = ((120, 24), (100, 12), (0, 8))
"""The minimum terminal width for each width of the bars, widest first."""
_FEWEST_FIELDS = 3
"""Bars are left out if there is not enough room for this many columns of numbers beside them."""
_FIELD_TITLES = {
    "calls": "calls",
    "prompt_tokens": "prompt",
    "completion_tokens": "completion",
    "cache_read_tokens": "cache read",
    "cache_write_tokens": "cache write",
}


until_option = click.option(
    "--until",
    metavar="WHEN",
    help="Only calls until this time, inclusive; same formats as --since.",
)


def scope_options(command: Command) -> Command:
    """Decorate a command with the options that select calls."""
    for option in (
        click.option(
            "--agent",
            metavar="NAME",
            help="Only calls from this coding agent; `protocol` selects calls from editor plugins.",
        ),
        click.option(
            "--branch",
            metavar="NAME",
            help="Only calls made while this git branch was checked out.",
        ),
        click.option(
            "--workspace",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="Only calls from this workspace (default: all).",
        ),
        until_option,
        click.option(
            "--since",
            metavar="WHEN",
            help="Only calls since this time: 2026-11-21, 2026-11-21T10:30, 12h, 7d or 2w ago, "
            "today or yesterday.",
        ),
    ):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@click.option(
    "--by",
    metavar="KEYS",
    help="How to group calls, separated by commas: model, category, session, day, week, month, "
    "block (five hours), agent, workspace, branch, cache-loss; with --team, also user and team "
    "(default: model,category).",
)
@scope_options
@click.option(
    "--html",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the report to FILE, as a page with charts.",
)
@click.option("--team", is_flag=True, help="Report the calls in your team's store ([team] store).")
@also_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def cost(
    context: click.Context,
    /,
    by: str | None,
    html: str | None,
    team: bool,
    also: tuple[Path, ...],
    as_json: bool,
    **scope: Any,
) -> None:
    """Report the cost of model calls, as a table on a terminal and as plain lines elsewhere.

    Calls without a known price are listed as `unpriced`.

    Exit codes: 0; 2 if the options or the configuration are invalid, or the ledger is
    unreadable.
    """
    if context.invoked_subcommand is not None:
        return
    if team and (scope["workspace"] or scope["branch"] or also):
        raise click.UsageError("--team cannot be combined with --workspace, --branch or --also")
    with open_ledger() as (book, loaded):
        settings = loaded.settings
        params = _build_params(scope, by, team=team)
        if team and html is not None:
            write_page(_team_page(settings, scope), html)
            return
        if team:
            report = _read_team(settings, params, scope["agent"])
        else:
            with updated_book(book, settings, scope["workspace"], also) as calls:
                if html is not None:
                    write_page(_ledger_page(calls, settings, params, scope), html)
                    return
                with_labels = sys.stdout.isatty() and not as_json
                report = _read_ledger(calls, settings, params, scope, with_labels=with_labels)
    if as_json:
        note = {"note": report.note} if report.note else {}
        print_json({"rows": report.rows, "totals": report.totals, **note})
    elif not report.rows and team:
        print_lines("The team's store contains no matching calls.")
    elif not report.rows:
        print_lines(NONE_MATCH if any(scope.values()) else NO_CALLS)
    elif sys.stdout.isatty():
        _print_table(report, params)
        print_lines(_scope_text(scope, team=team))
    else:
        print_lines(*_plain_lines(report))
        print_lines(_scope_text(scope, team=team), err=True)  # not data, so not in the pipe


def _scope_text(scope: dict[str, Any], *, team: bool) -> str:
    """Return which calls a report covers, such as `Calls in ~/site, from 2026-11-21 to now.`"""
    from sidecar.cost.days import range_text

    workspace: Path | None = scope["workspace"]
    place = "all workspaces" if workspace is None else _path_text(workspace.resolve().as_uri())
    of_agent = f" of {scope['agent']}" if scope["agent"] else ""
    on_branch = f" on branch {printable(scope['branch'])}" if scope["branch"] else ""
    period = range_text(scope["since"], scope["until"], UTC if team else None)
    return f"Calls{of_agent}{on_branch} in {'the team' if team else place}, {period}."


def _read_ledger(
    book: CostBook,
    settings: Settings,
    params: CostDetailParams,
    scope: dict[str, Any],
    *,
    with_labels: bool,
) -> CostReport:
    from sidecar.agents.plan_limits import block_ends
    from sidecar.config.paths import state_dir

    folders = _workspace_paths(book, scope["workspace"])
    ends = block_ends(params.by, settings.agents, state_dir())
    report = book.detail(params, agent=scope["agent"], folders=folders, block_ends=ends)
    if with_labels and "session" in params.by:
        return _name_sessions(report, _session_labels(book, settings, params, scope))
    return report


def _session_labels(
    book: CostBook, settings: Settings, params: CostDetailParams, scope: dict[str, Any]
) -> dict[str, str]:
    """Return session labels for the workspace, or for all workspaces."""
    from sidecar.cli.sessions_view import SessionsView
    from sidecar.config.paths import find_root

    workspace: Path | None = scope["workspace"]
    with SessionsView(find_root((workspace or Path.cwd()).resolve())) as view:
        labels = view.labels()
    if workspace is not None:
        return labels
    return _labels_of_all_workspaces(book, settings, params, scope["agent"]) | labels


def _labels_of_all_workspaces(
    book: CostBook, settings: Settings, params: CostDetailParams, agent: str | None
) -> dict[str, str]:
    """Return agents' session labels for the workspaces in a report."""
    from sidecar.cli.sessions_view import labels_in_folders
    from sidecar.workspace.workspace import path_of

    by_workspace = msgspec.structs.replace(params, by=("workspace",))
    rows = book.detail(by_workspace, agent=agent).rows
    paths = [path_of(row.workspace) for row in rows if isinstance(row.workspace, str)]
    folders = [Path(path) for path in paths if path]
    return labels_in_folders(book.ledger, settings.agents, folders)


def _name_sessions(report: CostReport, labels: dict[str, str]) -> CostReport:
    """Return a report with session labels. Ids without a label are shortened."""
    from sidecar.text.printable import is_generated_id

    def name(session: str) -> str:
        return labels.get(session) or (session[:8] if is_generated_id(session) else session)

    rows = [
        msgspec.structs.replace(row, session=name(row.session)) if row.session else row
        for row in report.rows
    ]
    return msgspec.structs.replace(report, rows=rows)


def _plain_lines(report: CostReport) -> list[str]:
    """Return a report's lines, with URIs replaced by paths."""
    lines = report.text.split("\n")
    for index, row in enumerate(report.rows):
        if isinstance(row.workspace, str):
            uri, path = printable(row.workspace), printable(_path_text(row.workspace))
            lines[index] = lines[index].replace(uri, path, 1)
    return lines


def _read_team(settings: Settings, params: CostDetailParams, agent: str | None) -> CostReport:
    with _open_store(settings) as store:
        report = store.report(params, agent)
    if report.note:
        warn(report.note)
    return report


def _open_store(settings: Settings) -> TeamStore:
    from sidecar.config.paths import STORED_LIST, state_dir
    from sidecar.cost.prices import Prices
    from sidecar.cost.team import TeamStore

    return TeamStore(settings.team, Prices(settings.prices, state_dir() / STORED_LIST))


def _check_agent(name: str | None) -> None:
    """Raise UsageError if there is no agent of this name."""
    from sidecar.config.checks import similar_agents
    from sidecar.known_agents import all_agents

    if name and name not in (*all_agents(), "protocol"):
        near = similar_agents([name])
        hint = (
            f"did you mean {near[0]}?"
            if near
            else f"known agents: {', '.join(sorted(all_agents()))}"
        )
        raise click.UsageError(f"unknown agent {name}; {hint}")


@cost.command()
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl"]),
    default="csv",
    show_default=True,
    help="Output format; `jsonl` is one JSON object per line.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to FILE instead of standard output.",
)
@also_option
@scope_options
def export(form: ExportFormat, output: Path | None, also: tuple[Path, ...], **scope: Any) -> None:
    """Export individual calls as CSV or JSON Lines.

    The rows contain numbers, ids and times, but no text.
    """
    from sidecar.cost.export import write_calls
    from sidecar.cost.sums import read_events

    with (
        open_ledger() as (book, loaded),
        updated_book(book, loaded.settings, scope["workspace"], also) as calls,
    ):
        folders = _workspace_paths(book, scope["workspace"])
        wanted = calls.scope(_build_params(scope), scope["agent"], folders)
        events = read_events(calls.ledger, wanted)
        if output is None:
            with flush_output():
                write_calls(events, sys.stdout, form)
            return
        try:
            with output.open("w", encoding="utf-8", newline="") as stream:
                write_calls(events, stream, form)
        except OSError as error:
            raise ValueError(f"cannot write {output}: {error.strerror or error}") from error
    print_lines(f"Wrote {output}.", err=True)


@cost.command()
@workspace_option("Workspace folder")
@click.option(
    "--days",
    type=click.IntRange(1, 3_650),
    default=30,
    show_default=True,
    help="Number of days to summarize.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write (default: usage-profile.json in the workspace folder).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the profile instead of writing it.")
def profile(root: Path, days: int, output: Path | None, as_json: bool) -> None:
    """Summarize how agents call models, for `check --diff` in CI.

    The profile has the number of calls by agent and model, and how many of them read their first
    tokens from a cache. It has no ids, paths, times or text.

    Exit codes: 0; 2 if the configuration is invalid, the ledger is unreadable, or FILE cannot be
    written.
    """
    from sidecar.cost.prompt_file_costs import FILE_NAME
    from sidecar.workspace.spending import profile_workspace

    with open_ledger() as (book, loaded):
        warn_of_unread(update_ledger(book, loaded.settings, root))
        found = profile_workspace(book, root, days)
    if as_json:
        print_json(found)
        return
    target = output or root / FILE_NAME
    try:
        target.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    except OSError as error:
        raise click.UsageError(f"cannot write {target}: {error.strerror or error}") from error
    calls = counted(sum(usage.calls for usage in found.agents), "call")
    print_lines(f"Wrote {target}: {calls} in {counted(days, 'day')}.", err=True)


@cost.command()
@workspace_option("Workspace folder")
@click.option("--since", metavar="WHEN", help="Only calls since this time (default: 30 days ago).")
@until_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def files(root: Path, since: str | None, until: str | None, as_json: bool) -> None:
    """Report the cost of prompt files.

    Agents send these files with every request. Examples are AGENTS.md, rules,
    memory files, and CLAUDE.md with the files that it imports.

    Exit codes: 0; 2 if the configuration is invalid or the ledger is unreadable.
    """
    from sidecar.cli.sessions_view import SessionsView

    with open_ledger() as (book, loaded):
        warn_of_unread(update_ledger(book, loaded.settings, root))
    with exit_on_errors(), SessionsView(root) as view:
        # The problems in the user's own configuration have already been printed.
        has_errors = print_problems(
            problem for problem in view.problems if problem not in loaded.problems
        )
        rows = view.files(since, until)
    if as_json:
        print_json({"files": rows})
    elif not rows:
        print_lines("No costs are recorded for the prompt files of this workspace.")
    else:
        print_lines(*(f"{_path_text(row.uri, root)}: {row.text}" for row in rows))
    sys.exit(2 if has_errors else 0)


def _path_text(uri: str, root: Path | None = None) -> str:
    """Return a URI's path, relative to `root` or to the home folder if possible."""
    from sidecar.workspace.workspace import path_of

    path = path_of(uri)
    if path is None:
        return uri
    if root is not None and path.is_relative_to(root):
        return str(path.relative_to(root))
    home = Path.home()
    return f"~/{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else str(path)


def _workspace_paths(book: CostBook, workspace: Path | None) -> tuple[str, ...]:
    from sidecar.workspace.spending import repository_folders

    return () if workspace is None else repository_folders(book, workspace)


@cost.command()
@click.option(
    "--from",
    "reports",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A report of usage or costs that you exported from the vendor. Give both for tokens and "
    "amounts.",
)
@click.option(
    "--api",
    "vendor",
    # Written out, because importing them would slow down every help text.
    type=click.Choice(["anthropic", "openai"]),
    help="Request the reports from this vendor's admin API instead. The key is read from "
    "ANTHROPIC_ADMIN_API_KEY or OPENAI_ADMIN_KEY.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 366),
    default=30,
    show_default=True,
    help="Number of days to request with --api. Today is not included.",
)
@also_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reconcile(
    reports: tuple[Path, ...],
    vendor: Vendor | None,
    days: int,
    also: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Compare recorded calls with a vendor's bill.

    Lists each UTC day and model that differs, and how much of the difference is due to tokens that
    only one side has. Reports may overlap.

    Exit codes: 0 if everything agrees; 1 if anything differs; 2 if a report cannot be read or the
    ledger is unreadable.
    """
    from sidecar.cost.vendor_bill import read_bill, read_recorded
    from sidecar.cost.vendor_bill import reconcile as compare

    if bool(reports) == bool(vendor):
        raise click.UsageError("give either --from with a file, or --api with a vendor")
    with open_ledger() as (book, loaded):
        bill = (
            _request_bill(vendor, days)
            if vendor
            else read_bill((str(path), _report_text(path)) for path in reports)
        )
        with (
            updated_book(book, loaded.settings, None, also) as calls,
            calls.report_reader() as connection,
        ):
            found = compare(bill, read_recorded(connection, bill), calls.prices)
    if as_json:
        print_json(found)
    else:
        print_lines(*found.text.splitlines())
    sys.exit(0 if found.agrees else 1)


def _report_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(f"cannot read {path}: {reason}") from error


def _request_bill(vendor: Vendor, days: int) -> VendorBill:
    from sidecar.cost.days import local_day
    from sidecar.cost.vendor_bill import APIS, request_bill

    api = APIS[vendor]
    key = os.environ.get(api.variable, "").strip()
    if not key:
        raise ValueError(
            f"the environment variable {api.variable} is not set; set it to your organization's "
            "admin key, or export a report and use --from"
        )
    today = local_day(datetime.now(UTC), UTC)
    return request_bill(vendor, key, today - days, today - 1, api.base)


@cost.command("update-prices")
@click.option(
    "--url", help="Address of another price list to download, in the JSON format of genai-prices."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def update_prices(url: str | None, as_json: bool) -> None:
    """Download the latest price list from genai-prices.

    The list is stored in the state folder. New prices also apply to past calls. Apart from
    `cost reconcile --api`, no other command uses the network unless your settings contain an
    endpoint, a collector or a team store.
    """
    from sidecar.config.paths import STORED_LIST, state_dir
    from sidecar.cost.prices import update_prices as fetch

    target = state_dir() / STORED_LIST
    with exit_on_errors():
        models = fetch(target, url)
    if as_json:
        print_json({"models": models, "file": str(target)})
    else:
        print_lines(f"Prices for {models:,} models written to {target}")
    try_to_update_costs()


def _build_params(
    scope: dict[str, Any], by: str | None = None, *, team: bool = False
) -> CostDetailParams:
    from sidecar.cost.cost_protocol import DEFAULT_KEYS, CostDetailParams
    from sidecar.cost.reports import ordered_keys

    if not team:  # team members may use newer versions, which know more agents
        _check_agent(scope["agent"])
    folder: Path | None = scope["workspace"]
    keys = DEFAULT_KEYS if by is None else [key.strip() for key in by.split(",")]
    return CostDetailParams(
        workspace=None if folder is None else folder.resolve().as_uri(),
        branch=scope["branch"],
        since=scope["since"],
        until=scope["until"],
        by=tuple(ordered_keys(keys, team=team)),
        scope="team" if team else "user",
    )


def _ledger_page(
    book: CostBook, settings: Settings, params: CostDetailParams, scope: dict[str, Any]
) -> str:
    from sidecar.cost.cost_page import LedgerSource, whole_page

    workspace: Path | None = scope["workspace"]
    files: dict[Period, list[FileCost]] = {}
    if workspace is None:
        labels = _labels_of_all_workspaces(book, settings, params, scope["agent"])
    else:
        labels, files = _names_and_files(workspace, scope["since"], scope["until"])
    with book.report_reader() as connection:
        source = LedgerSource(
            connection=connection,
            prices=book.prices,
            scope=book.scope(params, scope["agent"], _workspace_paths(book, workspace)),
            now=datetime.now(UTC),
            label_of=labels.get,
        )
        return whole_page(source, files, since=scope["since"], until=scope["until"])


def _team_page(settings: Settings, scope: dict[str, Any]) -> str:
    from sidecar.cost.cost_page import whole_page
    from sidecar.cost.team import TeamSource

    with _open_store(settings) as store:
        source = TeamSource(store=store, agent=scope["agent"], now=datetime.now(UTC), zone=UTC)
        return whole_page(source, {}, since=scope["since"], until=scope["until"])


def _names_and_files(
    workspace: Path, since: str | None, until: str | None
) -> tuple[dict[str, str], dict[Period, list[FileCost]]]:
    """Return a workspace's session labels, and the costs of its prompt files in each period."""
    from sidecar.cli.sessions_view import SessionsView
    from sidecar.config.paths import find_root
    from sidecar.cost.cost_page import STANDING_PERIODS, Choice
    from sidecar.cost.days import FIRST_DAY

    choices = [*map(Choice, STANDING_PERIODS)]
    choices.append(Choice("custom", since=since or "", until=until or ""))
    today = datetime.now().astimezone().date()
    with SessionsView(find_root(workspace.resolve())) as view:
        files: dict[Period, list[FileCost]] = {}
        labels = view.labels()
        for choice in choices:
            first, last = choice.days(today)
            files[choice.period] = view.files(first or FIRST_DAY, last)
        return labels, files


def _print_table(report: CostReport, params: CostDetailParams) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    names = _row_names(report, params)
    _print_rows(console, report, params, names)
    if any(row.reported_cost_usd for row in report.rows):
        console.print("* cost reported by the vendor, at least in part", style="dim")
    for row, keys in zip(report.rows, names, strict=True):
        label = " ".join(keys)
        if row.listed_cost_usd is not None:
            costs = usd_text(row.reported_cost_usd), usd_text(row.listed_cost_usd)
            console.print(f"{label}: reported {costs[0]}, list price {costs[1]}", style="dim")
        if row.agent_cost_usd is not None:
            console.print(
                f"{label}: {usd_text(row.agent_cost_usd)} at the agent's prices, counting only "
                "sessions with a cost in the agent's files",
                style="dim",
            )
    if report.basis:
        console.print(report.basis, style="dim")
    if report.totals.unpriced_tokens:
        console.print(
            f"{report.totals.unpriced_tokens:,} tokens have no known price; add a [[price]] to "
            "your own configuration.",
            style="dim",
        )


def _print_rows(
    console: Console, report: CostReport, params: CostDetailParams, names: list[list[str]]
) -> None:
    from rich.text import Text

    width = console.width
    for bar in (next(bar for least, bar in _BARS if width >= least), 0):
        rows = _table_rows(report, params, names, bar)
        table = align_cells(rows, left=len(params.by), width=width)
        if len(table[0]) - len([*params.by, "cost", "bar"]) >= _FEWEST_FIELDS:
            break
    lines = [GAP.join(cells).rstrip() for cells in table]
    for index, line in enumerate(lines):
        is_total = index == len(report.rows) + 1
        text = Text(to_encodable(line), "bold" if is_total else "" if index else "dim")
        text.highlight_regex(r"[█▏▎▍▌▋▊▉]+$", "cyan")
        console.print(text, soft_wrap=True)


def _table_rows(
    report: CostReport, params: CostDetailParams, names: list[list[str]], bar_width: int
) -> list[list[str]]:
    """Return the heads, the rows and the total.

    The last column contains the bars. It is empty if `bar_width` is 0.
    """
    from sidecar.cost.reports import total_cost

    totals = report.totals
    fields = [*_FIELD_TITLES]
    if not totals.cache_write_tokens:
        fields.remove("cache_write_tokens")
    heads = [*params.by, *map(_FIELD_TITLES.__getitem__, fields), "cost", ""]
    most = max(row.cost_usd or 0.0 for row in report.rows) or 1.0
    shares = [(row.cost_usd or 0.0) / most for row in report.rows]
    bars = [draw_bar(share, bar_width) if bar_width else "" for share in shares]
    rows = [
        [*keys, *_number_cells(row, fields), bar]
        for row, keys, bar in zip(report.rows, names, bars, strict=True)
    ]
    if len(rows) == 1:
        return [heads, *rows]
    numbers = [compact_number(getattr(totals, field)) for field in fields]
    names_left = [""] * (len(params.by) - 1)
    return [heads, *rows, ["total", *names_left, *numbers, total_cost(report), ""]]


def _row_names(report: CostReport, params: CostDetailParams) -> list[list[str]]:
    """Return the text to display for the keys of each row."""
    models = short_names(row.model for row in report.rows if row.model)
    return [[_key_text(row, key, models) for key in params.by] for row in report.rows]


def _key_text(row: CostRow, key: CostKey, models: dict[str, str]) -> str:
    from sidecar.cost.cost_protocol import row_field

    value = getattr(row, row_field(key)) or "(none)"
    if key == "workspace":
        value = _path_text(value)
    return printable(models.get(value, value) if key == "model" else str(value))


def _number_cells(row: CostRow, fields: list[str]) -> list[str]:
    numbers = [compact_number(getattr(row, field)) for field in fields]
    if row.note:
        numbers[1] += f" {row.note}"
    priced = cost_text(row.cost_usd, is_partial=row.partial)
    return [*numbers, priced + ("*" if row.reported_cost_usd else "")]


cost.add_command(ship)
