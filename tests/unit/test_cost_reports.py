"""Tests the texts, tables, charts and totals of reports. A total must equal the sum of the calls' costs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.config.settings import Price
from sidecar.cost import ledger as ledger_file
from sidecar.cost.book import CostBook
from sidecar.cost.cost_page import LedgerSource, whole_page
from sidecar.cost.cost_protocol import (
    CostDetailParams,
    CostKey,
    CostRecordParams,
    CostReport,
    CostRow,
)
from sidecar.cost.days import END_MS, TimeRange
from sidecar.cost.ledger import Ledger, ReadCancelledError
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices
from sidecar.cost.reports import amount, estimate_note, report
from sidecar.cost.sums import Scope, read_events
from tests.cases import read_rows
from tests.unit.cost_calls import call_of, price_list_of, report_call

NEW_YORK = ZoneInfo("America/New_York")


def record(book: CostBook, prompt: int = 179, completion: int = 8, **fields: Any) -> None:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    params = {"model": "anthropic/claude-haiku-4.5", "usage": usage} | fields
    book.record(msgspec.convert(params, CostRecordParams))


def one_row(found: CostReport) -> CostRow:
    (row,) = found.rows
    return row


@pytest.mark.parametrize(("estimated", "actual", "note"), read_rows("cost", "estimate_notes"))
def test_an_estimate_is_noted_when_it_is_more_than_ten_percent_off(
    book: CostBook, estimated: int, actual: int, note: str
) -> None:
    assert estimate_note(estimated, actual) == note
    record(book, actual, 0, estimatedTokens=estimated)
    row = one_row(book.detail(CostDetailParams()))
    assert row.note == note
    assert ("~est" in row.text) == bool(note)


def test_estimates_are_compared_with_their_own_calls_only(book: CostBook) -> None:
    record(book, 1000, estimatedTokens=1000)
    record(book, 50_000)
    row = one_row(book.detail(CostDetailParams()))
    assert (row.prompt_tokens, row.estimated_tokens, row.note) == (51_000, 1000, "")


@pytest.mark.parametrize(
    ("provider", "models", "shown"), read_rows("cost", "dated_names", "provider", "models", "shown")
)
def test_dated_and_undated_names_of_a_model_are_one_row_if_their_prices_are_the_same(
    tmp_path: Path, provider: str | None, models: list[str], shown: list[str]
) -> None:
    entry = Price(models=("house-1",), input=Decimal(1), output=Decimal(2))
    book = CostBook(tmp_path / "state", (entry,), zone=UTC)
    for model in models:
        record(book, 1_000, 100, model=model, provider=provider)
    found = book.detail(CostDetailParams(by=("model",)))
    assert sorted(str(row.model) for row in found.rows) == shown
    assert found.totals.calls == len(models)
    assert [call.model for call in read_events(book.ledger, Scope())] == models, "exported"
    with book.ledger.reader() as connection:
        source = LedgerSource(
            connection=connection, prices=book.prices, scope=Scope(), now=datetime.now(UTC)
        )
        page = whole_page(source, {})
    assert all(name in page for name in shown)
    assert not any(name in page for name in set(models) - set(shown))
    book.close()


def test_unpriced_calls_are_never_zero_dollars(book: CostBook) -> None:
    assert book.detail(CostDetailParams()).totals.cost_text == "$0.000000"
    record(book, 100, 10, model="nobody-knows-me")
    assert book.detail(CostDetailParams()).totals.cost_text == "unpriced"


def test_totals(book: CostBook) -> None:
    usage = {
        "input_tokens": 100,
        "cache_read_input_tokens": 1000,
        "cache_creation_input_tokens": 500,
        "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 250},
        "output_tokens": 70,
    }
    record(book, usage=usage, model="claude-haiku-4-5", provider="anthropic")
    found = book.detail(CostDetailParams())
    row, totals = one_row(found), found.totals
    by_hand = (100 * 1 + 1000 * 0.1 + 250 * 1.25 + 250 * 2 + 70 * 5) / 10**6
    assert row.cost_usd == totals.cost_usd == by_hand
    assert (row.prompt_tokens, row.cache_read_tokens, row.cache_write_tokens) == (1600, 1000, 500)
    assert (totals.input_tokens, totals.output_tokens, totals.reasoning_tokens) == (100, 70, 0)
    assert (totals.cache_read_tokens, totals.cache_write_tokens) == (1000, 500)


def test_rows_by_every_key(book: CostBook) -> None:
    record(book, workspace="file:///a", session="one", at="2026-11-20T12:00:00Z")
    record(book, workspace="file:///b", session="two", category="summary")
    everything: tuple[CostKey, ...] = ("workspace", "agent", "session", "category", "day", "model")
    rows = book.detail(CostDetailParams(by=everything)).rows
    assert {(r.workspace, r.session, r.category, r.agent) for r in rows} == {
        ("file:///a", "one", "main", "protocol"),
        ("file:///b", "two", "summary", "protocol"),
    }
    label = "file:///a protocol one main 2026-11-20 anthropic/claude-haiku-4.5 1 calls"
    assert rows[0].text.startswith(label), "the keys have the requested order"


def test_only_the_keys_asked_for_are_sent(book: CostBook) -> None:
    record(book)
    (row,) = json.loads(msgspec.json.encode(book.detail(CostDetailParams(by=("session",)))))["rows"]
    assert row["session"] is None, "the call had none"
    assert row["model"] is row["category"] is None
    assert not {"day", "agent", "workspace"} & set(row)
    assert row["text"].startswith("(none) 1 calls")


@pytest.mark.parametrize("by", [(), ("price",), ("model", "hour")])
def test_unknown_key_is_refused(book: CostBook, by: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="choose from model, category"):
        book.detail(CostDetailParams(by=by))  # type: ignore[arg-type]


def test_reports_of_a_workspace_or_a_session(book: CostBook) -> None:
    record(book, 1, 0, workspace="file:///a", session="one")
    record(book, 10, 0, workspace="file:///a", session="two")
    record(book, 100, 0, workspace="file:///b", session="one")

    def prompts(**scope: str) -> int:
        return sum(
            row.prompt_tokens for row in book.detail(msgspec.convert(scope, CostDetailParams)).rows
        )

    assert prompts() == 111
    assert prompts(workspace="file:///a") == 11
    assert prompts(workspace="file:///a", session="two") == 10
    assert prompts(session="one") == 101
    assert prompts(workspace="file:///a/b") == prompts(workspace="file:///aa") == 0
    assert prompts(workspace="file:///") == 111, "calls in folders below are its own"


def test_a_day_begins_at_local_midnight(tmp_path: Path) -> None:
    book = CostBook(tmp_path / "state", zone=NEW_YORK)
    for at in (
        "2026-10-31T23:59:59-04:00",
        "2026-11-01T00:00:00-04:00",  # this day has 25 hours
        "2026-11-01T05:59:59Z",
        "2026-11-02T04:59:59Z",
        "2026-11-02T05:00:00Z",
    ):
        record(book, 1, 0, at=at)
    days = {row.day: row.calls for row in book.detail(CostDetailParams(by=("day",))).rows}
    assert days == {"2026-10-31": 1, "2026-11-01": 3, "2026-11-02": 1}
    same = CostDetailParams(since="2026-11-01", until="2026-11-01")
    assert one_row(book.detail(same)).calls == 3
    book.close()


def test_weeks_begin_on_monday_and_belong_to_the_year_of_their_thursday(tmp_path: Path) -> None:
    book = CostBook(tmp_path / "state", zone=NEW_YORK)
    for day in ("2026-12-27", "2026-12-28", "2027-01-03", "2027-01-04"):  # Sunday, Monday and so on
        record(book, 1, 0, at=f"{day}T12:00:00Z")
    weeks = {row.week: row.calls for row in book.detail(CostDetailParams(by=("week",))).rows}
    assert weeks == {"2026-W52": 1, "2026-W53": 2, "2027-W01": 1}
    months = {row.month: row.calls for row in book.detail(CostDetailParams(by=("month",))).rows}
    assert months == {"2026-12": 2, "2027-01": 2}
    both = book.detail(CostDetailParams(by=("month", "model"))).rows
    assert [(row.month, row.calls) for row in both] == [("2026-12", 2), ("2027-01", 2)]
    book.close()


def test_report_can_be_cancelled(book: CostBook) -> None:
    book.ledger.record_many(
        LedgerEvent(
            at=datetime(2026, 11, 20, tzinfo=UTC),
            model=f"m{number}",
            provider="",
            buckets=Buckets(input=1),
            session=str(number),
        )
        for number in range(4000)
    )
    with pytest.raises(ReadCancelledError):
        book.detail(CostDetailParams(by=("session", "day")), cancelled=lambda: True)


@pytest.mark.parametrize(("cost", "text"), read_rows("cost", "amounts"))
def test_amounts(cost: str, text: str) -> None:
    assert amount(Decimal(cost)) == text


_number = st.integers(0, 150_000)
_MODELS = read_rows("cost", "models_of_estimates")
_moments = st.one_of(
    st.integers(0, 3 * 86_400).map(lambda s: datetime(2026, 10, 11, tzinfo=UTC) + timedelta(0, s)),
    st.integers(0, 3 * 86_400).map(lambda s: datetime(2025, 6, 9, tzinfo=UTC) + timedelta(0, s)),
)


@st.composite
def _calls(draw: st.DrawFn) -> LedgerEvent:
    provider, model, tier = draw(st.sampled_from(_MODELS))
    buckets = {name: draw(_number) for name in Buckets.__struct_fields__}
    return LedgerEvent(
        at=draw(_moments),
        model=model,
        provider=provider,
        tier=tier,
        session=draw(st.sampled_from("ab")),
        buckets=Buckets(**buckets | {"web_searches": 0}),
        reported_cost=draw(st.none() | st.just(Decimal("0.25"))),
    )


HOUSE = price_list_of(
    **{
        "house-1": {
            "input_mtok": {"base": 1, "tiers": [{"start": 123_456, "price": 3}]},
            "output_mtok": 10,
        }
    }
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    calls=st.lists(_calls(), max_size=25),
    ends=st.tuples(st.none() | _moments, st.none() | _moments),
    zone=st.sampled_from([UTC, NEW_YORK, ZoneInfo("Asia/Kathmandu")]),
    session=st.sampled_from([None, "a"]),
)
def test_sums_cost_what_their_calls_cost(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[LedgerEvent],
    ends: tuple[datetime | None, datetime | None],
    zone: ZoneInfo,
    session: str | None,
) -> None:
    """A sum of daily totals is the sum of the calls' costs, however calls are grouped."""
    monkeypatch.setattr(ledger_file, "FOLD_EVERY", 5)
    folder = tmp_path_factory.mktemp("ledger")
    prices = _prices_with_house(folder)
    ledger = Ledger(folder / "ledger.db", zone, prices)
    ledger.record_many(calls)
    start, end = ((None if t is None else int(t.timestamp() * 1000)) for t in ends)
    times = TimeRange(
        start_ms=0 if start is None else start,
        end_ms=END_MS if end is None else end,
    )
    scope = Scope(times=times, session=session)
    inside = [
        call
        for call in calls
        if (start is None or call.at.timestamp() * 1000 >= start)
        and (end is None or call.at.timestamp() * 1000 < end)
        and (session is None or call.session == session)
    ]
    with ledger.reader() as connection:
        for by in (["model"], ["day", "model"]):
            result = report(connection, prices, scope, by)  # type: ignore[arg-type]
            _compare(result, inside, prices, zone)
    ledger.close()


@pytest.mark.parametrize(("model", "tiers", "note"), read_rows("cost", "tier_notes"))
def test_report_says_how_tiers_without_a_listed_price_are_priced(
    tmp_path: Path, model: str, tiers: list[str], note: str
) -> None:
    ledger, at = Ledger(tmp_path / "ledger.db"), datetime(2026, 7, 15, tzinfo=UTC)
    for tier in tiers:
        ledger.record(call_of(at=at, model=model, tier=tier))
    with ledger.reader() as connection:
        found = report(connection, Prices(), Scope(), ["model"])
    ledger.close()
    assert found.basis.startswith(note)
    assert bool(found.basis) == bool(note)
    assert ("at the standard price if" in found.basis) == bool(note)


@pytest.mark.parametrize(
    ("model", "provider", "says"),
    [
        ("qwen3-coder-plus", "", "Alibaba's international list prices"),
        ("GLM-4.7", "zhipuai", "Zhipu AI's list prices for China"),
        ("glm-4.7", "zai", ""),
        ("qwen3-8b", "", ""),
        ("gpt-5", "openai", ""),
    ],
)
def test_report_names_a_list_for_one_region(
    tmp_path: Path, model: str, provider: str, says: str
) -> None:
    call = LedgerEvent(
        at=datetime.now(UTC), model=model, provider=provider, buckets=Buckets(input=1_000)
    )
    own = Price(models=(model,), input=Decimal(1), output=Decimal(1))
    for prices, note in ((Prices(), says), (Prices([own]), "")):
        ledger = Ledger(tmp_path / "ledger.db", prices=prices)
        ledger.record(call)
        with ledger.reader() as connection:
            basis = report(connection, prices, Scope(), ["model"]).basis
        assert note in basis
        assert bool(basis) == bool(note)
        ledger.close()


def _prices_with_house(folder: Path) -> Prices:
    """Return the price list, with an additional model that has its own price threshold."""
    from sidecar.config.safe_files import stamp_of
    from sidecar.models.catalogue import _loaded, parse_list, price_list

    file = folder / "with-house.json"
    file.touch()
    bundled = price_list()
    house = parse_list(json.dumps(HOUSE).encode())
    both = type(bundled)([*bundled.providers, *house.providers], False)
    _loaded[file, stamp_of(file)] = both
    return Prices(stored_list=file)


def _compare(found: CostReport, calls: list[LedgerEvent], prices: Prices, zone: ZoneInfo) -> None:
    expected: dict[tuple[str | None, str], list[LedgerEvent]] = {}
    by_day = any(isinstance(row.day, str) for row in found.rows)
    for call in calls:
        day = call.at.astimezone(zone).date().isoformat() if by_day else None
        expected.setdefault((day, call.model), []).append(call)
    rows = {(row.day if by_day else None, row.model): row for row in found.rows}
    assert set(rows) == set(expected)
    for key, of_key in expected.items():
        row = rows[key]
        costs = [prices.cost(call) for call in of_key]
        known = [cost.usd for cost in costs if cost.usd is not None]
        assert row.calls == len(of_key)
        assert row.cost_usd == (float(sum(known, Decimal(0))) if known else None)
        assert row.unpriced == any(not cost.whole for cost in costs)
        assert row.prompt_tokens == sum(call.buckets.prompt for call in of_key)
    known = [cost for call in calls if (cost := prices.cost(call).usd) is not None]
    assert found.totals.cost_usd == float(sum(known, Decimal(0)))


@pytest.mark.parametrize("agent", ["opencode", "gemini-cli", "amp"])
@pytest.mark.parametrize("by", ["model", "agent", "workspace", "session", "day", "block"])
def test_costs_of_agents_that_omit_calls_are_lower_bounds_in_every_report(
    book: CostBook, agent: str, by: CostKey
) -> None:
    for name, day, model in (("codex", 10, "gpt-5"), (agent, 20, "gpt-4o")):
        call = call_of(
            name,
            at=datetime(2026, 11, day, tzinfo=UTC),
            model=model,
            workspace=f"/{name}",
            session=f"session of {name}",
        )
        book.ledger.record(call)
    found = book.detail(CostDetailParams(by=(by,), charts=True))
    assert sorted(row.partial for row in found.rows) == [False, True]
    (partial,) = (row for row in found.rows if row.partial)
    assert partial.cost_text.startswith("≥$")
    assert found.totals.cost_text.startswith("≥$")
    assert found.table is not None
    assert sum(cells[-1].startswith("≥$") for cells in found.table.rows) == 1
    assert found.table.total[-1].startswith("≥$")
    whole = book.detail(CostDetailParams(by=(by,), until="2026-11-15"))
    assert "≥" not in whole.text
    spend = book.spend(f"/{agent}", f"session of {agent}")
    assert spend.partial == {"session", "workspace"}
    assert book.spend("/codex", "session of codex").partial == frozenset()


@pytest.mark.parametrize(
    ("ends_after", "calls"),
    [
        # Calls are made after 0:10, 2:20, 4:10, 5:20 and 11:20 hours.
        (None, {0: 3, 300: 1, 660: 1}),
        (timedelta(hours=5, minutes=15), {0: 1, 15: 2, 315: 1, 660: 1}),  # reset within an hour
        (timedelta(hours=4), {-60: 2, 240: 2, 660: 1}),  # the block began before its first call
        (timedelta(hours=10), {0: 3, 300: 1, 660: 1}),  # as computed
        (timedelta(hours=8, minutes=30), {0: 2, 210: 2, 660: 1}),
        (timedelta(days=-9), {0: 3, 300: 1, 660: 1}),  # long past
        (timedelta(days=2), {0: 3, 300: 1, 660: 1}),  # a block without calls
    ],
)
def test_a_reported_reset_ends_the_block_in_reports(
    book: CostBook, ends_after: timedelta | None, calls: dict[int, int]
) -> None:
    start = datetime(2026, 11, 20, 9, tzinfo=UTC)
    for minutes in (10, 140, 250, 320, 680):
        book.ledger.record(call_of("codex", at=start + timedelta(minutes=minutes)))
    book.ledger.record(call_of("claude-code", at=start + timedelta(minutes=100)))
    ends = {} if ends_after is None else {"codex": start + ends_after}
    found = book.detail(CostDetailParams(by=("agent", "block")), block_ends=ends)
    names = {
        f"{(start + timedelta(minutes=minutes)).astimezone():%Y-%m-%d %H:%M}": number
        for minutes, number in calls.items()
    }
    assert {row.block: row.calls for row in found.rows if row.agent == "codex"} == names
    # Another agent's calls and resets do not matter: its subscription is another one.
    other = f"{(start + timedelta(hours=1)).astimezone():%Y-%m-%d %H:%M}"
    assert [row.block for row in found.rows if row.agent == "claude-code"] == [other]
    for minutes in (10, 140, 250, 320, 680):
        now = start + timedelta(minutes=minutes)
        block = book.current_block("codex", ends.get("codex"), now)
        assert block is not None
        assert f"{block.began_at.astimezone():%Y-%m-%d %H:%M}" in names


@pytest.mark.parametrize(
    ("since", "calls"),
    [("2026-11-20", [1, 1]), ("2026-11-20T00:30", [1, 1]), ("2026-11-20T02:00:00", [1])],
)
def test_a_block_that_began_before_the_range_keeps_its_start(
    book: CostBook, since: str, calls: list[int]
) -> None:
    midnight = datetime(2026, 11, 20).astimezone()
    for hours in (-2.5, 1, 2.25):
        book.ledger.record(call_of("codex", at=midnight + timedelta(hours=hours)))
    found = book.detail(CostDetailParams(by=("block",), since=since))
    blocks = ["2026-11-19 21:00", "2026-11-20 02:00"][-len(calls) :]
    assert [(row.block, row.calls) for row in found.rows] == [*zip(blocks, calls, strict=True)]


START = datetime(2026, 11, 10, 12, tzinfo=UTC)


def record_on_day(
    book: CostBook, model: str = "gpt-5", day: int = 0, tokens: int = 1_000_000
) -> None:
    report_call(book, tokens, 0, model=model, at=START + timedelta(days=day))


def test_nothing_recorded_has_no_charts(book: CostBook) -> None:
    report = book.detail(CostDetailParams(charts=True))
    assert (report.charts, report.overview) == ([], "")
    assert report.table is not None
    assert (report.table.rows, report.table.total) == ([], [])


def test_report_without_charts_is_unchanged(book: CostBook) -> None:
    record_on_day(book)
    report = book.detail(CostDetailParams())
    assert (report.table, report.charts, report.overview) == (None, [], "")


def test_the_table_has_a_cell_for_each_number(book: CostBook) -> None:
    record_on_day(book)
    record_on_day(book, "nobody-knows-me", tokens=7)
    report = book.detail(CostDetailParams(charts=True))
    table = report.table
    assert table is not None
    assert table.heads[: table.names] == ["Model", "Category"]
    assert table.rows == [
        ["gpt-5", "main", "1", "1,000,000", "0", "0", "$1.25"],
        ["nobody-knows-me", "main", "1", "7", "0", "0", "unpriced"],
    ]
    total = ["Total", "", "2", "1,000,007", "0", "0", "≥$1.25"]
    assert table.total == total
    assert book.detail(CostDetailParams(charts=True, by=("session",))).table is not None


def test_charts_by_day_model_and_agent(book: CostBook) -> None:
    record_on_day(book)
    record_on_day(book, day=3, tokens=500_000)
    record_on_day(book, "nobody-knows-me", day=3)
    days, models, agents = book.detail(CostDetailParams(charts=True)).charts
    assert [(bar.label, bar.text) for bar in days.bars] == [
        ("2026-11-10", "$1.25"),
        ("2026-11-11", "$0.00"),
        ("2026-11-12", "$0.00"),
        ("2026-11-13", "≥$0.62"),  # without the call of an unknown model
    ]
    assert [bar.share for bar in days.bars] == [1.0, 0.0, 0.0, 0.5]
    assert [(bar.label, bar.text) for bar in models.bars] == [
        ("gpt-5", "$1.88"),
        ("nobody-knows-me", "unpriced"),
    ]
    assert [(bar.label, bar.text) for bar in agents.bars] == [("protocol", "≥$1.88")]


def test_many_days_and_models_stay_a_chart(book: CostBook) -> None:
    for number in range(20):
        record_on_day(book, f"gpt-5-2025-01-{number + 1:02}", day=2 * number)
    days, models, _ = book.detail(CostDetailParams(charts=True)).charts
    assert len(days.bars) == 30
    assert len(models.bars) == 12
    assert models.bars[-1].label == "9 others"


@pytest.mark.parametrize("width", [200, 80, 40])
def test_plain_text_fits_the_width(book: CostBook, width: int) -> None:
    for model in ("gpt-5", "an-unknown-model-with-a-long-name-" * 3):
        record_on_day(book, model)
    report = book.detail(CostDetailParams(charts=True, width=width))
    table = report.overview.split("\n\n")[0].split("\n")
    assert max(map(len, table)) <= width
    assert table[0].endswith("Cost")
    assert ("Cache read" in table[0]) == (width > 40)
    assert ("…" in report.overview) == (width < 200)


def test_plain_text_has_each_row_once_and_escapes_names(book: CostBook) -> None:
    record_on_day(book)
    record_on_day(book, "evil\x1b[2J\u202e")
    report = book.detail(CostDetailParams(charts=True))
    lines = report.overview.split("\n")
    assert all(line.isprintable() for line in lines)
    for title in ("By day", "By model", "By agent"):
        assert title in lines
    assert report.table is not None
    assert all(cell.isprintable() for row in report.table.rows for cell in row)
