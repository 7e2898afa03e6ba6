"""Sends calls and prompt file costs to the user's OpenTelemetry collector via OTLP/HTTP, as JSON.

The ledger serves as the queue. Its database contains a cursor for each destination. The cursor
moves past calls only after the collector has accepted or rejected them. A call can therefore arrive
twice, with the same id and version. Amended calls are sent again with a higher version.

Reports are not queued, but sent once a day: what each workspace's prompt files cost, the totals of
each day, which show the team's store what it lacks, and prices, which it lacks for other calls.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import os
import re
import secrets
import shlex
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import msgspec

from sidecar import typed
from sidecar.config.safe_files import locked
from sidecar.cost.days import DAY_MS
from sidecar.cost.ledger import (
    AMEND,
    AMENDED_TRIGGER,
    EVENT_COLUMNS,
    EVENT_TABLES,
    NEXT_CHANGE,
    SENT_AS,
    event_of_row,
    explained,
)
from sidecar.cost.records import (
    DayTotals,
    Identity,
    ShippedRecord,
    export_request,
    price_record,
    record_of,
    totals_record,
)
from sidecar.endpoints.http import (
    TEAM_AUTHORITY,
    ClientSettingsError,
    describe_failure,
    make_team_client,
    root_of,
    warn_if_readable,
    without_secrets,
)
from sidecar.errors import SidecarError
from sidecar.operating_system import IS_WINDOWS, NO_WINDOW
from sidecar.text.printable import printable

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator

    import httpx

    from sidecar.config.settings import Settings, Team
    from sidecar.cost.book import CostBook
    from sidecar.cost.ledger import Ledger

Run = Callable[[Callable[[], Any]], Awaitable[Any]]
"""A function that runs blocking work on a thread."""

BATCH = 1_000
"""Maximum number of calls per request."""
FIRST_RETRY, LONGEST_RETRY = 5.0, 900.0
"""The shortest and longest delay before a retry if the collector is unavailable, in seconds."""
_TIMEOUT = 10.0
_TOKEN_SECONDS = 10.0
"""The most time for the command that prints the collector's token."""
_REPORT_DAYS = 30
_TOTALS_DAYS = 35
DAY_REPORT = ""
"""The name of the report of totals and prices. Other reports are named after a workspace."""
_MODELS = "SELECT DISTINCT provider.name, model FROM kind JOIN provider ON provider.id = provider"
_DAY_NS = DAY_MS * 1_000_000
_LONGEST_ANSWER = 64 * 1024
_MOST_REJECTED = 16
"""After this many rejected calls, and none accepted, the collector seems to reject everything."""
_DRY_RUN = "dry run"
"""Used as the destination's name in a dry run if all calls would be sent again.

No accepted calls are stored under this name, so all calls are treated as queued.
"""
_PATH = "/v1/logs"
_TOO_LARGE = 413
_TRY_LATER = frozenset({408, 429, 500, 502, 503, 504})
_HEADER_VARIABLES = ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS installation (id TEXT NOT NULL)",
    # Key for hashes if the team has no salt.
    "CREATE TABLE IF NOT EXISTS installation_secret (secret TEXT NOT NULL)",
    # For each destination, the last call and the last change to a call that it has accepted.
    "CREATE TABLE IF NOT EXISTS shipment (destination TEXT PRIMARY KEY, event INTEGER NOT NULL, "
    "change INTEGER NOT NULL) WITHOUT ROWID",
    # The last destination used with each endpoint.
    "CREATE TABLE IF NOT EXISTS current_destination (endpoint TEXT PRIMARY KEY, "
    "destination TEXT NOT NULL) WITHOUT ROWID",
    # The sequence number of the latest change to each call that was amended or queued again.
    "CREATE TABLE IF NOT EXISTS amended (event INTEGER PRIMARY KEY, change INTEGER NOT NULL)",
    "CREATE INDEX IF NOT EXISTS amended_change ON amended (change)",
    # The last UTC day on which a report, such as that of a workspace's prompt files, was sent.
    "CREATE TABLE IF NOT EXISTS file_report (destination TEXT, workspace TEXT, day INTEGER "
    "NOT NULL, PRIMARY KEY (destination, workspace)) WITHOUT ROWID",
)
_SELECT = (
    "SELECT event.id, coalesce(amended.change, 0), sent_session, sent_agent, sent_at, "  # noqa: S608
    f"sent_telemetry, {EVENT_COLUMNS} FROM {EVENT_TABLES} "
    "LEFT JOIN amended ON amended.event = event.id "
    "LEFT JOIN sent_as ON sent_as.event = event.id WHERE "
)
_CHANGED = (
    "event.id IN (SELECT event FROM amended WHERE change > ? AND event <= ? ORDER BY change "
    "LIMIT ?) ORDER BY amended.change"
)
_QUEUED = "SELECT event FROM amended WHERE change > ? AND event <= ? LIMIT ?"
_NEWEST = "event.id = (SELECT max(id) FROM event)"
_NEW = "event.id > ? ORDER BY event.id LIMIT ?"


class ShippingError(SidecarError):
    """Calls cannot be shipped because of the configuration."""

    kind = "config"


class CollectorError(SidecarError):
    """The collector did not accept calls. They remain queued."""

    kind = "endpoint"
    retryable = True

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """The delay requested by the collector, in seconds."""


class QueuedCall(NamedTuple):
    """A queued call, with its row id in the ledger and the number of its last amendment."""

    row: int
    change: int
    record: ShippedRecord


class Cursor(NamedTuple):
    """A destination's position in the queue."""

    event: int = 0
    """The row id of the last accepted call."""
    change: int = 0
    """The number of the last accepted amendment."""


class Batch(NamedTuple):
    """Queued calls to send together, and the cursors before and after them."""

    calls: list[QueuedCall]
    before: Cursor
    after: Cursor


class Delivery(NamedTuple):
    """The collector's answer to a batch of calls."""

    rejected: int = 0
    reason: str = ""
    """Why the collector rejected calls, or an empty string if it accepted all of them."""
    named: Sequence[QueuedCall] = ()
    """The rejected calls, as far as the collector's answers identify them."""


class Shipped(NamedTuple):
    """How many calls a run sent, and how many the collector rejected."""

    accepted: int = 0
    rejected: int = 0
    busy: bool = False
    """Whether another process is already sending the calls."""
    reason: str = ""
    """Why the collector rejected calls, or an empty string if it accepted all of them."""
    rejected_ids: tuple[str, ...] = ()
    """The ids of rejected calls, as far as the collector's answers identify them."""


class ShippingQueue:
    """Calls that a destination has not accepted yet. Thread-safe. All methods block."""

    def __init__(self, ledger: Ledger, identity: Identity, destination: str) -> None:
        self.ledger, self.identity = ledger, identity
        self._destination = destination

    def next_batch(self, limit: int = BATCH, after: Cursor | None = None) -> Batch:
        """Return the next calls, with amended calls first. Calls without a price wait.

        Args:
            limit: The maximum number of calls.
            after: The cursor to start from when reading ahead without sending; defaults to the
                stored cursor.

        Raises:
            LedgerError: Reading failed.
        """
        with self.ledger.reader() as connection:
            before = after or self._cursor(connection)
            (newest,) = connection.execute(
                "SELECT coalesce(max(change), 0) FROM amended"
            ).fetchone()
            queued = connection.execute(
                _QUEUED, (before.change, before.event, limit + 1)
            ).fetchall()
            changed = self._select(connection, _CHANGED, before.change, before.event, limit)
            new = self._select(connection, _NEW, before.event, limit - len(changed))
        # If `changed` contains all changes to calls that were sent before, all other changes are to
        # new calls, which are sent in their latest version.
        sent = changed[-1].change if changed else before.change
        change = newest if len(changed) == len(queued) else sent
        event = new[-1].row if new else before.event
        return Batch([*changed, *new], before, Cursor(event, change))

    def newest_call(self) -> QueuedCall | None:
        """Return the most recently recorded call, or None if there is no call.

        Raises:
            LedgerError: Reading failed.
        """
        with self.ledger.reader() as connection:
            return next(iter(self._select(connection, _NEWEST)), None)

    def accepted_calls(self, first_day: int = 0) -> Iterator[QueuedCall]:
        """Yield the calls that were sent since a UTC day, except calls that are queued again.

        Args:
            first_day: The day, counted from 1970-01-01.
        """
        # An accepted call without a price is queued again.
        which = f"event.at >= {first_day * DAY_MS} AND basis IS NOT NULL AND {_NEW}"
        row = 0
        with self.ledger.reader() as connection:
            accepted = self._cursor(connection)
        while row < accepted.event:
            with self.ledger.reader() as connection:
                calls = self._select(connection, which, row, BATCH)
            for call in calls:
                if call.row <= accepted.event and call.change <= accepted.change:
                    yield call
            row = calls[-1].row if calls else accepted.event

    def accept(self, batch: Batch) -> None:
        """Move the cursor past a batch. Does nothing if another process has moved it.

        Raises:
            LedgerError: Storage failed.
        """
        with self.ledger.transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO shipment VALUES (?, 0, 0)", (self._destination,)
            )
            connection.execute(
                "UPDATE shipment SET event = ?, change = ? "
                "WHERE destination = ? AND event = ? AND change = ?",
                (*batch.after, self._destination, *batch.before),
            )

    def queue_again(self, since_ms: int) -> None:
        """Queue the calls since a time again, with a higher version, and the reports of a day.

        Raises:
            LedgerError: Storage failed.
        """
        with self.ledger.transaction() as connection:
            sent = connection.execute(
                "SELECT id FROM event WHERE at >= ? AND id <= ?",
                (since_ms, self._cursor(connection).event),
            ).fetchall()
            connection.executemany(AMEND.format(id="?", change=NEXT_CHANGE), sent)
            connection.execute(
                "DELETE FROM file_report WHERE destination = ?", (self._destination,)
            )

    def day_records(self) -> list[ShippedRecord]:
        """Return the totals of each day's sent calls, and the list prices of all recorded models.

        Calls with the same id count once, as in the store. The first report has all days, later
        ones those of the last 35 days.

        Raises:
            LedgerError: Reading failed.
        """
        now = time.time_ns()
        start = now // _DAY_NS - _TOTALS_DAYS
        with self.ledger.reader() as connection:
            is_first = not connection.execute(
                "SELECT 1 FROM file_report WHERE destination = ? AND workspace = ?",
                (self._destination, DAY_REPORT),
            ).fetchone()
            models = connection.execute(_MODELS).fetchall()
        days, ids = dict[int, DayTotals](), set[bytes]()
        for call in self.accepted_calls(0 if is_first else start):
            name, day = bytes.fromhex(_id_of(call)), call.record.nanoseconds // _DAY_NS
            if name not in ids:
                ids.add(name)
                days[day] = days.get(day, DayTotals()).plus(call.record)
        prices = self.ledger.prices
        priced = (price_record(prices, provider, model, now) for provider, model in models)
        totals = (totals_record(totals, day, now) for day, totals in days.items())
        return [*totals, *filter(None, priced)]

    def recent_workspaces(self) -> list[str]:
        """Return the URIs of workspaces with calls in the last 30 days.

        Raises:
            LedgerError: Reading failed.
        """
        start = (time.time_ns() // _DAY_NS - _REPORT_DAYS) * DAY_MS
        with self.ledger.reader() as connection:
            rows = connection.execute(
                "SELECT DISTINCT workspace FROM session WHERE id IN "
                "(SELECT session FROM event WHERE at >= ?)",
                (start,),
            ).fetchall()
        return [str(workspace) for (workspace,) in rows]

    def reported_workspaces(self) -> list[str]:
        """Return the URIs of workspaces whose prompt files were reported in the last 30 days.

        Raises:
            LedgerError: Reading failed.
        """
        with self.ledger.reader() as connection:
            rows = connection.execute(
                "SELECT workspace FROM file_report WHERE destination = ? AND workspace != ? "
                "AND day > ?",
                (self._destination, DAY_REPORT, time.time_ns() // _DAY_NS - _REPORT_DAYS),
            ).fetchall()
        return [str(workspace) for (workspace,) in rows]

    def has_report(self, name: str) -> bool:
        """Return whether a report, such as that of a workspace's prompt files, was sent today.

        Raises:
            LedgerError: Reading failed.
        """
        with self.ledger.reader() as connection:
            found = connection.execute(
                "SELECT 1 FROM file_report WHERE destination = ? AND workspace = ? AND day = ?",
                (self._destination, name, time.time_ns() // _DAY_NS),
            ).fetchone()
        return found is not None

    def accept_report(self, name: str) -> None:
        """Mark a report as sent today.

        Raises:
            LedgerError: Storage failed.
        """
        with self.ledger.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO file_report VALUES (?, ?, ?)",
                (self._destination, name, time.time_ns() // _DAY_NS),
            )

    def _cursor(self, connection: sqlite3.Connection) -> Cursor:
        stored = connection.execute(
            "SELECT event, change FROM shipment WHERE destination = ?", (self._destination,)
        ).fetchone()
        return Cursor(*(stored or ()))

    def _select(
        self, connection: sqlite3.Connection, which: str, *values: float
    ) -> list[QueuedCall]:
        calls = []
        for row, change, session, agent, at, telemetry, *columns in connection.execute(
            _SELECT + which, values
        ):
            event = event_of_row(tuple(columns))
            if event.cost is None:  # it will be priced soon
                break
            sent = event
            if at is not None:
                sent = msgspec.structs.replace(
                    event,
                    session=session,
                    agent=agent,
                    at=datetime.fromtimestamp(at / 1000, UTC),
                    telemetry_id=telemetry,
                )
            record = record_of(event, row, change, self.identity, sent)
            calls.append(QueuedCall(row, change, record))
        return calls


def open_queue(
    book: CostBook,
    settings: Settings,
    remotes_of: Callable[[str], Sequence[str]] = lambda _workspace: (),
    *,
    dry_run: bool = False,
) -> ShippingQueue | None:
    """Return the queue for the user's collector, or None if no collector is configured.

    A dry run needs no collector.

    This call blocks.

    Args:
        book: The book with the calls.
        settings: The user's settings.
        remotes_of: Returns the URLs of a workspace's git remotes, for `Team.labels`.
        dry_run: Whether to leave the queue unchanged.

    Raises:
        ShippingError: The identity is incomplete.
        LedgerError: The ledger cannot be opened.
    """
    endpoint, team = settings.ledger.otel_endpoint, settings.team
    if endpoint is None and not dry_run:
        return None
    salt = _salt_of(team)
    endpoint = collector_root(endpoint) if endpoint else ""
    with book.ledger.transaction() as connection:
        installation, secret = _prepare(connection)
        identity = Identity(
            installation=installation,
            secret=secret,
            salt=salt,
            user=team.user or "",
            team=team.team or "",
            branches=team.branches,
            projects=team.labels,
            remotes_of=remotes_of,
        )
        destination = _destination_name(endpoint, identity)
        if _is_replaced(connection, endpoint, destination):
            if dry_run:
                destination = _DRY_RUN
            else:
                _queue_all(connection, destination)
        if not dry_run:
            connection.execute(
                "INSERT OR REPLACE INTO current_destination VALUES (?, ?)", (endpoint, destination)
            )
    return ShippingQueue(book.ledger, identity, destination)


def collector_root(endpoint: str) -> str:
    """Return a collector's address without the path of its log requests."""
    return root_of(endpoint, (_PATH,))


def _destination_name(endpoint: str, identity: Identity) -> str:
    """Return a destination's name, which identifies the endpoint, salt, user, team and labels."""
    labels = (*identity.branches.items(), *identity.projects.items())
    owner = (identity.salt or identity.secret, identity.user, identity.team)
    names = (*owner, *(part for label in labels for part in label))
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]
    return f"{endpoint} {digest}"


def _is_replaced(connection: sqlite3.Connection, endpoint: str, destination: str) -> bool:
    """Return whether the last calls were sent to the endpoint under another identity.

    If so, the rows in the store have that identity's hash or labels, so everything must be sent
    again. This is checked when a queue is opened, not when calls are accepted. Otherwise, two
    processes with different salts would take turns sending all calls, endlessly.
    """
    found = connection.execute(
        "SELECT destination FROM current_destination WHERE endpoint = ?", (endpoint,)
    ).fetchone()
    return found not in (None, (destination,))


def _queue_all(connection: sqlite3.Connection, destination: str) -> None:
    for table in ("shipment", "file_report"):
        connection.execute(f"DELETE FROM {table} WHERE destination = ?", (destination,))  # noqa: S608


def _salt_of(team: Team) -> str:
    if team.salt_env is None:
        if team.user is not None:
            raise ShippingError(
                "[team] user is set, but salt-env is not; set it to the environment variable that "
                "holds your team's secret salt, because the hash of a name alone can be guessed"
            )
        return ""
    salt = os.environ.get(team.salt_env, "").strip()
    if not salt:
        raise ShippingError(
            f"the environment variable {team.salt_env} ([team] salt-env) is not set; set it in "
            "the environment of your editor or shell"
        )
    return salt


def _prepare(connection: sqlite3.Connection) -> tuple[str, str]:
    """Create the ledger's tables for shipping, and return the ledger's random id and secret."""
    for statement in (*_SCHEMA, AMENDED_TRIGGER, *SENT_AS):
        connection.execute(statement)
    return (
        _random_value(connection, "installation"),
        _random_value(connection, "installation_secret"),
    )


def _random_value(connection: sqlite3.Connection, table: str) -> str:
    """Return a table's only value. If the table is empty, insert a random value first."""
    found = connection.execute(f"SELECT * FROM {table}").fetchone()  # noqa: S608
    if found is None:
        found = (secrets.token_hex(16),)
        connection.execute(f"INSERT INTO {table} VALUES (?)", found)  # noqa: S608
    return str(found[0])


class Collector:
    """A client for an OTLP/HTTP collector. It sends one request at a time."""

    def __init__(
        self,
        endpoint: str,
        resource: Mapping[str, str],
        headers: Mapping[str, str],
        ca_file: str | None = None,
    ) -> None:
        self._url = collector_root(endpoint) + _PATH
        self._resource, self._headers, self._ca_file = resource, headers, ca_file
        self._client: httpx.AsyncClient | None = None
        self.sent_bytes = 0
        """The total size of all compressed request bodies, in bytes."""

    async def deliver(self, calls: Sequence[QueuedCall], newest: QueuedCall, run: Run) -> Delivery:
        """Send calls. Return how many the collector rejected.

        A rejected request is split into halves, which are sent again, until the rejected calls are
        known. If a collector accepts a part of a request, it does not say which part.

        Args:
            calls: The calls.
            newest: The newest call in the queue. If the collector rejects it too, the collector is
                at fault rather than the calls.
            run: Runs blocking work on a thread.

        Raises:
            CollectorError: The collector is unavailable, or seems to reject everything.
        """
        waiting, named, unnamed, reason = [calls], list[QueuedCall](), 0, ""
        is_any_accepted = False
        while waiting:
            part = waiting.pop()
            answer = await self._post([call.record for call in part], run)
            reason = answer.reason or reason
            if answer.rejected < len(part):
                unnamed += answer.rejected
                is_any_accepted = True
            elif len(part) > 1:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
            else:
                named += part
            if not is_any_accepted and (len(named) >= _MOST_REJECTED or not waiting):
                if (await self._post([newest.record], run)).rejected:
                    raise CollectorError(reason)
                is_any_accepted = True
        return Delivery(unnamed + len(named), reason, named)

    async def send(self, records: Sequence[ShippedRecord], run: Run) -> str:
        """Send records in one request.

        Returns:
            Why the collector rejected records, or an empty string if it accepted all of them.

        Raises:
            CollectorError: The collector is unavailable.
        """
        return (await self._post(records, run)).reason if records else ""

    async def check(self, run: Run = asyncio.to_thread) -> str:
        """Send an empty request. Return why the collector rejected it, or an empty string.

        Raises:
            CollectorError: The collector is unavailable, or refuses the token.
        """
        return (await self._post([], run)).reason

    async def open(self, run: Run = asyncio.to_thread) -> httpx.AsyncClient:
        """Return the client, after reading the certificates the first time. Sends nothing.

        Raises:
            CollectorError: Certificates or proxies are invalid.
        """
        self._client = self._client or await run(self._make_client)
        return self._client

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _post(self, records: Sequence[ShippedRecord], run: Run) -> Delivery:
        """Send one request. Return how many records were rejected, and why."""
        where = without_secrets(self._url)
        client = await self.open(run)
        body = await run(partial(_compress, records, self._resource))
        try:
            async with asyncio.timeout(_TIMEOUT):
                status, headers, answer = await _send(client, self._url, body)
        except TimeoutError:
            raise CollectorError(f"{where} did not answer within {_TIMEOUT:g} s") from None
        except (OSError, ValueError, RuntimeError) as error:
            reason = describe_failure(error, where, TEAM_AUTHORITY)
            if TEAM_AUTHORITY not in reason:
                reason += "; check [ledger] otel-endpoint"
            raise CollectorError(reason) from None
        self.sent_bytes += len(body)
        if status in (400, _TOO_LARGE):
            what = "a request as too large" if status == _TOO_LARGE else "calls"
            return Delivery(len(records), f"{where} rejected {what} (HTTP {status})")
        if status in _TRY_LATER:
            raise CollectorError(f"{where} returned HTTP {status}", _retry_after(headers))
        if status in (401, 403):
            raise CollectorError(
                f"{where} refused the token; check that it is the whole one that your team's "
                "administrator gave you, and enter it again with `token-sidecar team join`; if it "
                "is elsewhere, check [team] token-env, token-file or token-command, or the headers "
                "in OTEL_EXPORTER_OTLP_HEADERS"
            )
        if status >= 300:
            raise CollectorError(f"{where} returned HTTP {status}; check [ledger] otel-endpoint")
        return _rejection(where, headers, answer, len(records))

    def _make_client(self) -> httpx.AsyncClient:
        """Create the client. Runs on a thread, because imports and certificates load slowly."""
        import httpx

        try:
            return make_team_client(
                httpx.AsyncClient,
                self._url,
                self._ca_file,
                headers={
                    **self._headers,
                    "Content-Type": "application/json",
                    "Content-Encoding": "gzip",
                    "Accept-Encoding": "identity",
                    "User-Agent": "token-sidecar",
                },
                timeout=_TIMEOUT,
            )
        except ClientSettingsError as error:
            raise CollectorError(str(error)) from None


async def _send(
    client: httpx.AsyncClient, url: str, body: bytes
) -> tuple[int, Mapping[str, str], bytes]:
    import httpx

    try:
        async with client.stream("POST", url, content=body) as response:
            answer = b""
            async for part in response.aiter_raw():
                answer += part
                if len(answer) > _LONGEST_ANSWER:
                    raise ValueError("the answer is too long")
            return response.status_code, dict(response.headers), answer
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OSError(type(error).__name__) from error


def _compress(records: Sequence[ShippedRecord], resource: Mapping[str, str]) -> bytes:
    return gzip.compress(msgspec.json.encode(export_request(records, resource)), 6)


class _PartialSuccess(msgspec.Struct, frozen=True, rename="camel"):
    rejected_log_records: int | None = None
    error_message: str | None = None


class _Response(msgspec.Struct, frozen=True, rename="camel"):
    partial_success: _PartialSuccess | None = None


def _rejection(where: str, headers: Mapping[str, str], answer: bytes, sent: int) -> Delivery:
    """Return how many records the collector rejected, according to its response."""
    if not answer:
        return Delivery()
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind != "application/json":
            raise msgspec.DecodeError
        # OTLP writes 64-bit integers as strings.
        response = typed.convert(msgspec.json.decode(answer), _Response, strict=False)
    except (msgspec.DecodeError, RecursionError):
        raise CollectorError(f"{where} does not respond like an OTLP collector") from None
    partial_success = response.partial_success or _PartialSuccess()
    rejected = min(sent, partial_success.rejected_log_records or 0)
    if rejected <= 0:
        return Delivery()
    reason = printable((partial_success.error_message or "")[:200])
    return Delivery(rejected, f"{where} rejected calls: {reason}")


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return min(LONGEST_RETRY, max(0.0, float(headers.get("retry-after", ""))))
    except ValueError:
        return 0.0


def environment_headers() -> dict[str, str]:
    """Return the headers in `OTEL_EXPORTER_OTLP_HEADERS`, for example for authentication.

    Raises:
        ShippingError: The variable does not contain headers. The error message omits its value.
    """
    variable = next(filter(os.environ.get, _HEADER_VARIABLES), _HEADER_VARIABLES[-1])
    headers = {}
    for item in filter(str.strip, os.environ.get(variable, "").split(",")):
        name, equals, value = (unquote(part.strip()) for part in item.partition("="))
        if not (
            equals and _HEADER_NAME.fullmatch(name) and value.isascii() and value.isprintable()
        ):
            raise ShippingError(
                f"the environment variable {variable} does not contain valid headers; write "
                "NAME=VALUE, separate headers with commas, and percent-encode special characters"
            )
        headers[name.lower()] = value
    return headers


def read_token(team: Team) -> str:
    """Return the collector's token from a variable, a file or a command, or "" if none is named.

    Blocks: a command may take `_TOKEN_SECONDS`.

    Raises:
        ShippingError: The token cannot be read. The message contains neither it nor any output.
    """
    if team.token_env is not None:
        token, source = os.environ.get(team.token_env, ""), f"the variable {team.token_env}"
    elif team.token_file is not None:
        source = f"the file {team.token_file}"
        try:
            token = Path(os.path.expanduser(team.token_file)).read_text("utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "its name or content is not UTF-8 text"
            raise ShippingError(f"{source} ([team] token-file) cannot be read: {reason}") from None
    elif team.token_command is not None:
        token, source = _run_token_command(team.token_command), "the output of [team] token-command"
    else:
        return ""
    token = token.strip()
    if not (token and token.isascii() and token.isprintable()):
        raise ShippingError(
            f"{source} contains no token; store the one that your team's administrator gave you"
        )
    return token


def _run_token_command(command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - only the user and the administrator can set it
            command if IS_WINDOWS else shlex.split(command),  # Windows' programs split it
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=_TOKEN_SECONDS, check=True, encoding="utf-8", creationflags=NO_WINDOW,
            cwd=Path.home(),  # a relative program must not be one of the project's
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ShippingError(
            f"[team] token-command failed ({reason}); run it in a terminal to see why"
        ) from None
    return done.stdout


def _authorization(token: str) -> str:
    """Return the header for a token. A token `USER:SECRET` lets the collector know the user."""
    if ":" in token:
        return f"Basic {base64.b64encode(token.encode()).decode()}"
    return f"Bearer {token}"


def read_headers(settings: Settings) -> dict[str, str]:
    """Return the headers for the collector in the settings, with the token. Blocks.

    Raises:
        ShippingError: The token or the headers cannot be read.
    """
    headers = environment_headers()
    if token := read_token(settings.team):
        headers["authorization"] = _authorization(token)
    if headers:
        warn_if_readable(settings.ledger.otel_endpoint or "", "the collector's token")
    return headers


@asynccontextmanager
async def open_collector(
    resource: Mapping[str, str],
    settings: Settings,
    run: Run = asyncio.to_thread,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Collector]:
    """Open the collector in the settings, and close it on exit.

    Args:
        resource: The attributes that are the same for all records.
        settings: The user's settings.
        run: Runs blocking work on a thread.
        headers: What `read_headers` has returned before; by default, it is called.

    Raises:
        ShippingError: The token or the headers cannot be read.
    """
    if headers is None:
        headers = await run(partial(read_headers, settings))
    endpoint = settings.ledger.otel_endpoint or ""
    collector = Collector(endpoint, resource, headers, settings.team.ca_file)
    try:
        yield collector
    finally:
        await collector.aclose()


async def check_collector(settings: Settings) -> str | None:
    """Return why the collector in the settings accepts no calls, or None if it does."""
    try:
        async with open_collector({}, settings) as collector:
            return (await collector.check()) or None
    except SidecarError as error:
        return str(error)


async def send_report(
    queue: ShippingQueue,
    collector: Collector,
    run: Run,
    name: str,
    records: Sequence[ShippedRecord],
) -> str:
    """Send a report, such as a workspace's prompt file costs.

    A rejected report is not sent again, because the next day's report replaces it.

    Returns:
        Why the collector rejected the report, or an empty string if it accepted the report.

    Raises:
        CollectorError: The collector is unavailable.
        LedgerError: The ledger cannot be used.
    """
    reason = await collector.send(records, run)
    await run(partial(queue.accept_report, name))
    return reason


async def send_day_report(queue: ShippingQueue, collector: Collector, run: Run) -> str:
    """Report the totals of each day, and prices, unless they were reported today.

    Returns and raises the same as `send_report`.
    """
    if await run(partial(queue.has_report, DAY_REPORT)):
        return ""
    records = await run(queue.day_records)
    return await send_report(queue, collector, run, DAY_REPORT, records) if records else ""


@asynccontextmanager
async def _locked_against_others(queue: ShippingQueue, run: Run) -> AsyncIterator[bool]:
    """Lock the queue without blocking the event loop.

    Yields False if another process is sending calls.
    """
    path, stack = queue.ledger.path, ExitStack()
    try:
        try:
            lock = locked(path.with_name("shipping.lock"), 0.0)
            is_alone = await run(partial(stack.enter_context, lock))
        except OSError as error:
            raise explained(error, path) from error
        yield is_alone
    finally:
        await run(stack.close)


async def ship(
    queue: ShippingQueue,
    collector: Collector,
    run: Run = asyncio.to_thread,
    *,
    limit: int = BATCH,
    pause: float = 0.0,
) -> Shipped:
    """Send all queued calls, unless another process is already sending them.

    Args:
        queue: The calls.
        collector: The destination.
        run: Runs blocking work on a thread.
        limit: The maximum number of calls per request.
        pause: The delay between requests, in seconds.

    Raises:
        CollectorError: The collector is unavailable or seems to reject all calls. Calls that it
            accepted earlier are not sent again.
        LedgerError: The ledger cannot be used.
    """
    async with _locked_against_others(queue, run) as is_alone:
        shipped = Shipped(busy=not is_alone)
        while is_alone:
            batch = await run(partial(queue.next_batch, limit))
            if not batch.calls:
                break
            newest = await run(queue.newest_call)
            delivery = await collector.deliver(batch.calls, newest or batch.calls[-1], run)
            await run(partial(queue.accept, batch))
            shipped = Shipped(
                shipped.accepted + len(batch.calls) - delivery.rejected,
                shipped.rejected + delivery.rejected,
                reason=delivery.reason if delivery.rejected else shipped.reason,
                rejected_ids=(*shipped.rejected_ids, *map(_id_of, delivery.named)),
            )
            await asyncio.sleep(pause)
        return shipped


def _id_of(call: QueuedCall) -> str:
    return str(call.record.attributes["token_sidecar.call.id"])
