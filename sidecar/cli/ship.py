"""`token-sidecar cost ship`: sends recorded calls to the user's OpenTelemetry collector."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.cli.ledger import ingest_agents, load_settings, open_ledger
from sidecar.cli.output import print_json, print_lines, warn
from sidecar.text.printable import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.config.settings import Settings
    from sidecar.cost.book import CostBook
    from sidecar.cost.records import Record
    from sidecar.cost.shipping import Collector, Shipped, ShippingQueue

FOLLOW_SECONDS = 15.0
"""The delay between two runs with `--follow`, in seconds."""


@click.command()
@click.option("--once", is_flag=True, help="Send what is queued, then exit (the default).")
@click.option("--follow", is_flag=True, help="Keep sending new calls until interrupted.")
@click.option(
    "--dry-run", is_flag=True, help="Print the queued calls exactly as they would be sent."
)
@click.option(
    "--verify",
    is_flag=True,
    help="First compare each day's totals with your team's store, and resend missing calls.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ship(once: bool, follow: bool, dry_run: bool, verify: bool, as_json: bool) -> None:
    """Send recorded calls and prompt file costs to your team's OpenTelemetry collector.

    This requires `[ledger] otel-endpoint` in your own configuration. The records contain
    numbers, times, hashes, and the names of models and agents, but no text or paths. If an
    editor is running, it also sends them.

    Exit codes: 0; 1 if the collector did not accept all calls; 2 if the configuration is
    invalid or the ledger is unreadable.
    """
    from sidecar.cost.shipping import open_queue

    if follow and (once or dry_run or verify):
        raise click.UsageError("--follow cannot be combined with --once, --dry-run or --verify")
    if dry_run and verify:
        raise click.UsageError(
            "--verify queues missing calls, so it cannot be combined with --dry-run"
        )
    with open_ledger() as book:
        settings = load_settings()
        queue = open_queue(book, settings)
        if queue is None:
            warn("no collector is configured; set [ledger] otel-endpoint in your own configuration")
            sys.exit(2)
        ingest_agents(book, None)
        if dry_run:
            _print_records(queue)
            return
        missing = _verify(queue, settings) if verify else None
        has_failed = asyncio.run(
            _ship(book, queue, settings, missing, follow=follow, as_json=as_json)
        )
    sys.exit(1 if has_failed else 0)


def _verify(queue: ShippingQueue, settings: Settings) -> int:
    """Queue calls again that are missing from the store, and return their number."""
    from sidecar.cost.team import TeamStore

    with TeamStore(settings.team) as store:
        missing = store.missing(queue)
    queue.queue_again(missing)
    return len(missing)


def _print_records(queue: ShippingQueue) -> None:
    from sidecar.cost.shipping import encode

    for records in _pending_records(queue):
        request = encode(records, queue.identity.resource())
        from google.protobuf.json_format import MessageToDict  # `encode` fails without it

        print_json(MessageToDict(request))


def _pending_records(queue: ShippingQueue) -> Iterator[list[Record]]:
    batch = queue.next_batch()
    while batch.calls:
        yield [call.record for call in batch.calls]
        batch = queue.next_batch(after=batch.after)
    if refused := queue.next_refused_batch().calls:
        yield [call.record for call in refused]
    yield from (records for _root, records in _file_reports(queue) if records)


def _file_reports(queue: ShippingQueue) -> Iterator[tuple[str, list[Record]]]:
    """Yield each workspace whose prompt files have not been reported today, and their records."""
    from sidecar.cli.sessions import SessionsView
    from sidecar.config.load import find_root
    from sidecar.workspace.prompt_files import file_records
    from sidecar.workspace.workspace import path_of

    folders = [Path(path) for uri in queue.recent_workspaces() if (path := path_of(uri))]
    for root in dict.fromkeys(find_root(folder) for folder in folders if folder.is_dir()):
        if not queue.has_file_report(root.as_uri()):
            with SessionsView(root) as view:
                files = view.files(None, with_worktrees=False)  # each sends its own report
                yield root.as_uri(), file_records(files, root.as_uri(), queue.identity)


async def _ship(
    book: CostBook,
    queue: ShippingQueue,
    settings: Settings,
    missing: int | None,
    *,
    follow: bool,
    as_json: bool,
) -> bool:
    """Send calls once, or until interrupted. Return whether the collector rejected any calls."""
    from sidecar.cost.shipping import (
        FIRST_RETRY,
        LONGEST_RETRY,
        CollectorError,
        open_collector,
        send_file_report,
        ship,
    )
    from sidecar.tasks import backoff

    failures = 0
    async with open_collector(queue, settings.ledger.otel_endpoint or "") as collector:
        while True:
            delay = FOLLOW_SECONDS
            try:
                shipped = await ship(queue, collector)
                reason = ""
                for root, records in await asyncio.to_thread(lambda: list(_file_reports(queue))):
                    sent = send_file_report(queue, collector, asyncio.to_thread, root, records)
                    reason = await sent or reason
                failures = 0
                _print_result(shipped, collector, missing, as_json=as_json, only_news=follow)
                if reason:
                    warn(f"the costs of prompt files were not reported: {reason}")
                if not follow:
                    return bool(shipped.refused or reason)
            except CollectorError as error:
                warn(f"{error}; the calls remain queued")
                if not follow:
                    return True
                failures += 1
                delay = max(backoff(failures, FIRST_RETRY, LONGEST_RETRY), error.retry_after)
            await asyncio.sleep(delay)
            await asyncio.to_thread(ingest_agents, book, None)


def _print_result(
    shipped: Shipped,
    collector: Collector,
    missing: int | None,
    *,
    as_json: bool,
    only_news: bool,
) -> None:
    if as_json:
        sent = {**shipped._asdict(), "sentBytes": collector.sent_bytes}
        print_json(sent if missing is None else {**sent, "missing": missing})
        return
    if missing is not None:
        print_lines(f"The store lacked {counted(missing, 'call')}." if missing else "Verified.")
    if shipped.busy and not only_news:
        print_lines("Another process is sending the calls.")
    elif shipped.accepted or not only_news:
        print_lines(f"Sent {counted(shipped.accepted, 'call')}.")
    if shipped.refused:
        warn(f"{counted(shipped.refused, 'call')} remain queued: {shipped.reason}")
