"""`token-sidecar footprint`: shows what coding agents send before the first word."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.cli.group import absolute_folder, folder_argument
from sidecar.cli.output import print_json, print_lines, print_problems, to_encodable, warn
from sidecar.errors import BadParamsError

if TYPE_CHECKING:
    from sidecar.config.settings import Loaded, Settings
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
    failed = _measure_mcp_servers(start, loaded.settings, agent) if measure_mcp else 0
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


def _measure_mcp_servers(start: Path, settings: Settings, agent: str | None) -> int:
    """Measure the MCP servers of one agent or of all. Return the exit code if this fails."""
    if not settings.agents.enabled:
        return 0  # the report says so
    from sidecar.agents.folders import Places
    from sidecar.cli.mcp_measuring import measure_mcp_servers
    from sidecar.project.mcp_servers import mcp_rules

    agents = mcp_rules() if agent is None else [agent]
    return measure_mcp_servers(start, Places.of(settings.agents), settings, agents)
