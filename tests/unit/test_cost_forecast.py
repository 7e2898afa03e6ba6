"""Tests forecasts with simulated sessions, whose remaining calls are known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.agents.codex import CodexHome
from sidecar.agents.claude_statusline import Quota, RateLimits, StatuslineInput, save
from sidecar.agents.plan_limits import current_limits
from sidecar.agents.session_events import ReportedLimit
from sidecar.config.settings import Agents
from sidecar.conversations.context_protocol import (
    ContextUsage,
    Forecast,
    PlanLimit,
    SessionInfo,
)
from sidecar.conversations.context_rows import (
    block_text,
    cache_text,
    compacting_text,
    context_rows,
    limit_name,
    limit_text,
    next_input_text,
)
from sidecar.cost.book import CostBook
from sidecar.cost.forecast import growth_per_call, session_calls
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.models.catalogue import provider_of
from sidecar.text.printable import local_time_text
from sidecar.workspace.usage_details import forecast
from tests.cases import read_rows
from tests.unit.cost_calls import call_of

START = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
WINDOW = 200_000
MODEL = "claude-sonnet-4-5"


def record(
    book: CostBook,
    prompts: list[tuple[int, int]],
    *,
    hour: bool = False,
    category: str = "main",
    agent: str = "claude-code",
) -> datetime:
    """Record calls at intervals of one minute, with the same cache use as Claude Code."""
    before, at = 0, START
    for number, (prompt, output) in enumerate(prompts):
        at = START + timedelta(minutes=number)
        read = min(before, prompt - 4)
        written = {"cache_write_1h" if hour else "cache_write_5m": prompt - 4 - read}
        book.ledger.record(
            LedgerEvent(
                at=at,
                model=MODEL,
                provider="anthropic",
                agent=agent,
                session="s",
                category=category,
                request_id=f"{category}-{number}",
                buckets=Buckets(input=4, cache_read=read, output=output, **written),
            )
        )
        before = prompt
    return at


def usage_of(tokens: int, at: datetime) -> ContextUsage:
    return ContextUsage(
        tokens=tokens,
        method="exact",
        usable=WINDOW,
        available=WINDOW - tokens,
        session=SessionInfo.of("s", "claude-code", at),
    )


def predict(
    book: CostBook, usage: ContextUsage, now: datetime, limits: Sequence[ReportedLimit] = ()
) -> Forecast:
    prediction = forecast(book, usage, now, limits)
    assert prediction is not None
    return prediction


def grown_session(rng: random.Random, size: int) -> list[tuple[int, int]]:
    """Return each call's prompt and output size until a prompt reaches `size`.

    As in a session with tool results, a prompt grows by more than the previous output.
    """
    prompts, prompt = list[tuple[int, int]](), 18_000
    while prompt < size:
        output = rng.randint(50, 900)
        prompts.append((prompt, output))
        prompt += output + int(rng.lognormvariate(7.2, 0.8))
    return prompts


def test_calls_left_are_within_30_percent_in_most_sessions(tmp_path: Path) -> None:
    close = 0
    for seed in range(20):
        prompts = grown_session(random.Random(seed), WINDOW)
        half = next(n for n, (prompt, _) in enumerate(prompts) if prompt > WINDOW / 2)
        book = CostBook(tmp_path / str(seed))
        at = record(book, prompts[:half])
        tokens = sum(prompts[half - 1])
        prediction = predict(book, usage_of(tokens, at), at)
        assert prediction.calls_left is not None
        close += abs(prediction.calls_left - (len(prompts) - half)) <= 0.3 * (len(prompts) - half)
    assert close >= 16


@pytest.mark.parametrize(
    ("agent", "model", "window", "end"),
    read_rows("cost", "compaction_sizes", "agent", "model", "window", "end"),
)
def test_no_calls_are_left_when_the_agent_compacts(
    book: CostBook, agent: str, model: str | None, window: int, end: int
) -> None:
    at = record(book, [(50_000, 0), (51_000, 0), (52_000, 0)], agent=agent)
    usage = ContextUsage(
        tokens=52_000,
        model=model,
        method="exact",
        limit=window,
        limit_source="transcript",
        usable=window - 500,
        available=window - 500 - 52_000,
        session=SessionInfo.of("s", agent, at),
    )
    found = predict(book, usage, at)
    assert found.calls_left == -(-(end - 52_000) // 1_000)
    limited = msgspec.structs.replace(usage, limit_source="settings", available=8_000)
    limit = predict(book, limited, at)
    assert limit.calls_left == 8


@pytest.mark.parametrize("hour", [False, True])
def test_the_next_input_costs_what_the_next_call_pays(book: CostBook, hour: bool) -> None:
    prompts = grown_session(random.Random(5), 120_000)
    at = record(book, prompts[:-1], hour=hour)
    prediction = predict(book, usage_of(sum(prompts[-2]), at), at)
    read, prompt = prompts[-2][0], prompts[-1][0]
    kind = "cache_write_1h" if hour else "cache_write_5m"
    billed = book.prices.price(
        Buckets(input=4, cache_read=read, **{kind: prompt - read - 4}), MODEL, "anthropic"
    )
    assert prediction.next_input_usd == pytest.approx(float(billed or 0), rel=0.1)
    cold = book.prices.price(Buckets(**{kind: prompt}), MODEL, "anthropic")
    assert prediction.next_input_uncached_usd == pytest.approx(float(cold or 0), rel=0.1)
    until = at + (timedelta(hours=1) if hour else timedelta(minutes=5))
    assert prediction.cached_until == until.isoformat().replace("+00:00", "Z")


def calls_with_cache(
    book: CostBook, *minutes_and_buckets: tuple[float, dict[str, int]], **fields: Any
) -> datetime:
    """Record main calls at these minutes. Returns the time of the last call."""
    at = START
    for number, (minute, buckets) in enumerate(minutes_and_buckets):
        at = START + timedelta(minutes=minute)
        call = {"model": MODEL, "provider": "anthropic", "session": "s", **fields}
        book.ledger.record(
            call_of(
                **{"agent": "claude-code", **call},
                at=at,
                request_id=str(number),
                buckets=Buckets(**buckets),
            )
        )
    return at


def test_parts_written_for_an_hour_stay_cached_when_the_others_expire(book: CostBook) -> None:
    at = calls_with_cache(
        book,
        (0, {"input": 4, "cache_write_1h": 80_000, "cache_write_5m": 10_000}),
        (2, {"input": 4, "cache_read": 90_000, "cache_write_5m": 10_000}),
        (3, {"input": 4, "cache_read": 100_000}),  # a read restarts both lifetimes
    )
    usage = usage_of(100_004, at)
    found = predict(book, usage, at)
    # Per million tokens: read $0.30, written for five minutes $3.75, for an hour $6.
    assert [step.usd for step in found.next_input_prices] == pytest.approx(
        [0.030, 0.099, 0.555], abs=1e-4
    )
    ends = [step.until for step in found.next_input_prices]
    assert ends == ["2026-11-20T09:08:00Z", "2026-11-20T10:03:00Z", None]
    assert (found.cached_until, found.cache_end) == ("2026-11-20T09:08:00Z", "exact")
    local = (START + timedelta(hours=1, minutes=3)).astimezone()
    texts = [
        (minute, next_input_text(found, START + timedelta(minutes=minute)))
        for minute in (7.9, 8, 62.9, 63)
    ]
    assert [text.partition(" after")[0] for _, text in texts] == [
        "$0.030 from the cache, $0.099",
        "$0.099 partly from the cache, $0.56",
        "$0.099 partly from the cache, $0.56",
        "$0.56 (the cache has expired)",
    ]
    assert texts[1][1].endswith(f" after {local:%H:%M}")


@pytest.mark.parametrize(
    ("model", "agent", "warm", "minutes", "cold"),
    [
        (MODEL, "claude-code", "cache until", 5, "cold: next input $"),
        ("gpt-5.2", "opencode", "cache probably cold after", 10, "probably cold: next input $"),
        ("gpt-5.2-codex", "codex", "cache probably cold after", 1440, "probably cold: next"),
        ("gpt-5.6", "codex", "cache warm until at least", 30, "probably cold: next input"),
        ("gemini-2.5-pro", "gemini-cli", "cache probably cold after", 60, "probably cold: next"),
        ("qwen3-coder-plus", "qwen-code", "", 0, ""),
    ],
)
def test_only_anthropics_cache_is_counted_down(
    book: CostBook, model: str, agent: str, warm: str, minutes: int, cold: str
) -> None:
    calls = (0, {"cache_read": 50_000, "input": 1_000}), (1, {"cache_read": 51_000, "input": 900})
    at = calls_with_cache(book, *calls, model=model, provider=provider_of(model), agent=agent)
    usage = msgspec.structs.replace(usage_of(51_900, at), session=SessionInfo.of("s", agent, at))
    found = predict(book, usage, at)
    until = at + timedelta(minutes=minutes)
    before, after = (cache_text(found, until + timedelta(seconds=each)) for each in (-1, 0))
    time = local_time_text(until, until - timedelta(seconds=1)) if warm else ""
    assert before == f"{warm} {time}".strip()
    assert after.startswith(cold)
    assert bool(after) == bool(cold)


@pytest.mark.parametrize(
    ("minutes", "percent", "growth", "running", "model", "text"),
    [
        (1, 60, 0, False, MODEL, "costs least before {5}: $0.030 of input, then $0.38"),
        (1, 60, 0, True, MODEL, "costs least after this turn and before {5}: $0.030 of input"),
        (5, 60, 0, False, MODEL, "costs least before the next prompt: $0.38 of input, which "),
        (1, 10, 9_000, False, MODEL, "then $0.38; about 12 calls left"),
        (1, 60, 0, False, "gpt-5.2", "before about {10}: $0.018 of input, then probably $0.18"),
        (1, 60, 0, False, "gpt-5.6", "before {30}: "),
        (1, 10, 100, False, MODEL, ""),  # many calls are left
        (1, 10, 0, False, MODEL, ""),
        (1, 60, 0, False, "qwen3-coder-plus", ""),  # unknown lifetime
        (1, 60, 0, False, "claude-unpriced", ""),
    ],
)
def test_the_view_says_when_compacting_costs_least(
    book: CostBook,
    minutes: int,
    percent: int,
    growth: int,
    running: bool,
    model: str,
    text: str,
) -> None:
    first = 100_000 - 2 * growth
    written = {"cache_write_5m": 5_000} if model.startswith("claude") else {"input": 5_000}
    calls = [
        (0, {"cache_read": first - 5_000, **written}),
        (0, {"cache_read": first + growth - 5_000, **written}),
        (0, {"cache_read": first + 2 * growth - 5_000, **written}),
    ]
    at = calls_with_cache(book, *calls, model=model, provider=provider_of(model))
    now = at + timedelta(minutes=minutes)
    usage = msgspec.structs.replace(usage_of(100_000, at), percent=percent)
    found = forecast(book, usage, now, is_running=running)
    told = compacting_text(msgspec.structs.replace(usage, forecast=found), now)
    times = [local_time_text(at + timedelta(minutes=each), now) for each in range(31)]
    assert text.format(*times) in told
    assert bool(text) == bool(told)


def test_next_input_after_a_compaction_is_not_from_the_cache(book: CostBook) -> None:
    at = record(book, [(50_000, 10), (60_000, 10), (70_000, 10)])
    usage = msgspec.structs.replace(usage_of(15_000, at), method="estimate", compacted=True)
    prediction = predict(book, usage, at)
    assert (prediction.next_input_usd, prediction.cached_until) == (None, None)
    assert next_input_text(prediction, at) == "$0.056"
    record(book, [(15_300, 10)])
    prediction = predict(book, usage_of(15_310, at), at)
    assert prediction.next_input_usd is not None


def test_growth_is_measured_since_the_last_compaction(book: CostBook) -> None:
    at = record(book, [(50_000, 10), (90_000, 10), (20_000, 10), (21_000, 10), (22_000, 10)])
    assert growth_per_call(session_calls(book.ledger, "s", "claude-code", at)) == 1_000


def test_without_growth_there_is_no_number_of_calls(book: CostBook) -> None:
    at = record(book, [(50_000, 10), (51_000, 10)])
    prediction = predict(book, usage_of(51_010, at), at)
    assert prediction.calls_left is None


def test_calls_of_subagents_cost_but_do_not_grow_the_context(book: CostBook) -> None:
    at = record(book, [(20_000, 10), (21_000, 10), (22_000, 10)])
    main = predict(book, usage_of(22_010, at), START + timedelta(minutes=30))
    record(book, [(900, 10), (5_000, 10), (90_000, 10)], category="subagent")
    both = predict(book, usage_of(22_010, at), START + timedelta(minutes=30))
    assert (both.calls_left, both.next_input_usd) == (main.calls_left, main.next_input_usd)
    assert (both.usd_per_hour or 0) > (main.usd_per_hour or 0)


def test_cost_per_hour_is_that_of_the_last_hour(book: CostBook) -> None:
    at = record(book, [(20_000, 0)] * 31)
    each = book.prices.price(Buckets(input=4, cache_read=19_996), MODEL, "anthropic") or Decimal(0)
    prediction = predict(book, usage_of(20_000, at), at + timedelta(minutes=45))
    # At minute 75, the last hour contains the calls from minutes 15 to 30.
    assert prediction.usd_per_hour == pytest.approx(float(16 * each), rel=0.001)
    later = predict(book, usage_of(20_000, at), at + timedelta(hours=2))
    assert later.usd_per_hour is None


def test_an_unknown_session_has_no_forecast(tmp_path: Path) -> None:
    assert forecast(CostBook(tmp_path), usage_of(1, START), START) is None
    assert forecast(CostBook(tmp_path), ContextUsage(), START) is None


def test_the_view_has_a_row_for_each_number_of_the_forecast() -> None:
    found = Forecast(calls_left=12, cache_hit_percent=92.4, usd_per_hour=3.1)
    usage = usage_of(1_000, START)
    rows = context_rows(msgspec.structs.replace(usage, forecast=found), now=START)
    shown = {row.label: row.value for row in rows}
    assert shown["Calls left"] == "about 12"
    assert shown["Cache hits"] == "92 %"
    assert shown["Cost per hour"] == "$3.10"


@pytest.mark.parametrize(
    ("minutes", "name", "short"),
    [
        (30, "30-minute limit", "30min"),
        (90, "90-minute limit", "90min"),
        (300, "5-hour limit", "5h"),
        (10_080, "7-day limit", "7d"),
    ],
)
def test_limits_are_named_after_their_period(minutes: int, name: str, short: str) -> None:
    limit = PlanLimit(minutes=minutes, used_percent=1.0, resets_at=None)
    assert (limit_name(limit), limit_name(limit, is_short=True)) == (name, short)


def test_limits_and_block_are_those_of_claude_codes_status_line(tmp_path: Path) -> None:
    book = CostBook(tmp_path)
    at = record(book, [(20_000, 0), (22_000, 0)])
    ends = START + timedelta(hours=3)
    quotas = RateLimits(
        five_hour=Quota(used_percentage=23.5, resets_at=ends.timestamp()),
        seven_day=Quota(used_percentage=41.0, resets_at=(START - timedelta(days=1)).timestamp()),
    )
    save(tmp_path, StatuslineInput(session_id="s", rate_limits=quotas))
    usage = usage_of(22_000, at)
    limits = current_limits("claude-code", Agents(), tmp_path, at)
    assert [(limit.minutes, limit.used_percent) for limit in limits] == [(300, 23.5)]
    prediction = predict(book, usage, at, limits)
    assert prediction.block is not None
    assert prediction.block.ends_at == ends
    spent = session_calls(book.ledger, "s", "claude-code", at)
    prices = [book.prices.price(one.buckets, MODEL, "anthropic") or Decimal(0) for one in spent]
    assert prediction.block.cost_usd == pytest.approx(float(sum(prices)))
    rows = context_rows(msgspec.structs.replace(usage, forecast=prediction), now=at)
    shown = {row.label: row.value for row in rows}
    assert shown["5-hour limit"] == f"23 %, resets {local_time_text(ends, at)}"
    assert shown["5-hour block"].endswith(", 2 h 59 min left")


@pytest.mark.parametrize(
    ("minutes", "used", "passed", "full"),
    [
        # The first call was half an hour after the period began.
        (300, 62.0, 120, 120 + 120 * 38 / 62),
        (300, 62.0, 4, None),  # too early to tell
        (300, 20.0, 120, None),  # the limit resets before it is full
        (300, 100.0, 120, None),
        (300, 0.0, 120, None),
        # The week began six days before the block, and 150 minutes later it is two thirds full.
        (10_080, 96.0, 120, 120 + (6 * 1440 + 150) * 4 / 96),
        (10_080, 50.0, 120, None),
    ],
)
def test_a_limit_is_full_at_the_average_pace(
    book: CostBook, minutes: int, used: float, passed: float, full: float | None
) -> None:
    record(book, [(20_000, 1_000), (22_000, 1_000)])
    now, end = START + timedelta(minutes=passed), START + timedelta(hours=4.5)
    limits = [
        ReportedLimit(300, used if minutes == 300 else 1.0, end),
        ReportedLimit(10_080, used, START - timedelta(days=6, minutes=30) + timedelta(days=7)),
    ]
    found = predict(book, usage_of(22_000, now), now, limits)
    limit = next(one for one in found.limits if one.minutes == minutes)
    assert found.block is not None
    if passed >= 5:
        # Two calls of 21,000 and 23,000 tokens.
        assert found.block.tokens_per_minute == round(44_000 / passed)
        assert f", {44_000 / passed:,.0f} tokens/min, " in block_text(found.block, now)
    if full is None:
        assert (limit.full_at, "full" in limit_text(limit, now)) == (None, False)
        return
    expected = START + timedelta(minutes=full)
    assert limit.full_at is not None
    assert abs(datetime.fromisoformat(limit.full_at) - expected) < timedelta(seconds=1)
    times = (local_time_text(at, now) for at in (expected, limits[minutes > 300].resets_at or now))
    text = "{:.0f} %, full at {} at this pace, resets {}".format(used, *times)
    assert limit_text(limit, now) == text


def test_block_with_unpriced_calls_is_a_lower_bound(book: CostBook) -> None:
    at = record(book, [(20_000, 0)])
    book.ledger.record(call_of("claude-code", at=at, model="acme-coder", provider="acme"))
    limit = ReportedLimit(300, 1.0, at + timedelta(hours=3))
    prediction = predict(book, usage_of(20_000, at), at, [limit])
    assert prediction.block is not None
    assert block_text(prediction.block, at).startswith("≥$0.075, ")


def test_limits_of_codex_are_those_of_its_newest_lines(tmp_path: Path) -> None:
    home = Path.home() / ".codex"
    thread = CodexHome(home).thread(tmp_path)
    now = datetime.now(UTC)
    ends = (now + timedelta(hours=2)).timestamp()
    for used in (3.0, 12.5):
        primary = {"used_percent": used, "window_minutes": 300, "resets_at": ends}
        secondary = {"used_percent": 40.0, "window_minutes": 10_080, "resets_at": ends}
        limits = {"primary": primary, "secondary": secondary}
        thread.event("token_count", info=None, rate_limits=limits)
        thread.event("agent_message", message="words " * 20_000)
    found = current_limits("codex", Agents(), tmp_path, now)
    assert [(one.minutes, one.used_percent) for one in found] == [(300, 12.5), (10_080, 40.0)]
    assert current_limits("codex", Agents(), tmp_path, now + timedelta(hours=3)) == []
    CodexHome(home).thread(tmp_path).event("agent_message", message="no limits yet")
    assert current_limits("codex", Agents(), tmp_path, now) == found
    thread.path.unlink()
    assert current_limits("codex", Agents(), tmp_path, now) == []
