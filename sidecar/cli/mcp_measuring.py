"""`token-sidecar footprint --measure-mcp`: starts agents' MCP servers, and lists their tools."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.cli.output import print_lines, warn
from sidecar.config.paths import state_dir
from sidecar.errors import how_to_install
from sidecar.project.mcp_servers import McpServer, count_and_keep, find_mcp_servers, mcp_rules
from sidecar.text.printable import counted, first_names, printable

if TYPE_CHECKING:
    from sidecar.agents.folders import Places
    from sidecar.config.settings import Settings

MISSING = f"measuring MCP servers requires additional packages; {how_to_install('mcp')}"


def measure_mcp_servers(
    start: Path, places: Places, settings: Settings, agents: Iterable[str]
) -> int:
    """Start each server that the agents start in a folder, and keep the numbers of its tools.

    A server that only the project's configuration names is started only after a confirmation on the
    terminal, which shows its command or address.

    Returns:
        The exit code: 0, 1 if a server was skipped or failed, or 2 if the SDK is not installed.
    """
    try:
        import sidecar.mcp.tool_lists  # noqa: F401 - check this before asking for confirmation
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sidecar"):
            raise
        warn(MISSING)
        return 2
    found = [
        server
        for agent in agents
        if agent in mcp_rules()
        for server in find_mcp_servers(agent, start, places)
    ]
    groups: dict[str, list[McpServer]] = {}
    for server in found:
        groups.setdefault(server.digest, []).append(server)
    if not groups:
        print_lines("No MCP servers are configured for the coding agents here.", err=True)
        return 0
    # Each server's numbers are kept at once, so Ctrl-C loses only those of the current server.
    done = [_measure(group, start, places, settings) for group in groups.values()]
    return 0 if all(done) else 1


def _measure(group: list[McpServer], start: Path, places: Places, settings: Settings) -> bool:
    from sidecar.mcp.tool_lists import ToolListError, list_tools

    server = next((one for one in group if one.is_own), group[0])
    name = printable(server.name)
    agents = first_names(list(dict.fromkeys(one.agent for one in group)))
    if not server.is_own and not _is_confirmed(server):
        return False
    print_lines(f"Starting {name} ({agents}) …", err=True)
    try:
        # In the project's folder, `npx` and others would run programs of the project.
        listed = list_tools(server, places.home if server.is_own else start, os.environ)
    except ToolListError as error:
        warn(f"{name}: {error}")
        return False
    try:
        measured = count_and_keep(state_dir(), group, listed, settings)
    except OSError as error:
        warn(f"cannot keep the numbers of {name}: {error.strerror or error}")
        return False
    print_lines(f"{name}: {counted(measured.tools, 'tool')}", err=True)
    return True


def _is_confirmed(server: McpServer) -> bool:
    """Ask whether to start a project's server. Without a terminal, the answer is no."""
    name = printable(server.name)
    if not sys.stdin.isatty():
        file = Path(server.path).name
        warn(
            f"{name} was not started, because only the project's {file} names it; "
            "run this command in a terminal to confirm the server"
        )
        return False
    does = "starts {} with this command" if server.command else "reaches {} at this address"
    print_lines(
        f"{server.path} is part of the project. It {does.format(name)}:",
        *(f"  {line}" for line in (server.shown_command, *server.shown_details)),
        err=True,
    )
    question = "Start it?" if server.command else "Ask it for its tools?"
    return click.confirm(question, default=False, err=True)
