"""`token-sidecar mcp`: runs the MCP server for coding agents, or installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sidecar.cli.output import confirm_change, print_json, print_lines, warn
from sidecar.errors import BadParamsError, how_to_install
from sidecar.mcp.clients import Scope, clients, plan_install, plan_uninstall

MISSING = f"the MCP server requires additional packages; {how_to_install('mcp')}"
_CLIENTS = click.Choice([*clients()])


@click.command()
@click.option("--install", "client", type=_CLIENTS, help="Add the server to a client.")
@click.option("--uninstall", "former", type=_CLIENTS, help="Remove the server from a client.")
@click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="user",
    show_default=True,
    help="Which configuration of the client to change: your own, or that of the project in this "
    "folder.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--schemas", is_flag=True, help="Print the tools' names, descriptions and schemas.")
@click.option("--check", is_flag=True, help="Only check whether the server can run.")
def mcp(
    client: str | None,
    former: str | None,
    scope: Scope,
    yes: bool,
    schemas: bool,
    check: bool,
) -> None:
    """Run the MCP server for a coding agent on standard input and output.

    The agent starts this command in its working folder. The server's tools count tokens, check
    budgets, and report how full the agent's context is and what it has cost. They do not change
    anything.

    Exit codes: 0; 1 if --install or --uninstall failed or was declined; 2 if the arguments are
    invalid or the `mcp` extra is not installed.
    """
    if client and former:
        raise click.UsageError("use either --install or --uninstall")
    if changed := client or former:
        installs = client is not None
        sys.exit(_change_client(changed, scope, installs=installs, has_consent=yes))
    from sidecar.mcp.schemas import describe_tools

    if schemas:
        print_json(describe_tools())
        return
    try:
        from sidecar.mcp.mcp_server import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sidecar"):
            raise
        warn(MISSING)
        sys.exit(2)
    if not check:
        run(Path.cwd())


def _change_client(client: str, scope: Scope, *, installs: bool, has_consent: bool) -> int:
    """Install or uninstall the server. Return the exit code."""
    try:
        change = (plan_install if installs else plan_uninstall)(client, scope, Path.cwd())
    except BadParamsError as error:
        raise click.UsageError(str(error)) from error
    state = "is installed already" if installs else "is not installed"
    nothing = f"the server {state} for {client} ({scope})"
    if (code := confirm_change(change, nothing, has_consent=has_consent)) is not None:
        return code
    undo = f"token-sidecar mcp --uninstall {client} --scope {scope}"
    print_lines(f"Done. Restart {client}; undo with `{undo}`." if installs else "Done.")
    return 0
