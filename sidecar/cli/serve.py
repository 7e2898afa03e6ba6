"""`token-sidecar serve`: the language server on stdio."""

from __future__ import annotations

import sys

import click


@click.command()
@click.option("--stdio", is_flag=True, help="Accepted for clients that pass it; stdio is all.")
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="WARNING",
    show_default=True,
    help="What to log on stderr. Never the text of a buffer.",
)
def serve(stdio: bool, log_level: str) -> None:  # noqa: ARG001 - clients pass --stdio
    """Run the language server on standard input and output.

    An editor starts it; see docs/how-to for set-ups. Exits 0 after `shutdown` and `exit`, else 1.
    """
    from sidecar.server.run import run

    sys.exit(run(log_level.upper()))
