"""`token-sidecar serve`: run the language server on stdio."""

from __future__ import annotations

import sys

import click


@click.command()
@click.option(
    "--stdio", is_flag=True, help="Has no effect: standard input and output are the only transport."
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="WARNING",
    show_default=True,
    help="Lowest level to log on standard error. Document text is never logged.",
)
def serve(stdio: bool, log_level: str) -> None:  # noqa: ARG001 - clients pass --stdio
    """Run the language server on standard input and output.

    Editors start this command; docs/how-to describes how to set them up.

    Exit codes: 0 after `shutdown` and `exit`; 1 otherwise.
    """
    from sidecar.server.run import run

    sys.exit(run(log_level.upper()))
