"""`token-sidecar cost ship`: sends recorded calls to the user's OpenTelemetry collector."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from sidecar.cli.ledger_updates import open_ledger, update_ledger
from sidecar.cli.output import print_json, print_lines, warn
from sidecar.text.printable import counted

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.cost.book import CostBook
    from sidecar.cost.records import ShippedRecord
    from sidecar.cost.shipping import Collector, Shipped, ShippingQueue
    from sidecar.cost.team import Comparison, DayDifference, DayTotals, TeamStore

FOLLOW_SECONDS = 15.0
"""The delay between runs with `--follow`, in seconds."""
VERIFY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Delays before the totals are compared again, in seconds. The collector may still be writing."""
_MOST_CALLS = 5
"""Maximum number of rejected calls to name."""
_MOST_DAYS = 5
"""Maximum number of days to print if the totals differ."""


@click.command(short_help="Send recorded calls to your team's OpenTelemetry collector.")
@click.option("--once", is_flag=True, help="Send what is queued, then exit (the default).")
@click.option("--follow", is_flag=True, help="Keep sending new calls until interrupted.")
@click.option(
    "--dry-run", is_flag=True, help="Print the queued calls exactly as they would be sent."
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare each day's totals with your team's store, and resend calls that differ.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ship(once: bool, follow: bool, dry_run: bool, verify: bool, as_json: bool) -> None:
    """Send recorded calls and prompt file costs to your team's OpenTelemetry collector.

    This requires `[ledger] otel-endpoint` in your own configuration, except with --dry-run. The
    records contain numbers, times, hashes, and the names of models and agents, but no text or
    paths. A running editor also sends these records.

    Exit codes: 0; 1 if the collector did not accept all calls, or if a day's totals still differ
    from the store; 2 if the configuration is invalid or the ledger is unreadable.
    """
    from sidecar.cost.shipping import open_queue
    from sidecar.workspace.workspace import workspace_remotes

    if follow and (once or dry_run or verify):
        raise click.UsageError("--follow cannot be combined with --once, --dry-run or --verify")
    if dry_run and verify:
        raise click.UsageError(
            "--verify queues missing calls, so it cannot be combined with --dry-run"
        )
    with open_ledger() as (book, loaded):
        settings = loaded.settings
        queue = open_queue(book, settings, workspace_remotes, dry_run=dry_run)
        if queue is None:
            warn("no collector is configured; set [ledger] otel-endpoint in your own configuration")
            sys.exit(2)
        update_ledger(book, settings, None)
        if dry_run:
            _print_records(queue)
            return
        if follow:
            asyncio.run(_follow(book, queue, settings, as_json=as_json))
        with _open_store(settings) if verify else nullcontext() as store:
            has_failed = asyncio.run(_ship_once(queue, settings, store, as_json=as_json))
    sys.exit(1 if has_failed else 0)


def _open_store(settings: Settings) -> TeamStore:
    from sidecar.cost.team import TeamStore

    return TeamStore(settings.team)


def _print_records(queue: ShippingQueue) -> None:
    from sidecar.cost.records import export_request

    for records in _pending_records(queue):
        print_json(export_request(records, queue.identity.resource()))


def _pending_records(queue: ShippingQueue) -> Iterator[list[ShippedRecord]]:
    batch = queue.next_batch()
    while batch.calls:
        yield [call.record for call in batch.calls]
        batch = queue.next_batch(after=batch.after)
    yield from (records for _root, records in _file_reports(queue) if records)


def _file_reports(queue: ShippingQueue) -> Iterator[tuple[str, list[ShippedRecord]]]:
    """Yield each workspace that was not reported today, with the records of its prompt files."""
    from sidecar.cli.session_labels import SessionsView
    from sidecar.config.roots import find_root
    from sidecar.workspace.file_costs import file_records
    from sidecar.workspace.workspace import path_of

    folders = [Path(path) for uri in queue.recent_workspaces() if (path := path_of(uri))]
    roots = dict.fromkeys(find_root(folder) for folder in folders if folder.is_dir())
    workspaces = {*queue.reported_workspaces(), *(root.as_uri() for root in roots)}
    for root in roots:
        if not queue.has_file_report(root.as_uri()):
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


async def _ship_once(
    queue: ShippingQueue, settings: Settings, store: TeamStore | None, *, as_json: bool
) -> bool:
    """Send calls. If a store is given, compare its totals with the ledger.

    Returns:
        Whether sending failed or any totals still differ.
    """
    from sidecar.cost.shipping import CollectorError, open_collector

    before = await asyncio.to_thread(store.compare, queue) if store else None
    if before is not None:
        queue.queue_again(before.outdated)
    async with open_collector(queue.identity.resource(), settings) as collector:
        try:
            shipped, problem = await _send(queue, collector)
            after = before
            if store is not None and before is not None and not shipped.busy:
                after = await _compare_again(store, queue, collector, before, shipped)
        except CollectorError as error:
            warn(f"{error}; the calls remain queued")
            return True
        sent_bytes = collector.sent_bytes
    if as_json:
        result: dict[str, Any] = {**shipped._asdict(), "sentBytes": sent_bytes}
        if before is not None and after is not None:
            result["missing"] = len(before.outdated)
            result["differences"] = [_difference_json(each) for each in after.days]
        print_json(result)
    else:
        if before is not None and before.outdated:
            missing = counted(len(before.outdated), "call")
            print_lines(f"Missing or different in the store: {missing}.")
        if shipped.busy:
            print_lines("Another process is sending the calls.")
        else:
            print_lines(f"Sent {counted(shipped.accepted, 'call')}.")
        if after is not None:
            _print_differences(after, queue, is_busy=shipped.busy)
    _warn_if_rejected(shipped, problem, as_json=as_json)
    return bool(shipped.rejected or problem or (after and after.days))


async def _send(queue: ShippingQueue, collector: Collector) -> tuple[Shipped, str]:
    """Send calls and prompt file costs.

    Returns:
        How many calls were sent, and an error message. The message is empty unless the costs of
        prompt files were rejected.
    """
    from sidecar.cost.shipping import send_file_report, ship

    shipped, problem = await ship(queue, collector), ""
    for root, records in await asyncio.to_thread(lambda: list(_file_reports(queue))):
        sent = send_file_report(queue, collector, asyncio.to_thread, root, records)
        problem = await sent or problem
    return shipped, problem


async def _compare_again(
    store: TeamStore,
    queue: ShippingQueue,
    collector: Collector,
    comparison: Comparison,
    shipped: Shipped,
) -> Comparison:
    """Repeat the comparison until the collector has written all accepted calls or time runs out."""
    from sidecar.cost.shipping import ship

    rejected, is_outdated = shipped.rejected, bool(shipped.accepted or shipped.rejected)
    for delay in VERIFY_SECONDS:
        if not is_outdated:
            break
        await asyncio.sleep(delay)
        shipped = await ship(queue, collector)  # sends calls that were amended in the meantime
        comparison = await asyncio.to_thread(store.compare, queue)
        is_outdated = bool(shipped.accepted) or len(comparison.outdated) > rejected
    return comparison


def _warn_if_rejected(shipped: Shipped, problem: str, *, as_json: bool) -> None:
    """Warn about rejected calls, and about `problem` with the costs of prompt files."""
    if shipped.rejected and not as_json:
        calls = counted(shipped.rejected, "call")
        warn(
            f"{calls} rejected and not in the store: {shipped.reason}",
            *(f"call {name}" for name in shipped.rejected_ids[:_MOST_CALLS]),
            "once the collector accepts them, run `token-sidecar cost ship --verify`",
        )
    if problem:
        warn(f"the costs of prompt files were not reported: {problem}")


def _print_differences(comparison: Comparison, queue: ShippingQueue, *, is_busy: bool) -> None:
    from sidecar.cost.days import day_name

    days = comparison.days
    if not days:
        print_lines("Verified.")
        return
    lines = [
        f"{day_name(each.day)}: {_totals_text(each.local)} here; {_totals_text(each.stored)} in "
        "the store"
        for each in days[:_MOST_DAYS]
    ]
    if len(days) > _MOST_DAYS:
        lines.append(f"and {counted(len(days) - _MOST_DAYS, 'more day')}")
    if is_busy:
        lines.append("run this again when the other process is done")
    elif comparison.outdated:
        lines.append(
            "run this again in a minute, when the collector has written all calls; if the days "
            "still differ, look for errors in the collector's log"
        )
    if comparison.repeated:
        lines.append(
            f"the agent reports no ids, so {counted(comparison.repeated, 'call')} got the same id "
            "as another call; the store counts calls with the same id once; run `token-sidecar "
            "cost` for the exact total"
        )
    if any(each.stored.calls > each.local.calls for each in days):
        lines.append(
            "the store has calls that are not in this ledger; if the ledger was restored or "
            f"copied, delete the rows of installation {queue.identity.installation} on these days "
            "from llm.calls, and run this again"
        )
    warn(*lines)


def _totals_text(totals: DayTotals) -> str:
    from sidecar.cost.records import usd_attribute

    tokens = f"{totals.prompt:,} / {totals.completion:,} tokens"
    return f"{counted(totals.calls, 'call')}, {tokens}, ${usd_attribute(totals.cost)}"


def _difference_json(difference: DayDifference) -> dict[str, Any]:
    from sidecar.cost.days import day_name

    def numbers(totals: DayTotals) -> dict[str, float]:
        return {
            "calls": totals.calls,
            "promptTokens": totals.prompt,
            "outputTokens": totals.completion,
            "costUsd": float(totals.cost),
        }

    local, stored = numbers(difference.local), numbers(difference.stored)
    return {"day": day_name(difference.day), "local": local, "stored": stored}
