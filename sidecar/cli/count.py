"""`token-sidecar count`: its arguments."""

from __future__ import annotations

import sys

import click


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--model", help="Count for this model; default: the setting `model`.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def count(paths: tuple[str, ...], model: str | None, as_json: bool) -> None:
    """Print the tokens of each file at PATH (`-`: standard input), and of all together.

    In folders, what .gitignore excludes is left out, and so are symbolic links. Binary files are
    named on standard error and not counted; bytes that are not UTF-8 count as U+FFFD. Numbers that
    are not exact for the model begin with `~`.

    Exits 0; 2 where a PATH cannot be read or the configuration is wrong.
    """
    from sidecar.cli.counting import run

    sys.exit(run(paths, model, as_json))
