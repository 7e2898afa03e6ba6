"""Tests that lost caches are noticed, explained by what is known, and added up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from sidecar.conversations.context_rows import cache_losses_text
from sidecar.cost.book import CostBook
from sidecar.cost.cache_losses import CacheChain, CacheFacts, CacheLoss, ChainCall, LossCause
from sidecar.cost.cost_protocol import CostDetailParams
from sidecar.cost.ledger import Ledger
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices
from sidecar.cost.sums import Scope, read_events
from sidecar.workspace.usage_details import cache_losses

START = datetime(2026, 11, 20, 10, tzinfo=UTC)
CLAUDE, GPT, KIMI = "claude-sonnet-4-5", "gpt-5", "kimi-k2-0905-preview"


class Call(NamedTuple):
    """A call: its prompt, what it read and wrote, when its reply was complete, and its facts."""

    prompt: int
    read: int
    written: int = 0
    minutes: float = 0.0
    model: str = CLAUDE
    written_1h: int = 0
    request: str = ""
    facts: CacheFacts = CacheFacts()

    def in_chain(self, number: int) -> ChainCall:
        at = START + timedelta(minutes=self.minutes or number * 0.5)
        return ChainCall(
            self.request or f"r{number}",
            at,
            self.model,
            self.prompt,
            self.read,
            self.written,
            self.written_1h,
            self.facts,
        )


COMPACTED = CacheFacts(is_compacted=True)


def verdicts(*calls: Call) -> list[CacheLoss | None]:
    chain, found = CacheChain(), list[CacheLoss | None]()
    for number, call in enumerate(calls):
        chain, loss = chain.judge(call.in_chain(number))
        found.append(loss)
    return found


def last_verdict(*calls: Call) -> CacheLoss | None:
    return verdicts(*calls)[-1]


FIRST = Call(50_000, 0, 50_000)
WARM = Call(51_000, 50_000, 1_000, facts=CacheFacts(effort="high", shape="a", version="1"))


def lost(minutes: float = 1.0, model: str = CLAUDE, **facts: Any) -> Call:
    known: dict[str, Any] = {"effort": "high", "shape": "a", "version": "1"}
    return Call(52_000, 0, 52_000, minutes, model, facts=CacheFacts(**(known | facts)))


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        (lost(), LossCause.UNEXPLAINED),
        (lost(minutes=6), LossCause.EXPIRED),
        (lost(minutes=6, sent_at=START + timedelta(minutes=5)), LossCause.LIKELY_EXPIRED),
        (lost(model="claude-opus-4-5"), LossCause.MODEL),
        (lost(minutes=900, model="claude-opus-4-5"), LossCause.MODEL),
        (lost(effort="low"), LossCause.EFFORT),
        (lost(effort=None), LossCause.UNEXPLAINED),
        (lost(shape="b"), LossCause.SHAPE),
        (lost(version="2"), LossCause.VERSION),
        (lost(version="2", shape="b"), LossCause.SHAPE),
        (lost(is_edited=True), LossCause.HISTORY),
        (lost(is_compacted=True, shape="b"), LossCause.COMPACTION),
        (lost(diagnosis="tools_changed"), LossCause.TOOLS),
        (lost(diagnosis="messages_changed", is_compacted=True), LossCause.COMPACTION),
        (lost(minutes=6, diagnosis="previous_message_not_found"), LossCause.EXPIRED),
        (lost(diagnosis="unavailable"), LossCause.UNEXPLAINED),
    ],
)
def test_the_cause_is_what_the_file_says(call: Call, cause: LossCause) -> None:
    assert last_verdict(FIRST, WARM, call) == CacheLoss(51_000, cause)


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([FIRST], "the first call of a session has no cache"),
        ([FIRST, Call(60_000, 40_000, 20_000)], "a fall by a fifth is no loss"),
        ([Call(9_000, 0, 9_000), Call(9_500, 0, 9_500)], "a small prompt"),
        ([Call(50_000, 0), Call(51_000, 0)], "the client asks for no cache"),
        ([Call(50_000, 0, model=GPT), Call(51_000, 0, model=GPT)], "nothing has been read yet"),
        ([FIRST, WARM, Call(9_000, 8_500, facts=COMPACTED)], "a compaction to a short summary"),
        ([FIRST, WARM, Call(500, 0)], "a title"),
        ([FIRST, WARM, Call(500, 0), Call(52_000, 51_000, 1_000)], "the call after a title"),
        ([FIRST, Call(20_000, 19_000, 1_000), Call(60_000, 20_000, 40_000)], "a branch"),
        ([FIRST, WARM, WARM._replace(request="r1")], "a call that is read again"),
    ],
)
def test_no_cache_was_lost(calls: list[Call], why: str) -> None:
    assert set(verdicts(*calls)) == {CacheLoss()}, why


def test_a_compaction_costs_what_the_shorter_prompt_did_not_read() -> None:
    compacted = Call(15_000, 12_000, 3_000, facts=COMPACTED)
    assert last_verdict(FIRST, WARM, compacted) == CacheLoss(3_000, LossCause.COMPACTION)


def test_writes_for_an_hour_last_an_hour() -> None:
    first = Call(50_000, 0, 50_000, written_1h=50_000)
    gone = Call(51_000, 0, 51_000, 40)
    assert last_verdict(first, gone) == CacheLoss(50_000, LossCause.UNEXPLAINED)
    assert last_verdict(first, gone._replace(minutes=61)) == CacheLoss(50_000, LossCause.EXPIRED)
    read = Call(50_500, 50_000, 0, 50)
    unread = CacheLoss(50_000, LossCause.UNEXPLAINED)
    assert last_verdict(first, read, gone._replace(minutes=105)) == unread


@pytest.mark.parametrize(
    ("model", "agent", "minutes", "cause"),
    [
        (GPT, "", 9, LossCause.UNEXPLAINED),
        (GPT, "", 11, LossCause.LIKELY_EXPIRED),
        (GPT, "codex", 11, LossCause.UNEXPLAINED),
        (GPT, "codex", 1_500, LossCause.LIKELY_EXPIRED),
        (KIMI, "", 9_000, LossCause.UNEXPLAINED),
    ],
)
def test_a_vendor_without_a_fixed_lifetime_has_probably_dropped_the_prompt(
    model: str, agent: str, minutes: float, cause: LossCause
) -> None:
    facts = CacheFacts(agent=agent)
    calls = [Call(50_000, 0, model=model), Call(51_000, 50_000, minutes=1, model=model)]
    loss = last_verdict(*calls, Call(52_000, 0, minutes=1 + minutes, model=model, facts=facts))
    assert loss == CacheLoss(51_000, cause)


def test_a_call_that_is_read_again_keeps_its_verdict() -> None:
    compacted = lost(is_compacted=True)._replace(request="again")
    plain = lost()._replace(request="again")
    assert (
        verdicts(FIRST, WARM, compacted, plain)[2:] == [CacheLoss(51_000, LossCause.COMPACTION)] * 2
    )


def test_an_older_call_is_not_judged() -> None:
    assert last_verdict(FIRST, WARM._replace(minutes=5), lost(minutes=4)) is None


def event(request: str, loss: CacheLoss | None, **values: Any) -> LedgerEvent:
    buckets = Buckets(cache_write_5m=40_000, cache_write_1h=8_000, input=4_000, output=100)
    made = LedgerEvent(
        at=START,
        model=CLAUDE,
        provider="anthropic",
        buckets=buckets,
        session="s",
        agent="claude-code",
        request_id=request,
        rank=1,
        loss=loss,
    )
    return msgspec.structs.replace(made, **values)


EXPIRED = CacheLoss(51_000, LossCause.EXPIRED)
PRICE = Decimal(8_000 * 6 + 40_000 * 3.75 + 3_000 * 3 - 51_000 * 0.3).scaleb(-6)


def test_a_loss_costs_the_price_paid_less_a_cache_read() -> None:
    assert Prices().cost(event("a", EXPIRED)).lost == PRICE
    assert Prices().cost(event("a", CacheLoss())).lost is None
    assert Prices().cost(event("a", EXPIRED, model="unknown-1")).lost is None


def test_the_ledger_keeps_the_verdict(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.prices.load()
    ledger.record_many([event("a", EXPIRED), event("b", CacheLoss()), event("c", None)])
    found = {one.request_id: one for one in read_events(ledger, Scope())}
    assert [found[name].loss for name in "abc"] == [EXPIRED, CacheLoss(), None]
    assert found["a"].cost is not None
    assert found["a"].cost.lost == PRICE


def test_a_call_that_was_recorded_before_gets_its_verdict(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.record(event("a", None))
    ledger.record_many([event("a", EXPIRED)])
    ledger.record_many([event("a", None)])
    ledger.record_many([event("a", CacheLoss(), session="copy", rank=2)])
    (found,) = read_events(ledger, Scope())
    assert found.loss == EXPIRED
    assert found.cost == ledger.prices.cost(found)


def test_losses_are_reported_apart_from_the_rest_of_the_cost(tmp_path: Path) -> None:
    book = CostBook(tmp_path)
    switched = CacheLoss(20_000, LossCause.MODEL)
    book.ledger.record_many(
        [
            event("a", EXPIRED),
            event("b", EXPIRED),
            event("c", switched, at=START + timedelta(days=1)),
            event("d", CacheLoss()),
            event("e", CacheLoss(30_000, LossCause.EXPIRED), model="unknown-1", session="t"),
        ]
    )
    all_calls = book.detail(CostDetailParams(by=("agent",)))
    report = book.detail(CostDetailParams(by=("cache-loss",)))
    rows = {row.cache_loss: row for row in report.rows}
    assert {cause: (row.calls, row.prompt_tokens) for cause, row in rows.items()} == {
        "expired": (3, 132_000),
        "model switch": (1, 20_000),
        None: (1, 5 * 52_000 - 152_000),
    }
    assert rows["expired"].cost_usd == pytest.approx(float(2 * PRICE))
    assert rows["expired"].partial
    assert report.totals == all_calls.totals
    days = book.detail(CostDetailParams(by=("day", "cache-loss")))
    assert len(days.rows) == 4
    assert days.totals == all_calls.totals
    found = cache_losses(book, "s", "claude-code")
    assert [(one.cause, one.calls) for one in found] == [("expired", 2), ("model switch", 1)]
    assert cache_losses_text(found).endswith(": 2 expired, 1 model switch")
    assert cache_losses_text(found).startswith("3, $")
