"""`token-sidecar team`: connects this machine to a team's collector.

`token-sidecar cost ship` sends recorded calls to it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import msgspec

from sidecar.cli.ledger_updates import exit_on_errors, open_ledger, update_ledger, warn_of_unread
from sidecar.cli.output import print_json, print_lines, print_problems, warn
from sidecar.text.printable import counted

if TYPE_CHECKING:
    from sidecar.config.settings import Loaded, Settings
    from sidecar.cost.book import CostBook
    from sidecar.cost.records import ShippedRecord
    from sidecar.cost.shipping import Collector, Shipped, ShippingQueue

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


FOLLOW_SECONDS = 15.0
"""The delay between runs with `--follow`, in seconds."""
_MOST_CALLS = 5
"""Maximum number of rejected calls to name."""


@click.command(short_help="Send recorded calls to your team's OpenTelemetry collector.")
@click.option("--once", is_flag=True, help="Send what is queued, then exit (the default).")
@click.option("--follow", is_flag=True, help="Keep sending new calls until interrupted.")
@click.option(
    "--dry-run", is_flag=True, help="Print the queued calls exactly as they would be sent."
)
@click.option(
    "--since",
    metavar="DAY",
    help="Send the calls since this UTC day again, such as 2026-11-21, if the store lacks some.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ship(once: bool, follow: bool, dry_run: bool, since: str | None, as_json: bool) -> None:
    """Send recorded calls and prompt file costs to your team's OpenTelemetry collector.

    This requires `[ledger] otel-endpoint` in your own configuration, except with --dry-run. The
    records contain numbers, times, hashes, and the names of models and agents, but no text or
    paths. A running editor also sends these records.

    Exit codes: 0; 1 if the collector did not accept all calls; 2 if the configuration is invalid or
    the ledger is unreadable.
    """
    from sidecar.cost.days import DAY_MS, time_range
    from sidecar.cost.shipping import open_queue
    from sidecar.workspace.workspace import workspace_remotes

    if follow and (once or dry_run):
        raise click.UsageError("--follow cannot be combined with --once or --dry-run")
    if dry_run and since:
        raise click.UsageError("--since queues calls, so it cannot be combined with --dry-run")
    with open_ledger() as (book, loaded):
        settings = loaded.settings
        queue = open_queue(book, settings, workspace_remotes, dry_run=dry_run)
        if queue is None:
            warn("no collector is configured; set [ledger] otel-endpoint in your own configuration")
            sys.exit(2)
        warn_of_unread(update_ledger(book, settings, None))
        if dry_run:
            _print_records(queue)
            return
        if since:
            queue.queue_again(time_range(since, None, UTC).first_day * DAY_MS)
        if follow:
            asyncio.run(_follow(book, queue, settings, as_json=as_json))
        has_failed = asyncio.run(_ship_once(queue, settings, as_json=as_json))
    sys.exit(1 if has_failed else 0)


def _print_records(queue: ShippingQueue) -> None:
    from sidecar.cost.records import export_request

    for records in _pending_records(queue):
        print_json(export_request(records, queue.identity.resource()))


def _pending_records(queue: ShippingQueue) -> Iterator[list[ShippedRecord]]:
    from sidecar.cost.shipping import DAY_REPORT

    batch = queue.next_batch()
    while batch.calls:
        yield [call.record for call in batch.calls]
        batch = queue.next_batch(after=batch.after)
    if not queue.has_report(DAY_REPORT) and (records := queue.day_records()):
        yield records
    yield from (records for _root, records in _file_reports(queue) if records)


def _file_reports(queue: ShippingQueue) -> Iterator[tuple[str, list[ShippedRecord]]]:
    """Yield each workspace that was not reported today, with the records of its prompt files."""
    from sidecar.cli.sessions_view import SessionsView
    from sidecar.config.paths import find_root
    from sidecar.workspace.prompt_files import file_records
    from sidecar.workspace.workspace import path_of

    folders = [Path(path) for uri in queue.recent_workspaces() if (path := path_of(uri))]
    roots = dict.fromkeys(find_root(folder) for folder in folders if folder.is_dir())
    workspaces = {*queue.reported_workspaces(), *(root.as_uri() for root in roots)}
    for root in roots:
        if not queue.has_report(root.as_uri()):
            with SessionsView(root) as view:
                files = view.files(None, reported=workspaces)
                yield root.as_uri(), file_records(files, root.as_uri(), queue.identity)


async def _follow(
    book: CostBook, queue: ShippingQueue, settings: Settings, *, as_json: bool
) -> NoReturn:
    """Send calls until interrupted."""
    from sidecar.cost.shipping import FIRST_RETRY, LONGEST_RETRY, CollectorError, open_collector
    from sidecar.tasks import backoff

    failures = 0
    async with open_collector(queue.identity.resource(), settings) as collector:
        while True:
            delay = FOLLOW_SECONDS
            try:
                shipped, problem = await _send(queue, collector)
                failures = 0
                if as_json:
                    print_json({**shipped._asdict(), "sentBytes": collector.sent_bytes})
                elif shipped.accepted:
                    print_lines(f"Sent {counted(shipped.accepted, 'call')}.")
                _warn_if_rejected(shipped, problem, as_json=as_json)
            except CollectorError as error:
                warn(f"{error}; the calls remain queued")
                failures += 1
                delay = max(backoff(failures, FIRST_RETRY, LONGEST_RETRY), error.retry_after)
            await asyncio.sleep(delay)
            await asyncio.to_thread(update_ledger, book, settings, None)


async def _ship_once(queue: ShippingQueue, settings: Settings, *, as_json: bool) -> bool:
    """Send calls. Return whether sending failed."""
    from sidecar.cost.shipping import CollectorError, open_collector

    async with open_collector(queue.identity.resource(), settings) as collector:
        try:
            shipped, problem = await _send(queue, collector)
        except CollectorError as error:
            warn(f"{error}; the calls remain queued")
            return True
        sent_bytes = collector.sent_bytes
    if as_json:
        print_json({**shipped._asdict(), "sentBytes": sent_bytes})
    elif shipped.busy:
        print_lines("Another process is sending the calls.")
    else:
        print_lines(f"Sent {counted(shipped.accepted, 'call')}.")
    _warn_if_rejected(shipped, problem, as_json=as_json)
    return bool(shipped.rejected or problem)


async def _send(queue: ShippingQueue, collector: Collector) -> tuple[Shipped, str]:
    """Send calls and reports.

    Returns:
        How many calls were sent, and an error message. The message is empty unless a report was
        rejected.
    """
    from sidecar.cost.shipping import send_day_report, send_report, ship

    await collector.open()  # reports invalid certificates even if nothing is queued
    shipped = await ship(queue, collector)
    problem = await send_day_report(queue, collector, asyncio.to_thread)
    for root, records in await asyncio.to_thread(lambda: list(_file_reports(queue))):
        sent = send_report(queue, collector, asyncio.to_thread, root, records)
        problem = await sent or problem
    return shipped, problem


def _warn_if_rejected(shipped: Shipped, problem: str, *, as_json: bool) -> None:
    """Warn about rejected calls, and about `problem` with a report."""
    if shipped.rejected and not as_json:
        calls = counted(shipped.rejected, "call")
        warn(
            f"{calls} rejected and not in the store: {shipped.reason}",
            *(f"call {name}" for name in shipped.rejected_ids[:_MOST_CALLS]),
            "once the collector accepts them, run `token-sidecar cost ship --since DAY`",
        )
    if problem:
        warn(f"totals or the costs of prompt files were not reported: {problem}")
