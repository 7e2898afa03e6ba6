"""`token-sidecar schema`: prints the JSON Schema of the custom LSP messages."""

from __future__ import annotations

import json

import click

from sidecar.cli.output import echo


@click.command()
@click.option(
    "--markdown",
    is_flag=True,
    help="Print the protocol reference as Markdown instead.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON Schema (the default).")
def schema(markdown: bool, as_json: bool) -> None:  # noqa: ARG001 - the default, spelled out
    """Print the JSON Schema of the custom LSP requests and notifications.

    Exit code: 0.
    """
    from sidecar.server.methods import json_schema, reference_page

    text = reference_page() if markdown else json.dumps(json_schema(), indent=2)
    echo(text.rstrip("\n"))
