"""`token-sidecar check`: checks files against their token budgets."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sidecar.cli.output import echo, print_problems, warn, with_progress
from sidecar.errors import BadParamsError

EXCEEDED = 1
INVALID = 2


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github", "markdown"]),
    default="text",
    show_default=True,
    help="Format of the report.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option(
    "--diff",
    "base",
    metavar="BASE",
    help="Also report how many tokens files have gained or lost since this git revision.",
)
@click.option(
    "--profile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --diff, price changes of agents' instructions by this file of `cost profile` "
    "(default: usage-profile.json of the project, else your own calls).",
)
@click.option(
    "--branch-cost",
    is_flag=True,
    help="With --format markdown, end with what your calls on the checked-out git branch have "
    "cost.",
)
@click.option("--model", help="Model for budgets without a model (default: the `model` setting).")
@click.option(
    "--stdin-name",
    metavar="PATH",
    default="-",
    help="Check standard input (`-`) against the budgets for this path.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read the configuration from FILE instead of the project's file.",
)
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Root folder of the project. Globs are relative to it.",
)
@click.option(
    "--no-cache", is_flag=True, help="Count all files again instead of using cached counts."
)
def check(
    paths: tuple[str, ...],
    form: str,
    as_json: bool,
    base: str | None,
    profile: Path | None,
    branch_cost: bool,
    model: str | None,
    stdin_name: str,
    config: Path | None,
    root: Path | None,
    no_cache: bool,
) -> None:
    """Check files against their token budgets.

    In folders, untracked files that git ignores are skipped. The current project's configuration
    applies to paths inside the project. For all other paths, the configuration of their own
    project applies. A folder that you name is also checked against its own configuration. With
    --config, FILE applies to all paths, and its globs are relative to --root (default: the
    current folder).

    Exit codes: 0 if all files are within their budgets; 1 if a budget is exceeded, a file
    with a budget cannot be counted, or git cannot list a folder's files; 2 if the arguments or
    the configuration are invalid.
    """
    from sidecar.budgets import check_report as formats
    from sidecar.config.paths import find_root
    from sidecar.workspace.check_paths import check_paths

    form = "json" if as_json else form
    if branch_cost and form != "markdown":
        raise click.UsageError("--branch-cost requires --format markdown")
    try:
        report, problems = check_paths(
            paths,
            model,
            base,
            stdin_name,
            config=config,
            root=root or (Path() if config else None),
            profile=profile,
            use_cache=not no_cache,
            checks_instructions=True,
            warn=warn,
            progress=with_progress,
        )
    except BadParamsError as error:
        raise click.UsageError(str(error)) from error
    has_errors = print_problems(problems)
    write = {
        "text": formats.as_text,
        "json": formats.as_json,
        "sarif": formats.as_sarif,
        "github": formats.as_github,
        "markdown": formats.as_markdown,
    }[form]
    if written := write(report):
        echo(written)
    if branch_cost:
        _print_branch_cost(find_root((root or Path(paths[0])).resolve()))
    warn(*map(formats.skipped_text, report.skipped), *report.notes)
    if has_errors:
        warn("budgets affected by the configuration errors above were not checked")
    is_invalid = report.has_unreadable or has_errors
    sys.exit(INVALID if is_invalid else EXCEEDED if report.is_exceeded else 0)


def _print_branch_cost(root: Path) -> None:
    """Print the cost of the branch that is checked out, as Markdown, or warn if it has none."""
    from sidecar.cli.ledger_updates import open_ledger, update_ledger, warn_of_unread
    from sidecar.workspace.spending import branch_cost
    from sidecar.workspace.views import format_branch_cost

    with open_ledger() as (book, loaded):
        unread = update_ledger(book, loaded.settings, root)
        cost = branch_cost(book, root)
    if cost is None:
        warn("the cost of the branch is unknown, because no git branch is checked out")
        return
    warn_of_unread(unread)
    if text := format_branch_cost(cost, is_unread=unread is not None):
        echo(f"\nThis branch has cost {text}.")
    else:
        warn("no calls are recorded on the git branch that is checked out")
