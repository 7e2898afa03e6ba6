"""`token-sidecar serve`: runs the language server on standard input and output."""

from __future__ import annotations

import sys

import click


@click.command()
@click.option(
    "--stdio", is_flag=True, help="Accepted for compatibility. The server always uses stdio."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="warning",
    show_default=True,
    help="Minimum level of messages on standard error. They never contain document text.",
)
def serve(stdio: bool, log_level: str) -> None:  # noqa: ARG001 - clients pass --stdio
    """Run the language server on standard input and output.

    Editors start this command. The how-to pages describe how to set up each editor.

    Exit codes: 0 after `shutdown` and `exit`; 1 otherwise.
    """
    from sidecar.server.run import run

    sys.exit(run(log_level.upper()))
