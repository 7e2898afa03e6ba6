"""The command group, which imports each command only when it runs, and its smallest commands.

These are `token-sidecar schema` and `token-sidecar serve`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from sidecar import __version__
from sidecar.cli.output import echo, prepare_output, print_error

# The descriptions are listed here, so that `--help` does not have to import any commands.
VERBS: dict[str, str] = {
    "check": "Check files against their token budgets.",
    "config": "Create, show and check the configuration.",
    "cost": "Report the cost of model calls by model, day, session, workspace or agent.",
    "count": "Count the tokens of files, folders or standard input.",
    "doctor": "Show which engines, endpoints, agents and settings are in use.",
    "fit": "Shorten text to a token limit.",
    "footprint": "Show what coding agents send before the first word, and what is lost.",
    "hooks": "Let coding agents check your spending caps before they send a prompt.",
    "map": "Show the token count of each file and subfolder in a folder.",
    "mcp": "Run or install the MCP server, which provides token counts to coding agents.",
    "schema": "Print the JSON Schema of the custom LSP messages.",
    "serve": "Run the language server; editors start this command.",
    "statusline": "Print a status line for Claude Code, tmux or a shell prompt.",
    "team": "Connect this machine to a team's collector.",
    "usage": "Show how full a workspace's context is.",
}

# Since click 8.2, a group without a command raises this error, and its message is the help text.
_HELP_ERROR: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


def workspace_option(description: str, **attributes: Any) -> Callable[[Any], Any]:
    """Return the `--workspace DIR` option, which defaults to the current folder.

    The command gets the folder's project root as `root`.
    """

    def find_root(_context: click.Context, _option: click.Parameter, folder: Path) -> Path:
        from sidecar.config import paths

        absolute_folder(folder)
        return paths.find_root(folder.resolve())

    return folder_option("root", description, callback=find_root, **attributes)


def absolute_folder(folder: Path) -> Path:
    """Return a folder's absolute path, without resolving links."""
    return Path(os.path.abspath(folder))


def folder_option(parameter: str, description: str, **attributes: Any) -> Callable[[Any], Any]:
    """Return the `--workspace DIR` option, which passes an existing folder as `parameter`."""
    return click.option(
        "--workspace",
        parameter,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path(),
        metavar="DIR",
        help=f"{description} (default: the current folder).",
        **attributes,
    )


@contextlib.contextmanager
def _formatting_errors() -> Iterator[None]:
    try:
        try:
            yield
        except FileNotFoundError:
            if _has_current_folder():
                raise
            message = "the current folder was deleted; change to another folder"
            raise click.UsageError(message) from None
    except click.ClickException as error:
        if not isinstance(error, _HELP_ERROR):
            error.show = partial(print_error, error)  # type: ignore[method-assign]
        raise


def _has_current_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


folder_argument = click.argument(
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    metavar="[DIR]",
)
also_option = click.option(
    "--also",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Add the calls of another machine: a file from `cost export`, or its ledger.db.",
)


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
    import json

    from sidecar.server.methods import json_schema, reference_page

    text = reference_page() if markdown else json.dumps(json_schema(), indent=2)
    echo(text.rstrip("\n"))


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


class LazyGroup(click.Group):
    """A command group. Each command's module is imported only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(VERBS)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Set up standard output and standard error, then run the command."""
        prepare_output()
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _formatting_errors():
            return super().invoke(ctx)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _formatting_errors():
            return super().make_context(*args, **extra)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. If it does not exist, suggest a similar one."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, VERBS, 1, 0.5)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        own = {"schema": schema, "serve": serve}.get(cmd_name)
        command = own or getattr(import_module(f"sidecar.cli.{cmd_name}"), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{cmd_name} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(VERBS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="token-sidecar")
def main() -> None:
    """Token counts, context usage and cost beside your editor.

    Exit codes: 0 for success, 1 for findings, 2 for invalid arguments or configuration.
    """
