"""`token-sidecar check`: its arguments."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="How to report.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--diff", "base", metavar="BASE", help="Also report growth since this git revision.")
@click.option("--model", help="Count for this model where a rule names none.")
@click.option(
    "--stdin-name", metavar="PATH", default="-", help="Where standard input (`-`) belongs."
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read the budgets from FILE, and none of the project's own configuration.",
)
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The project's root, whatever lies in the folders below it.",
)
@click.option("--no-cache", is_flag=True, help="Remember nothing between runs.")
def check(
    paths: tuple[str, ...],
    form: str,
    as_json: bool,
    base: str | None,
    model: str | None,
    stdin_name: str,
    config: Path | None,
    root: Path | None,
    no_cache: bool,
) -> None:
    """Check files, and folders as .gitignore leaves them, against their token budgets.

    What git tracks is checked even where .gitignore names it. A path inside the current project
    is checked by that project's configuration, any other by its own; with --config all by FILE,
    whose globs are relative to --root (by default the current folder).

    Exits 1 when a budget is exceeded, or when a file that has one cannot be counted; 2 for wrong
    use or mistakes in the configuration.
    """
    from sidecar.cli.checking.verb import Where, checked

    where = Where(config, root or (Path() if config else None))
    form = "json" if as_json else form
    sys.exit(checked(paths, form, base, model, stdin_name, where, remembering=not no_cache))
