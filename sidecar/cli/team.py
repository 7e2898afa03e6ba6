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
    from sidecar.config.settings import Loaded, Settings

STORED_NAME = "team-token"
"""The file beside `config.toml` that contains the token, if it was entered."""


@click.group()
def team() -> None:
    """Connect this machine to a team's collector."""


@team.command()
@click.argument("url", required=False)
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
@click.option(
    "--ca-file",
    metavar="FILE",
    help="Also trust this certificate, if your team's servers use a private authority.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def join(
    url: str | None,
    token_env: str | None,
    token_file: str | None,
    token_command: str | None,
    ca_file: str | None,
    as_json: bool,
) -> None:
    """Send this machine's calls to the collector at URL, by default the one in your settings.

    Asks for the token that your team's administrator gave you, or reads it from standard input.
    The token and URL are stored only if the collector accepts them. A token that was stored before
    is deleted if you name another place.

    Exit codes: 0; 1 if the collector does not accept the token; 2 if the configuration is invalid
    or cannot be written.
    """
    from sidecar.config.load import load
    from sidecar.config.paths import config_file
    from sidecar.endpoints.http import is_readable, without_secrets

    sources = {
        "token-env": token_env,
        "token-file": token_file and _absolute(token_file),
        "token-command": token_command,
    }
    named = {key: value for key, value in sources.items() if value is not None}
    if len(named) > 1:
        raise click.UsageError("give only one of --token-env, --token-file and --token-command")
    path = config_file().resolve()  # a link, such as to a repository of dotfiles, stays a link
    loaded = load(None)
    if print_problems(loaded.problems):
        sys.exit(2)
    collector = url or loaded.settings.ledger.otel_endpoint
    if collector is None:
        raise click.UsageError("no collector is configured; give the URL of your team's collector")
    if is_readable(collector):
        raise click.UsageError(
            f"the token could be intercepted on the way to {without_secrets(collector)}; give an "
            "address that starts with https://"
        )
    stored = path.with_name(STORED_NAME)
    with exit_on_errors():
        text = path.read_text("utf-8") if path.exists() else ""
        token = None if named else _ask_for_token()
        team = named or {"token-file": str(stored)}
        if ca_file is not None:
            team["ca-file"] = _absolute(ca_file)
        changed = _with_team(text, url, team)
        settings = _settings_of(changed, loaded)
        problem = _check_token(settings, stored, token)
        if problem is not None:
            if as_json:
                print_json({"joined": False, "problem": problem})
            else:
                print_lines(f"Not joined: {problem}", err=True)
            sys.exit(1)
        _write(path, changed.encode())
        if named and not any(STORED_NAME in value for value in named.values()):
            stored.unlink(missing_ok=True)
    if as_json:
        print_json({"joined": True, "configuration": str(path)})
        return
    print_lines(
        f"Joined; {path} was updated.",
        "Editors send new calls from now on. To send the recorded ones now, run "
        "`token-sidecar cost ship`.",
    )


def _check_token(settings: Settings, stored: Path, token: str | None) -> str | None:
    """Store a token if the collector accepts it. Otherwise, return the reason.

    Args:
        settings: The settings, which say where the token is.
        stored: The file for the token.
        token: The token, or None if it is elsewhere.
    """
    from sidecar.cost.shipping import check_collector

    if token is None:
        return asyncio.run(check_collector(settings))
    before = stored.read_bytes() if stored.exists() else None
    _write(stored, f"{token}\n".encode())
    problem = asyncio.run(check_collector(settings))
    if problem is not None and before is None:
        stored.unlink()
    elif problem is not None and before is not None:
        _write(stored, before)
    return problem


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _ask_for_token() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    token: str = click.prompt("Token", hide_input=True, err=True)
    return token.strip()


def _with_team(text: str, url: str | None, team: dict[str, str]) -> str:
    """Return the user's configuration with the collector's address and these settings."""
    from sidecar.config.toml import set_key

    for key in ("token-env", "token-file", "token-command"):
        text = set_key(text, "team", key, team.get(key))
    if "ca-file" in team:
        text = set_key(text, "team", "ca-file", team["ca-file"])
    return text if url is None else set_key(text, "ledger", "otel-endpoint", url)


def _settings_of(text: str, loaded: Loaded) -> Settings:
    """Return the settings of the user's configuration file with this text, and of the machine's.

    Raises:
        ValueError: The text is invalid, for example because the URL is.
    """
    from sidecar.config.load import resolve
    from sidecar.config.settings import Layer
    from sidecar.config.toml import find_spans, parse

    machine = (layer for layer in loaded.files.values() if layer.source == "system")
    found = resolve([*machine, Layer("user", parse(text), None, *find_spans(text))])
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
