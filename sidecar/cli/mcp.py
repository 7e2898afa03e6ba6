"""`token-sidecar mcp`: tools for coding agents over the Model Context Protocol."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sidecar.cli.output import echo, print_json

MISSING = (
    "the MCP server needs an extra package; install it with `pip install 'token-sidecar[mcp]'`"
)


@click.command()
@click.option("--schemas", is_flag=True, help="Print the tools' names, descriptions and schemas.")
def mcp(schemas: bool) -> None:
    """Run the MCP server on standard input and output, for a coding agent.

    The agent starts this command in the folder it works in. Its tools count tokens, check budgets,
    shorten files, and tell how full the agent's own context is. They change nothing.

    Exit codes: 0; 2 the extra `mcp` is not installed.
    """
    from sidecar.mcp.schemas import describe_tools

    if schemas:
        print_json(describe_tools())
        return
    try:
        from sidecar.mcp.server import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sidecar"):
            raise
        echo(f"token-sidecar: {MISSING}", err=True)
        sys.exit(2)
    run(Path.cwd())
