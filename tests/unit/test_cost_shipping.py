"""Tests that each call is shipped once, and that failures are handled."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import ClaudeHome
from sidecar.cli.cost import cost
from sidecar.config.load import load
from sidecar.config.paths import config_file, state_dir
from sidecar.config.settings import Settings
from sidecar.cost import shipping
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostRecordParams, FileCost
from sidecar.cost.ledger_events import Buckets, Cost, LedgerEvent
from sidecar.cost.prices import Prices
from sidecar.cost.records import (
    DayTotals,
    Identity,
    file_record,
    price_record,
    record_of,
    totals_record,
    usd_attribute,
)
from sidecar.cost.shipping import (
    CollectorError,
    Shipped,
    ShippingError,
    ShippingQueue,
    open_queue,
    ship,
)
from sidecar.endpoints.http import warn_if_readable
from sidecar.workspace.workspace import workspace_remotes
from tests.cases import read_rows
from tests.collector import Answer, Collector, calls_of, rejection
from tests.unit.cost_calls import call_of

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
EVENT = LedgerEvent(
    at=AT,
    model="claude-haiku-4-5",
    provider="anthropic",
    workspace="file:///home/someone/secret-project",
    session="session-1",
    request_id="msg_1",
    buckets=Buckets(
        input=100, cache_read=1000, cache_write_5m=200, cache_write_1h=50, output=30, reasoning=7
    ),
    estimated_tokens=1300,
)


def numbered(count: int, start: int = 0) -> list[LedgerEvent]:
    return [
        msgspec.structs.replace(EVENT, request_id=f"msg_{number}", agent="claude-code")
        for number in range(start, start + count)
    ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def book() -> Iterator[CostBook]:
    book = CostBook(state_dir())
    book.prices.load()
    yield book
    book.close()


def configure(collector: Collector | str, more: str = "") -> Settings:
    url = collector if isinstance(collector, str) else collector.url
    config_file().write_text(f'[ledger]\notel-endpoint = "{url}"\n{more}')
    loaded = load(None)
    assert loaded.problems == ()
    return loaded.settings


def queue_of(book: CostBook, settings: Settings) -> ShippingQueue:
    queue = open_queue(book, settings)
    assert queue is not None
    return queue


def send(book: CostBook, settings: Settings, limit: int = shipping.BATCH) -> Shipped:
    """Ship all queued calls."""

    async def run() -> Shipped:
        queue = queue_of(book, settings)
        async with shipping.open_collector(queue.identity.resource(), settings) as target:
            return await ship(queue, target, limit=limit)

    return asyncio.run(run())


def reject_some(collector: Collector, queue: ShippingQueue, start: int, end: int) -> set[str]:
    """Make the collector reject requests with any of the queued calls from `start` to `end`.

    Returns the set of the rejected ids. If a test removes an id, the collector accepts the call.
    """
    calls = queue.next_batch().calls[start:end]
    rejected = {str(call.record.attributes["token_sidecar.call.id"]) for call in calls}

    def answer(_path: str, body: bytes) -> Answer:
        return (400 if rejected.intersection(ids(calls_of(body))) else 200), b"", {}

    collector.answer = answer
    return rejected


def ids(calls: list[dict[str, Any]]) -> list[str]:
    """Return the ids of calls, without reports of other things."""
    return [call["token_sidecar.call.id"] for call in calls if "token_sidecar.call.id" in call]


def test_a_call_becomes_a_record_of_the_genai_conventions(
    collector: Collector, book: CostBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALT", "grain")
    team = '[team]\nuser = "jane@example.com"\nteam = "platform"\nsalt-env = "SALT"\n'
    book.ledger.record(EVENT)
    assert send(book, configure(collector, team)).accepted == 1
    (call,) = collector.calls()
    by_hand = (100 * 1 + 1000 * 0.1 + 200 * 1.25 + 50 * 2 + 37 * 5) / 10**6
    assert float(call.pop("token_sidecar.cost_usd")) == pytest.approx(by_hand, abs=1e-15)
    assert len(call.pop("service.instance.id")) == 32
    assert len(call.pop("token_sidecar.call.id")) == 32
    assert call.pop("service.version")

    def hashed(name: str) -> str:
        """Return a shortened hash, as computed by `openssl dgst -sha256 -hmac`."""
        return hmac.new(b"grain", name.encode(), "sha256").hexdigest()[:32]

    assert call == {
        "at": int(AT.timestamp()) * 10**9,
        "service.name": "token-sidecar",
        "user.hash": hashed("jane@example.com"),
        "team.id": "platform",
        "event.name": "gen_ai.client.inference.operation.details",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-haiku-4-5",
        "gen_ai.agent.name": "protocol",
        "gen_ai.conversation.id": hashed("session-1"),
        "gen_ai.usage.input_tokens": 1350,
        "gen_ai.usage.output_tokens": 37,
        "gen_ai.usage.cache_read.input_tokens": 1000,
        "gen_ai.usage.cache_creation.input_tokens": 250,
        "gen_ai.usage.cache_write.input_tokens": 250,
        "gen_ai.usage.reasoning.output_tokens": 7,
        "token_sidecar.call.version": 1,
        "token_sidecar.category": "main",
        "token_sidecar.estimated_tokens": 1300,
        "token_sidecar.cost_source": "list",
    }


@pytest.mark.parametrize(("branch", "sent"), read_rows("cost", "branches", "branch", "sent"))
def test_a_branch_is_sent_as_a_hash_or_as_its_label(branch: str, sent: str | None) -> None:
    labels = {"main": "main", "release/*": "release", "release/own": "never", "path": "/home/jane"}
    identity = Identity(installation="i", secret="s", salt="grain", branches=labels)  # noqa: S106
    call = record_of(msgspec.structs.replace(EVENT, branch=branch), 1, 0, identity)
    if sent == "hash":
        sent = hmac.new(b"grain", branch.encode(), "sha256").hexdigest()[:32]
    assert call.attributes.get("token_sidecar.branch") == sent


def test_the_reference_lists_every_attribute_that_leaves_the_machine() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/cost.md").read_text("utf-8")
    section = page[page.index("These attributes are all") : page.index("Without a salt,")]
    identity = Identity(installation="i", secret="s", salt="s", user="jane", team="a")  # noqa: S106
    cost = Cost(usd=Decimal(1), unpriced_tokens=5)
    whole = msgspec.structs.replace(
        EVENT, tier="flex", model="unknown", agent="codex", cost=cost, branch="main"
    )
    call = record_of(whole, 1, 0, identity)
    file = FileCost(
        uri="file:///CLAUDE.md", tokens=1, requests=1, cost_usd=1.0, cached_percent=0, text=""
    )
    price = price_record(Prices(), "anthropic", "claude-haiku-4-5", 1)
    assert price is not None
    file_cost = file_record(file, "CLAUDE.md", "file:///a", 1, identity)
    records = call, file_cost, totals_record(DayTotals(), 1, 1), price
    names = {*identity.resource()}.union(*(record.attributes for record in records))
    assert names <= set(re.findall(r"`([a-z_.]+)`", section))


@pytest.mark.parametrize(
    ("usd", "text"),
    [("0.000219", "0.000219"), ("0", "0"), ("1000", "1000"), ("1E-12", "0.000000000001")],
)
def test_costs_are_exact(usd: str, text: str) -> None:
    assert usd_attribute(Decimal(usd)) == text


def test_an_amended_call_is_sent_again_with_a_higher_version(
    collector: Collector, book: CostBook
) -> None:
    book.ledger.record_many(numbered(5))
    settings = configure(collector)
    send(book, settings)
    more = msgspec.structs.replace(EVENT.buckets, output=400)
    amended = msgspec.structs.replace(numbered(5)[2], buckets=more)
    for _ in range(2):  # running it again changes nothing
        book.ledger.record_many([amended, *numbered(1, start=5)])
    assert send(book, settings).accepted == 2
    first, again = collector.calls()[2], collector.calls()[5]
    assert first["token_sidecar.call.id"] == again["token_sidecar.call.id"]
    assert (first["token_sidecar.call.version"], again["token_sidecar.call.version"]) == (1, 2)
    assert again["gen_ai.usage.output_tokens"] == 407
    assert send(book, settings).accepted == 0


@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini-cli", "opencode"])
@pytest.mark.parametrize("later", [timedelta(0), timedelta(days=40)])
@pytest.mark.parametrize("telemetry", [None, "{}/1350/1000/37/7"])
def test_a_call_keeps_its_id_when_an_earlier_session_becomes_its_owner(
    collector: Collector, book: CostBook, agent: str, later: timedelta, telemetry: str | None
) -> None:
    def of(session: str, rank: int, at: datetime = AT) -> LedgerEvent:
        return msgspec.structs.replace(
            numbered(1)[0],
            agent=agent,
            session=session,
            rank=rank,
            at=at,
            category="main" if rank == 1 else "subagent",
            telemetry_id=None if telemetry is None else telemetry.format(session),
        )

    settings = configure(collector)
    book.ledger.record_many([of("fork", 3, AT + later)])
    assert send(book, settings).accepted == 1
    for rank, session in ((2, "middle"), (1, "first")):
        book.ledger.record_many([of(session, rank)])
        assert send(book, settings).accepted == 1
    sent = collector.calls()
    assert len(set(ids(sent))) == 1
    assert [call["token_sidecar.call.version"] for call in sent] == [1, 2, 3]
    assert len({call["gen_ai.conversation.id"] for call in sent}) == 3
    assert [call["token_sidecar.category"] for call in sent] == ["subagent", "subagent", "main"]
    assert sent[-1]["at"] == int(AT.timestamp()) * 10**9
    book.ledger.record_many([of("fork", 3, AT + later)])
    assert send(book, settings).accepted == 0


def test_a_call_that_was_not_sent_has_the_id_of_its_owner(
    collector: Collector, book: CostBook
) -> None:
    settings = configure(collector)
    send(book, settings)
    fork, first = (
        msgspec.structs.replace(
            numbered(1)[0], agent="codex", session=name, rank=rank, telemetry_id=f"{name}/1"
        )
        for rank, name in ((1, "fork"), (0, "first"))
    )
    book.ledger.record_many([fork, first])
    assert send(book, settings).accepted == 1
    assert ids(collector.calls()) == [hashlib.sha256(b"codex/first/1").hexdigest()[:32]]


def test_a_call_amended_while_its_batch_is_sent_is_sent_again(
    collector: Collector, book: CostBook
) -> None:
    book.ledger.record_many(numbered(3))
    more = msgspec.structs.replace(EVENT.buckets, output=400)
    pending = [msgspec.structs.replace(numbered(3)[1], buckets=more)]

    def amend(_path: str, _body: bytes) -> Answer:
        if pending:
            book.ledger.record_many([pending.pop()])
        return 200, b"", {}

    collector.answer = amend
    send(book, configure(collector))
    assert [call["gen_ai.usage.output_tokens"] for call in collector.calls()] == [37, 37, 37, 407]


def test_a_new_call_that_was_amended_before_is_sent_once(
    collector: Collector, book: CostBook
) -> None:
    settings = configure(collector)
    send(book, settings)  # from here on, the ledger tracks amended calls
    book.ledger.record_many(numbered(2))
    more = msgspec.structs.replace(EVENT.buckets, output=400)
    book.ledger.record_many([msgspec.structs.replace(numbered(2)[1], buckets=more)])
    assert send(book, settings).accepted == 2
    assert send(book, settings).accepted == 0


def test_calls_stay_queued_while_the_collector_is_away(book: CostBook) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    book.ledger.record_many(numbered(3))
    with pytest.raises(CollectorError, match=r"cannot be reached \(ConnectError\)"):
        send(book, configure(f"http://127.0.0.1:{port}"))
    collector = Collector()
    try:
        settings = load(None).settings
        target = msgspec.structs.replace(settings.ledger, otel_endpoint=collector.url)
        assert send(book, msgspec.structs.replace(settings, ledger=target)).accepted == 3
    finally:
        collector.close()


def test_the_cursor_moves_only_past_accepted_batches(collector: Collector, book: CostBook) -> None:
    book.ledger.record_many(numbered(30))
    collector.answer = lambda _path, _body: (
        (503, b"", {"Retry-After": "7"}) if len(collector.bodies) == 2 else (200, b"", {})
    )
    settings = configure(collector)
    with pytest.raises(CollectorError, match="HTTP 503") as failed:
        send(book, settings, limit=10)
    assert failed.value.retry_after == 7
    assert send(book, settings, limit=10).accepted == 20
    assert len(collector.calls()) == len(set(ids(collector.calls()))) == 30


def test_an_oversized_request_is_split(collector: Collector, book: CostBook) -> None:
    book.ledger.record_many(numbered(40))
    collector.answer = lambda _path, body: (413 if len(body) > 20_000 else 200, b"", {})
    assert send(book, configure(collector)).accepted == 40
    assert len(collector.calls()) == len(set(ids(collector.calls()))) == 40
    assert len(collector.accepted) == 4


@pytest.mark.parametrize("rejected", [1, 16, 40, 99])
def test_rejected_calls_are_counted_and_do_not_hold_up_others(
    collector: Collector, book: CostBook, rejected: int
) -> None:
    book.ledger.record_many(numbered(100))
    settings = configure(collector)
    poison = reject_some(collector, queue_of(book, settings), 0, rejected)
    shipped = send(book, settings, limit=50)
    assert (shipped.accepted, shipped.rejected) == (100 - rejected, rejected)
    assert "rejected calls (HTTP 400)" in shipped.reason
    assert set(shipped.rejected_ids) == poison
    assert len(collector.bodies) < 4 * rejected + 20
    book.ledger.record_many(numbered(5, start=100))
    assert send(book, settings)[:2] == (5, 0)
    assert set(ids(collector.calls())).isdisjoint(poison)


def test_a_rejected_call_is_sent_again_once_it_has_changed(
    collector: Collector, book: CostBook
) -> None:
    book.ledger.record_many(numbered(5))
    settings = configure(collector)
    [name] = reject_some(collector, queue_of(book, settings), 2, 3)
    send(book, settings)
    for output in (400, 500):  # the collector also rejects the first correction
        more = msgspec.structs.replace(EVENT.buckets, output=output)
        amended = msgspec.structs.replace(numbered(5)[2], buckets=more)
        book.ledger.record_many([amended, *numbered(1, start=output)])
        if output == 500:
            collector.answer = lambda _path, _body: (200, b"", {})
        assert send(book, settings).rejected == (output == 400)
    (corrected,) = [call for call in collector.calls() if call["token_sidecar.call.id"] == name]
    assert corrected["gen_ai.usage.output_tokens"] == 507
    assert CliRunner().invoke(cost, ["ship"]).exit_code == 0


def test_calls_that_a_collector_rejects_without_naming_them_are_counted(
    collector: Collector, book: CostBook
) -> None:
    book.ledger.record_many(numbered(20))
    collector.answer = lambda _path, _body: rejection(2, "too old")
    settings = configure(collector)
    shipped = send(book, settings)
    assert (shipped.accepted, shipped.rejected, shipped.rejected_ids) == (18, 2, ())
    assert shipped.reason.endswith("/v1/logs rejected calls: too old")
    assert len(collector.bodies) == 1, "a part of the request was accepted, so it is not repeated"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"partialSuccess":null}',
        b'{"partialSuccess":{"rejectedLogRecords":"0"}}',
        b'{"partialSuccess":{"rejectedLogRecords":0,"errorMessage":"soon deprecated"}}',
        b'{"partialSuccess":{"rejectedLogRecords":null},"other":1}',
    ],
)
def test_answers_of_collectors_that_accept_everything(
    collector: Collector, book: CostBook, body: bytes
) -> None:
    book.ledger.record_many(numbered(3))
    collector.answer = lambda _path, _body: (200, body, {"Content-Type": "application/json"})
    assert send(book, configure(collector))[:2] == (3, 0)


def test_rejected_calls_are_named_with_what_to_do(collector: Collector, book: CostBook) -> None:
    book.ledger.record_many(numbered(5))
    settings = configure(collector)
    [name] = reject_some(collector, queue_of(book, settings), 1, 2)
    first = CliRunner().invoke(cost, ["ship"])
    assert first.exit_code == 1
    assert "1 call rejected and not in the store" in first.output
    assert f"call {name}" in first.output
    assert "run `token-sidecar cost ship --since DAY`" in first.output
    assert CliRunner().invoke(cost, ["ship"]).exit_code == 0
    collector.answer = lambda _path, _body: (200, b"", {})
    again = CliRunner().invoke(cost, ["ship", "--since", "2026-11-01"])
    assert (again.exit_code, again.output) == (0, "Sent 5 calls.\n")
    assert len(set(ids(collector.calls()))) == 5


@pytest.mark.parametrize("count", [1, 3, 500])
def test_a_collector_that_rejects_everything_loses_nothing(
    collector: Collector, book: CostBook, count: int
) -> None:
    book.ledger.record_many(numbered(count))
    collector.answer = lambda _path, _body: (400, b"", {})
    settings = configure(collector)
    with pytest.raises(CollectorError, match="rejected calls"):
        send(book, settings)
    assert len(collector.bodies) < 50
    collector.answer = lambda _path, _body: (200, b"", {})
    assert send(book, settings)[:2] == (count, 0)
    assert len(collector.calls()) == len(set(ids(collector.calls()))) == count


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (401, b"", "", "refused the token; check"),
        (302, b"", "", "HTTP 302"),
        (200, b"<html>Sign in</html>", "text/html", "does not respond like an OTLP collector"),
    ],
)
def test_another_server_at_the_address_accepts_nothing(
    collector: Collector, book: CostBook, status: int, body: bytes, kind: str, message: str
) -> None:
    book.ledger.record_many(numbered(3))
    collector.answer = lambda _path, _body: (status, body, {"Content-Type": kind})
    settings = configure(collector)
    with pytest.raises(CollectorError, match=message):
        send(book, settings)
    assert queue_of(book, settings).next_batch().before == (0, 0)


def test_two_processes_do_not_send_the_same_calls(collector: Collector, book: CostBook) -> None:
    book.ledger.record_many(numbered(10))
    settings = configure(collector)
    others: list[Shipped] = []

    def ship_meanwhile(_path: str, _body: bytes) -> Answer:
        other = CostBook(state_dir())
        others.append(send(other, settings))
        other.close()
        return 200, b"", {}

    collector.answer = ship_meanwhile
    assert send(book, settings).accepted == 10
    assert [other.busy for other in others] == [True]


def test_a_cursor_that_another_process_moved_is_not_moved_back(
    collector: Collector, book: CostBook
) -> None:
    book.ledger.record_many(numbered(10))
    settings = configure(collector)
    queue = queue_of(book, settings)
    early = queue.next_batch(limit=4)
    assert send(book, settings).accepted == 10
    queue.accept(early)
    assert queue.next_batch().calls == []


def test_headers_come_from_the_environment(
    collector: Collector, book: CostBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20abc,x-team=a")
    book.ledger.record(EVENT)
    send(book, configure(collector))
    (headers,) = [
        {name.lower(): value for name, value in header.items()} for header in collector.headers
    ]
    assert (headers["authorization"], headers["x-team"]) == ("Bearer abc", "a")


@pytest.mark.parametrize(
    "value", ["x-key=K\u00e4se", "x-key=K%0Aase", "x-\u00e4=Kase", "Kase", "x y=Kase"]
)
def test_headers_that_cannot_be_sent_are_reported_without_quoting_them(
    collector: Collector, book: CostBook, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", value)
    book.ledger.record(EVENT)
    with pytest.raises(ShippingError, match="OTEL_EXPORTER_OTLP_HEADERS") as failed:
        send(book, configure(collector))
    assert "ase" not in str(failed.value).replace("separate", "")
    assert collector.bodies == []


@pytest.mark.parametrize(
    ("endpoint", "headers", "warnings"),
    [
        ("http://collector.test", "x-key=Kase", 1),
        ("http://collector.test", "", 0),
        ("https://collector.test", "x-key=Kase", 0),
        ("http://127.0.0.1:9", "x-key=Kase", 0),
    ],
)
def test_headers_without_encryption_are_warned_of_once(
    book: CostBook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    endpoint: str, headers: str, warnings: int,
) -> None:  # fmt: skip
    warn_if_readable.cache_clear()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    settings = configure(endpoint)
    for _ in range(2):
        send(book, settings)
    assert len(caplog.messages) == warnings
    assert "Kase" not in caplog.text


def test_a_user_without_a_salt_is_not_shipped(
    collector: Collector, book: CostBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SALT", raising=False)
    with pytest.raises(ShippingError, match="salt-env is not"):
        open_queue(book, configure(collector, '[team]\nuser = "jane"\n'))
    with pytest.raises(ShippingError, match=r"SALT .* is not set"):
        open_queue(book, configure(collector, '[team]\nuser = "jane"\nsalt-env = "SALT"\n'))


def test_no_shipped_value_is_the_key_of_hashes(collector: Collector, book: CostBook) -> None:
    book.ledger.record(EVENT)
    settings = configure(collector)
    secret = queue_of(book, settings).identity.secret
    send(book, settings)
    (call,) = collector.calls()

    def hashed(key: str) -> str:
        return hmac.new(key.encode(), b"session-1", "sha256").hexdigest()[:32]

    assert call["gen_ai.conversation.id"] == hashed(secret)
    assert call["gen_ai.conversation.id"] not in {hashed(str(value)) for value in call.values()}
    assert secret.encode() not in b"".join(body for _path, body in collector.bodies)
    assert queue_of(book, settings).identity.secret == secret


def test_a_new_salt_sends_all_calls_again_under_the_same_ids(
    collector: Collector, book: CostBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.ledger.record_many(numbered(3))
    settings = configure(collector, '[team]\nuser = "jane"\nsalt-env = "SALT"\n')
    for salt in ("old", "new"):
        monkeypatch.setenv("SALT", salt)
        assert send(book, settings).accepted == 3
    old, new = collector.calls()[:3], collector.calls()[3:]
    assert ids(old) == ids(new)
    assert {call["user.hash"] for call in old}.isdisjoint(call["user.hash"] for call in new)


def test_a_dry_run_as_another_team_changes_nothing(collector: Collector, book: CostBook) -> None:
    book.ledger.record_many(numbered(3))
    former, other = (configure(collector, f'[team]\nteam = "{team}"\n') for team in "ab")
    send(book, former)
    queue = open_queue(book, other, dry_run=True)
    assert queue is not None
    assert (queue.identity.team, len(queue.next_batch().calls)) == ("b", 3)
    assert send(book, former).accepted == 0


def test_totals_and_prices_are_reported_once_a_day(collector: Collector, book: CostBook) -> None:
    days = [AT, AT + timedelta(days=1), AT + timedelta(days=1)]
    events = [
        msgspec.structs.replace(event, at=at) for event, at in zip(numbered(3), days, strict=True)
    ]
    # The agent reports no id for this call, so the store counts it as one with the first call.
    same = msgspec.structs.replace(events[0], telemetry_id="msg_0")
    events[0] = msgspec.structs.replace(same, request_id="other")
    book.ledger.record_many([*events, same])
    configure(collector, '[[price]]\nmodels = ["own"]\ninput = 1.0\noutput = 2.0\n')
    book.ledger.record(msgspec.structs.replace(events[1], model="own", request_id="own"))
    for _ in range(2):
        assert CliRunner().invoke(cost, ["ship"]).exit_code == 0
    reports = [call for call in collector.calls() if "token_sidecar.day.calls" in call]
    assert [
        (
            report["token_sidecar.day"],
            report["token_sidecar.day.calls"],
            report["gen_ai.usage.input_tokens"],
            report["gen_ai.usage.output_tokens"],
            report["token_sidecar.cost_usd"],
        )
        for report in reports
    ] == [
        ("2026-11-01", 1, 1350, 37, "0.000735"),
        ("2026-11-02", 3, 4050, 111, "0.002894"),
    ]
    (price,) = [call for call in collector.calls() if "token_sidecar.price.input" in call]
    assert price["gen_ai.request.model"] == "claude-haiku-4-5", "own prices are not sent"
    assert Decimal(price["token_sidecar.price.output"]) == 5


def test_only_the_name_of_a_project_is_sent(collector: Collector, book: CostBook) -> None:
    home = Path.home()
    for number, folder in enumerate(
        ("projects/site", "projects/site/api", "projects/tool-1", "projects/other")
    ):
        workspace = (home / folder).as_uri()
        book.ledger.record(call_of(workspace=workspace, tokens=number + 1))
    labels = '[team.labels]\n"~/projects/site" = "website"\n"~/projects/tool-*" = "tools"\n'
    send(book, configure(collector, labels))
    sent = {
        call["gen_ai.usage.input_tokens"]: call.get("token_sidecar.project")
        for call in collector.calls()
    }
    assert sent == {1: "website", 2: "website", 3: "tools", 4: None}
    assert not any(b"projects" in body for _path, body in collector.bodies)
    renamed = labels.replace("website", "home page")
    assert send(book, configure(collector, renamed)).accepted == 4
    names = {call.get("token_sidecar.project") for call in collector.calls()[-4:]}
    assert names == {"other", "tools", None}, "a name with a space may be a text"


@pytest.mark.parametrize(
    "place",
    [
        "github.com/acme/site",
        "git@github.com:Acme/site.git",
        "https://github.com/acme/*",
        "github.com/acme",
    ],
)
def test_a_project_can_be_named_by_its_git_remote(
    collector: Collector, book: CostBook, tmp_path: Path, place: str
) -> None:
    for name, url in (
        ("one", "git@github.com:acme/site.git"),
        ("two", "https://jane:secret@github.com/acme/site"),
        ("three", "ssh://git@github.com:22/acme/site.git/"),
        ("fork", "git@example.com:jane/site"),
        ("none", None),
    ):
        subprocess.run(["git", "init", "-q", tmp_path / name], check=True)
        if url is not None:
            subprocess.run(
                ["git", "-C", tmp_path / name, "remote", "add", "origin", url], check=True
            )
    upstream = ["remote", "add", "upstream", "https://github.com/acme/site"]
    subprocess.run(["git", "-C", tmp_path / "fork", *upstream], check=True)
    folders = ("one/src", "two", "three", "fork", "none", "gone")
    (tmp_path / "one/src").mkdir()
    for number, folder in enumerate(folders):
        book.ledger.record(call_of(workspace=(tmp_path / folder).as_uri(), tokens=number + 1))
    settings = configure(collector, f'[team.labels]\n"{place}" = "website"\n')
    queue = open_queue(book, settings, workspace_remotes)
    assert queue is not None
    records = [call.record.attributes for call in queue.next_batch().calls]
    names = [record.get("token_sidecar.project") for record in records]
    assert names == ["website"] * 4 + [None] * 2
    assert not re.search("acme|github|secret", str(records))


def test_git_does_not_run_if_all_labels_are_of_folders(
    collector: Collector, book: CostBook
) -> None:
    book.ledger.record(EVENT)

    def fail(workspace: str) -> list[str]:
        raise AssertionError(workspace)

    settings = configure(collector, '[team.labels]\n"~/site" = "website"\n"/other" = "other"\n')
    queue = open_queue(book, settings, fail)
    assert queue is not None
    assert len(queue.next_batch().calls) == 1


def test_two_open_queues_with_different_identities_do_not_send_in_turn(
    collector: Collector, book: CostBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the salt changes, an editor that is still running uses the old one."""
    book.ledger.record_many(numbered(3))
    settings = configure(collector, '[team]\nsalt-env = "SALT"\n')
    queues = []
    for salt in ("former", "new"):
        monkeypatch.setenv("SALT", salt)
        queues.append(queue_of(book, settings))

    async def ship_each() -> int:
        sent = 0
        for queue in queues:
            async with shipping.open_collector(queue.identity.resource(), settings) as target:
                sent += (await ship(queue, target)).accepted
        return sent

    assert [asyncio.run(ship_each()) for _ in range(3)] == [6, 0, 0]


def test_an_agents_calls_keep_their_ids_in_a_new_ledger(tmp_path: Path) -> None:
    """If a ledger is damaged, a new ledger is created and the agent's files are read again."""
    settings = configure("http://127.0.0.1:9")
    queued = []
    for name in ("old", "new"):
        book = CostBook(tmp_path / name)
        for event in numbered(3):
            book.ledger.record(msgspec.structs.replace(event, agent="opencode"))
            book.ledger.record(aider_call(event))
            book.ledger.record(msgspec.structs.replace(EVENT, request_id=None))
        calls = queue_of(book, settings).next_batch().calls
        queued.append([call.record.attributes["token_sidecar.call.id"] for call in calls])
        book.close()
    old, new = queued
    assert old[::3] == new[::3]
    assert old[1::3] == new[1::3], "aider's calls, whose session is a path"
    assert len({*old, *new}) == 12, "calls without an id differ"


def aider_call(event: LedgerEvent) -> LedgerEvent:
    """Return one of the calls of a chat, which all have the time of its start."""
    session = "/home/someone/project#2026-11-01 12:00:00"
    number = (event.request_id or "").rpartition("_")[2]
    return msgspec.structs.replace(
        event, agent="aider", session=session, request_id=f"{session}#{number}"
    )


def test_a_repository_cannot_switch_shipping_on(tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text(
        '[ledger]\notel-endpoint = "http://127.0.0.1:9"\n[team]\nteam = "theirs"\n'
    )
    loaded = load(tmp_path)
    assert loaded.settings.ledger.otel_endpoint is None
    assert loaded.settings.team.team is None
    assert sorted(problem.key for problem in loaded.problems) == ["ledger", "team"]


def test_no_text_path_title_or_key_leaves(
    collector: Collector, book: CostBook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = "PLANTED-SECRET"  # noqa: S105
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(hours=1)
    root = tmp_path / f"{secret}-project"
    root.mkdir()
    (root / "CLAUDE.md").write_text(f"{secret} rules\n@{secret}.md\n")
    (root / f"{secret}.md").write_text(f"more {secret} rules")
    session = home.session(root)
    session.reply()
    session.reply()
    monkeypatch.setenv("SALT", secret)
    arn = f"arn:aws:bedrock:us-east-1:{secret}:inference-profile/us.anthropic.claude-opus-5-v1:0"
    names = (
        f"models/{secret}/llama.gguf", f"home/{secret}/phi.gguf", f"ollama/{secret}/own:8b", arn,
        f"C:\\Users\\{secret}\\gemma.GGUF", f"bedrock/{arn}", f"ft:gpt-4o:{secret}:{secret}:1",
        f"/home/jane/{secret}", f"~/{secret}", f"D:\\models\\{secret}", f"sk-ant-{secret}", f"jane@{secret}.com",
        f"accounts/{secret}/models/own-2", "openrouter/anthropic/claude-opus-5", "Qwen/Qwen3-8B",
    )  # fmt: skip
    for number, name in enumerate(names):
        usage = {"input_tokens": 5, "output_tokens": 1}
        book.record(CostRecordParams(model=name, usage=usage, request_id=f"{number}"))
    for name in (f"{secret}@example.com", f"gpu7.{secret}.example.com:8000", secret):
        book.record(CostRecordParams(model="gpt-5", provider=name, usage=usage, request_id=name))
    book.record(
        CostRecordParams(
            model=f"/models/{secret}-folder/qwen3.gguf",
            provider=f"my provider {secret}",
            usage={"input_tokens": 5, "output_tokens": 1, "note": secret},
            category=f"{secret} category",
            workspace=f"file:///home/{secret}",
            session=f"{secret} title",
            request_id=f"{secret}/request",
        )
    )
    book.close()
    team = f'[team]\nuser = "{secret}@example.com"\nsalt-env = "SALT"\n'
    configure(collector, team)
    result = CliRunner().invoke(cost, ["ship", "--dry-run"])
    assert result.exit_code == 0, result.output
    sent = CliRunner().invoke(cost, ["ship"])
    assert sent.output.startswith("Sent "), sent.output
    records = collector.calls()
    calls = [record for record in records if "token_sidecar.call.id" in record]
    files = [record for record in records if "token_sidecar.file.id" in record]
    assert {file["token_sidecar.file.name"] for file in files} == {"CLAUDE.md", "other"}
    others = [record for record in records if record not in calls and record not in files]
    assert {record["event.name"] for record in others} == {
        "token_sidecar.day",
        "token_sidecar.price",
    }
    assert set().union(*files) == {
        "at", "event.name", "service.name", "service.version", "service.instance.id", "user.hash",
        "token_sidecar.file.id", "token_sidecar.file.workspace", "token_sidecar.file.name",
        "token_sidecar.file.tokens", "token_sidecar.file.calls", "token_sidecar.cost_usd",
    }  # fmt: skip
    assert {"claude-code", "protocol"} <= {call["gen_ai.agent.name"] for call in calls}
    assert {
        "qwen3.gguf", "llama.gguf", "phi.gguf", "gemma.GGUF", "own:8b", "own-2", "ft:gpt-4o",
        "us.anthropic.claude-opus-5-v1:0", "openrouter/anthropic/claude-opus-5", "Qwen/Qwen3-8B",
    } <= {call["gen_ai.request.model"] for call in calls}  # fmt: skip
    assert {call["token_sidecar.category"] for call in calls} == {"main", "other"}
    for body in (*(body for _path, body in collector.bodies), result.output.encode()):
        assert secret.encode() not in body
        assert str(tmp_path).encode() not in body
    assert all(secret not in str(headers) for headers in collector.headers)


def test_prompt_files_are_reported_once_a_day_and_workspace(
    collector: Collector, tmp_path: Path
) -> None:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(hours=1)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "CLAUDE.md").write_text("Be brief.")
        session = home.session(tmp_path / name)
        for _ in range(2 + (name == "two")):
            session.reply()
    configure(collector)

    def files() -> list[dict[str, Any]]:
        return [call for call in collector.calls() if "token_sidecar.file.id" in call]

    def refuse_files(_path: str, body: bytes) -> Answer:
        return (503 if b"token_sidecar.file.id" in body else 200), b"", {}

    collector.answer = refuse_files
    assert CliRunner().invoke(cost, ["ship"]).exit_code == 1
    assert files() == []
    collector.answer = lambda _path, _body: (200, b"", {})
    assert CliRunner().invoke(cost, ["ship"]).exit_code == 0
    assert sorted(file["token_sidecar.file.calls"] for file in files()) == [2, 3]
    assert len({file["token_sidecar.file.workspace"] for file in files()}) == 2
    assert CliRunner().invoke(cost, ["ship"]).exit_code == 0
    assert len(files()) == 2
    configure(collector, '[team]\nteam = "platform"\n')
    assert CliRunner().invoke(cost, ["ship"]).exit_code == 0
    assert [file.get("team.id") for file in files()] == [None, None, "platform", "platform"]


def test_each_worktree_reports_only_its_own_calls(collector: Collector, tmp_path: Path) -> None:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(hours=1)
    home.folder.mkdir(parents=True, exist_ok=True)
    (home.folder / "CLAUDE.md").write_text("Be brief.")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path / "main")]
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "main")], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "Start"], check=True)
    for name in ("one", "two"):
        subprocess.run([*git, "worktree", "add", "--quiet", str(tmp_path / name)], check=True)
    for name in ("main", "one", "two"):
        home.session(tmp_path / name).reply()
    configure(collector)
    assert CliRunner().invoke(cost, ["ship"]).exit_code == 0
    files = [call for call in collector.calls() if "token_sidecar.file.id" in call]
    assert len({file["token_sidecar.file.workspace"] for file in files}) == 3
    assert [file["token_sidecar.file.calls"] for file in files] == [1, 1, 1]


def test_a_call_in_a_nested_root_counts_once_for_each_file(
    collector: Collector, tmp_path: Path
) -> None:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(hours=1)
    home.folder.mkdir(parents=True, exist_ok=True)
    (home.folder / "CLAUDE.md").write_text("Be brief.")
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    for root in (outer, inner):
        (root / ".git").mkdir(parents=True)
        home.session(root).reply()
    (outer / "plain").mkdir()
    home.session(outer / "plain").reply()
    (outer / "CLAUDE.md").write_text("Be polite to everyone.")
    configure(collector)
    assert CliRunner().invoke(cost, ["ship"]).exit_code == 0
    files = [call for call in collector.calls() if "token_sidecar.file.id" in call]
    calls: dict[str, list[int]] = {}
    for file in files:
        calls.setdefault(file["token_sidecar.file.id"], []).append(file["token_sidecar.file.calls"])
    assert sorted(sorted(each) for each in calls.values()) == [[1, 2], [1, 2]]


def test_a_rejected_report_of_prompt_files_does_not_stop_others(
    collector: Collector, tmp_path: Path
) -> None:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(hours=1)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "CLAUDE.md").write_text("Be brief.")
        home.session(tmp_path / name).reply()
    configure(collector)
    reports: list[bytes] = []

    def refuse_first(_path: str, body: bytes) -> Answer:
        reports.extend([body] if b"token_sidecar.file.id" in body else [])
        return (400 if body in reports[:1] else 200), b"", {}

    collector.answer = refuse_first
    result = CliRunner().invoke(cost, ["ship"])
    assert result.exit_code == 1
    assert result.output.count("not reported: ") == 1
    assert len(reports) == 2
    assert CliRunner().invoke(cost, ["ship"]).exit_code == 0
    assert len(reports) == 2


def test_a_dry_run_prints_what_would_be_sent_and_sends_nothing(
    collector: Collector, book: CostBook
) -> None:
    book.ledger.record_many(numbered(3))
    book.close()
    configure(collector)
    result = CliRunner().invoke(cost, ["ship", "--dry-run"])
    assert collector.bodies == []
    printed, prices = [json.loads(line) for line in result.output.splitlines()]
    assert "token_sidecar.price" in json.dumps(prices)
    CliRunner().invoke(cost, ["ship", "--once"])
    ((records,),) = [
        [scope["logRecords"] for scope in part["scopeLogs"]] for part in printed["resourceLogs"]
    ]
    names = [
        {item["key"]: item["value"].get("stringValue") for item in record["attributes"]}
        for record in records
    ]
    assert [call["token_sidecar.call.id"] for call in names] == ids(collector.calls())
    assert set(names[0]) | {"service.name", "service.version", "service.instance.id", "at"} == set(
        collector.calls()[0]
    )


@pytest.mark.parametrize("text", ["", '[team]\nteam = "core"\n'])
def test_a_dry_run_needs_no_collector(book: CostBook, text: str) -> None:
    book.ledger.record_many(numbered(3))
    book.close()
    config_file().write_text(text)
    result = CliRunner().invoke(cost, ["ship", "--dry-run"])
    assert result.exit_code == 0
    printed, _prices = [json.loads(line) for line in result.output.splitlines()]
    (records,) = [scope["logRecords"] for scope in printed["resourceLogs"][0]["scopeLogs"]]
    assert len(records) == 3
    assert CliRunner().invoke(cost, ["ship"]).exit_code == 2
    with book.ledger.reader() as connection:  # nothing counts as queued for a collector
        assert connection.execute("SELECT count(*) FROM current_destination").fetchone() == (0,)


def test_what_the_command_prints_and_how_it_ends(collector: Collector, book: CostBook) -> None:
    book.ledger.record_many(numbered(3))
    book.close()
    config_file().write_text("")
    missing = CliRunner().invoke(cost, ["ship"])
    assert (missing.exit_code, "no collector is configured" in missing.output) == (2, True)
    configure(collector)
    collector.answer = lambda _path, _body: (503, b"", {})
    away = CliRunner().invoke(cost, ["ship"])
    assert (away.exit_code, "HTTP 503; the calls remain queued" in away.output) == (1, True)
    collector.answer = lambda _path, _body: (200, b"", {})
    result = CliRunner().invoke(cost, ["ship", "--json"])
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert (printed["accepted"], printed["rejected"], printed["busy"]) == (3, 0, False)
    assert CliRunner().invoke(cost, ["ship", "--follow", "--dry-run"]).exit_code == 2


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SSL_CERT_FILE", "/no/such/file.pem", "SSL_CERT_FILE or SSL_CERT_DIR cannot be read"),
        ("SSL_CERT_FILE", __file__, "SSL_CERT_FILE or SSL_CERT_DIR cannot be read"),
        ("HTTPS_PROXY", "socks5://127.0.0.1:9", "SOCKS proxies are not supported"),
        ("ALL_PROXY", "htp://127.0.0.1:9", "NO_PROXY contains an address that cannot be used"),
        ("NO_PROXY", "fd00::/8,localhost", "an IPv6 network in NO_PROXY"),
    ],
)
def test_settings_of_the_environment_that_cannot_be_used_are_named(
    book: CostBook, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    book.ledger.record(EVENT)
    book.close()
    configure("https://collector.example.com:4318")
    for name in ("SSL_CERT_FILE", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv(variable, value)
    result = CliRunner().invoke(cost, ["ship"])
    assert result.exit_code == 1
    assert " ".join(result.output.split()).count(message) == 1
    assert "remain queued" in result.output


@pytest.mark.parametrize("path", ["", "/", "/v1/logs", "/v1/logs/", "/tenant"])
def test_calls_are_posted_to_the_path_of_logs_once(
    collector: Collector, book: CostBook, path: str
) -> None:
    book.ledger.record(EVENT)
    assert send(book, configure(collector.url + path)).accepted == 1
    [(posted, _body)] = collector.bodies
    assert posted == ("/tenant/v1/logs" if path == "/tenant" else "/v1/logs")


def test_the_form_of_the_address_does_not_send_calls_again(
    collector: Collector, book: CostBook
) -> None:
    book.ledger.record(EVENT)
    assert send(book, configure(collector.url)).accepted == 1
    assert send(book, configure(f"{collector.url}/v1/logs")).accepted == 0
