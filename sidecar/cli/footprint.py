"""`token-sidecar footprint`: shows what coding agents send before the first word.

`--measure-mcp` starts agents' MCP servers, and lists their tools.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.cli.group import absolute_folder, folder_argument
from sidecar.cli.output import print_json, print_lines, print_problems, to_encodable, warn
from sidecar.errors import BadParamsError, how_to_install
from sidecar.text.printable import counted, first_names, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.agents.folders import Places
    from sidecar.config.settings import Loaded, Settings
    from sidecar.project.mcp_servers import McpServer
    from sidecar.workspace.footprint_report import FootprintReport


@click.command()
@folder_argument
@click.option(
    "--agent",
    metavar="NAME",
    help="Only this coding agent, even if it is not installed (default: all that are installed).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--measure-mcp",
    is_flag=True,
    help="First start the MCP servers that the agents start here, and count their tools.",
)
def footprint(folder: Path, agent: str | None, as_json: bool, measure_mcp: bool) -> None:
    """Show what coding agents send before the first word, if they start in DIR.

    DIR is the current folder by default. Each agent has its own rules for instruction files, rules,
    imports, skills and memory. The system prompt and the built-in tools are what is left of the
    first request of the newest session that started in DIR, or with the same files in another
    worktree, as long as the files have not changed.

    --measure-mcp starts the servers that your own configuration of the agents names, and keeps only
    numbers. It asks before it starts a server that only the project names.

    Exit codes: 0; 1 if an MCP server was not started or did not list its tools; 2 if DIR or the
    agent is unknown, or the configuration is invalid.
    """
    from sidecar.config.load import load
    from sidecar.config.paths import find_root

    start = absolute_folder(folder)
    loaded = load(find_root(start))
    has_errors = print_problems(loaded.problems)
    failed = 0
    if measure_mcp and loaded.settings.agents.enabled:  # if agents are disabled, the report says so
        from sidecar.agents.folders import Places

        places, agents = Places.of(loaded.settings.agents), None if agent is None else [agent]
        failed = measure_mcp_servers(start, places, loaded.settings, agents)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() and not as_json else 0
    try:
        found = read_footprints(start, loaded, agent=agent, width=width)
    except BadParamsError as error:
        warn(str(error))
        sys.exit(2)
    if as_json:
        print_json(found)
    else:
        print_lines(*map(to_encodable, found.text.split("\n")))
        if found.others:
            print_lines("`--agent NAME` shows an agent that is not installed.")
    sys.exit(2 if has_errors else failed)


def read_footprints(
    start: Path,
    loaded: Loaded,
    *,
    model: str | None = None,
    agent: str | None = None,
    width: int = 0,
) -> FootprintReport:
    """Return what agents send that start in a folder.

    Args:
        start: The folder.
        loaded: The settings of its root.
        model: The model to count for, for agents that were not used in the folder. Defaults to the
            `model` setting.
        agent: The only agent to show.
        width: The width of the report's text in columns. If it is 0, lines are not shortened.

    Raises:
        BadParamsError: The agent is unknown, or agents are disabled.
    """
    from sidecar.config.paths import find_root, state_dir
    from sidecar.cost.ledger import FILE_NAME, Ledger
    from sidecar.workspace.footprints import MOST_READ, find_footprints

    settings, ledger = loaded.settings, Ledger(state_dir() / FILE_NAME)
    model = model or loaded.configured_model
    try:
        root = find_root(start)
        return find_footprints(
            root, start, settings, model, ledger, agent, width, most_read=MOST_READ
        )
    finally:
        ledger.close()


MISSING = f"measuring MCP servers requires additional packages; {how_to_install('mcp')}"


def measure_mcp_servers(
    start: Path, places: Places, settings: Settings, agents: Iterable[str] | None
) -> int:
    """Start each server that the agents start in a folder, and keep the numbers of its tools.

    `agents` is None for all agents.

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
    from sidecar.project.mcp_servers import find_mcp_servers, mcp_rules

    found = [
        server
        for agent in (mcp_rules() if agents is None else agents)
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
    from sidecar.config.paths import state_dir
    from sidecar.mcp.tool_lists import ToolListError, list_tools
    from sidecar.project.mcp_servers import count_and_keep

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
