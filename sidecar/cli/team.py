"""`token-sidecar team`: connects this machine to a team's collector."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from sidecar.cli.ledger_updates import exit_on_errors
from sidecar.cli.output import print_json, print_lines, print_problems

if TYPE_CHECKING:
    from sidecar.config.settings import Settings

STORED_NAME = "team-token"
"""The file beside `config.toml` that contains the token, if it was entered."""


@click.group()
def team() -> None:
    """Connect this machine to a team's collector."""


@team.command()
@click.argument("url")
@click.option(
    "--token-env", metavar="NAME", help="Read the token from this environment variable later."
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="Read the token from this file later (default: ask for the token, and store it).",
)
@click.option(
    "--token-command",
    metavar="COMMAND",
    help="Read the token from a command's output later, for example that of a password manager.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def join(
    url: str,
    token_env: str | None,
    token_file: str | None,
    token_command: str | None,
    as_json: bool,
) -> None:
    """Send this machine's calls to the collector at URL.

    Asks for the token that your team's administrator gave you, or reads it from standard input.
    The token and URL are stored only if the collector accepts them.

    Exit codes: 0; 1 if the collector does not accept the token; 2 if the configuration is invalid
    or cannot be written.
    """
    from sidecar.config.load import load
    from sidecar.config.paths import config_file
    from sidecar.cost.shipping import check_collector

    sources = {
        "token-env": token_env,
        "token-file": token_file and os.path.abspath(os.path.expanduser(token_file)),
        "token-command": token_command,
    }
    named = {key: value for key, value in sources.items() if value is not None}
    if len(named) > 1:
        raise click.UsageError("give only one of --token-env, --token-file and --token-command")
    path = config_file().resolve()  # a link, such as to a repository of dotfiles, stays a link
    loaded = load(None)
    if print_problems(loaded.problems):
        sys.exit(2)
    stored = path.with_name(STORED_NAME)
    with exit_on_errors():
        text = path.read_text("utf-8") if path.exists() else ""
        token = None if named else _ask_for_token()
        changed = _with_team(text, url, named or {"token-file": str(stored)})
        settings = _settings_of(changed)
        before = stored.read_bytes() if stored.exists() else None
        if token is not None:
            _write(stored, f"{token}\n".encode())
        problem = asyncio.run(check_collector(settings))
        if problem is not None:
            if token is not None and before is None:
                stored.unlink()
            elif token is not None and before is not None:
                _write(stored, before)
            if as_json:
                print_json({"joined": False, "problem": problem})
            else:
                print_lines(f"Not joined: {problem}", err=True)
            sys.exit(1)
        _write(path, changed.encode())
    if as_json:
        print_json({"joined": True, "configuration": str(path)})
        return
    print_lines(
        f"Joined; {path} was updated.",
        "Editors send new calls from now on. To send the recorded ones now, run "
        "`token-sidecar cost ship`.",
    )


def _ask_for_token() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    token: str = click.prompt("Token", hide_input=True, err=True)
    return token.strip()


def _with_team(text: str, url: str, token: dict[str, str]) -> str:
    """Return the user's configuration with the collector's address and where its token is."""
    from sidecar.config.toml import set_key

    for key in ("token-env", "token-file", "token-command"):
        text = set_key(text, "team", key, token.get(key))
    return set_key(text, "ledger", "otel-endpoint", url)


def _settings_of(text: str) -> Settings:
    """Return the settings in a configuration file's text.

    Raises:
        ValueError: The text is invalid, for example because the URL is.
    """
    from sidecar.config.merge_layers import resolve
    from sidecar.config.options import Layer
    from sidecar.config.toml import find_spans, parse

    found = resolve([Layer("user", parse(text), None, *find_spans(text))])
    wrong = [each for each in found.problems if each.key.partition(".")[0] in ("team", "ledger")]
    if wrong:
        raise ValueError(str(msgspec.structs.replace(wrong[0], line=None)))
    return found.settings


def _write(path: Path, content: bytes) -> None:
    from sidecar.config.safe_files import write

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or 'unknown reason'}") from error
