"""Tests the price of a change of instructions, by the examples in docs/reference/cost.md."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

from msgspec.structs import replace

from sidecar.cost.prices import UnitPrices
from sidecar.cost.prompt_file_costs import (
    AgentUsage,
    ChangedCalls,
    PrefixCalls,
    price_change,
    price_open_session,
)
from sidecar.text.printable import usd_text

PAGE = Path(__file__).parents[2] / "docs/reference/cost.md"


def prices(fresh: str, read: str | None = None, write: str = "0", hour: str = "0") -> UnitPrices:
    return UnitPrices(
        input=Decimal(fresh),
        cache_read=None if read is None else Decimal(read),
        cache_write=Decimal(write),
        cache_write_1h=Decimal(hour),
        output=Decimal(0),
        reasoning=Decimal(0),
    )


SONNET = prices("3", "0.30", "3.75", "6")
CLAUDE = AgentUsage(
    agent="claude-code",
    model="sonnet",
    sessions=120,
    main=PrefixCalls(reads=3_770, writes_1h=120),
    subagents=PrefixCalls(reads=280, writes_5m=40),
)
CODEX = AgentUsage(
    agent="codex", model="gpt", sessions=50, main=PrefixCalls(reads=900, uncached=100)
)
QWEN = AgentUsage(
    agent="qwen-code",
    model="coder",
    sessions=100,
    main=PrefixCalls(reads=500, uncached=100),
    subagents=PrefixCalls(uncached=600),
)
LOCAL = AgentUsage(agent="qwen-code", model="local", main=PrefixCalls(uncached=40))


def added(usage: AgentUsage, tokens: int, to_subagents: int | None = None) -> ChangedCalls:
    return ChangedCalls(usage, tokens, tokens if to_subagents is None else to_subagents)


def test_text_is_written_once_a_session_and_read_in_every_other_call() -> None:
    price = price_change([added(CLAUDE, 317)], lambda _: SONNET, 30)
    assert price.calls == 4_210
    assert price.reads == Decimal("0.385155")  # 4,050 reads * 317 tokens * $0.30 / 10^6
    assert price.writes == Decimal("0.275790")  # (120 * $6 + 40 * $3.75) * 317 / 10^6
    assert price.subagents == Decimal("0.074178")  # (280 * $0.30 + 40 * $3.75) * 317 / 10^6
    assert price.usd == Decimal("0.660945")
    assert f"{price.usd:.2f}" == "0.66"
    assert int(price.read_percent) == 58


def test_calls_of_fewer_days_are_scaled_to_a_month() -> None:
    price = price_change([added(CODEX, 3_000)], lambda _: prices("1.25", "0.125"), 10)
    assert price.reads == Decimal("1.0125")  # 900 * 3,000 * $0.125 / 10^6 * 3
    assert price.uncached == Decimal("1.125")  # 100 * 3,000 * $1.25 / 10^6 * 3
    assert price.usd is not None
    assert usd_text(price.usd) == "$2.14"


def test_removed_tokens_save_money_and_unpriced_calls_are_left_out() -> None:
    units = {"coder": prices("1", "0.20"), "local": None}
    price = price_change(
        [added(QWEN, -1_200), added(LOCAL, -1_200)], lambda usage: units[usage.model], 30
    )
    assert (price.calls, price.unpriced_calls) == (1_240, 40)
    assert price.reads == Decimal("-0.12")  # 500 * 1,200 * $0.20 / 10^6
    assert price.uncached == Decimal("-0.84")  # 700 * 1,200 * $1 / 10^6
    assert price.subagents == Decimal("-0.72")  # 600 * 1,200 * $1 / 10^6
    assert price.usd == Decimal("-0.96")


def test_the_reference_works_out_the_same_examples() -> None:
    rows = re.findall(r"(-?\([\d.,×+ ]+\)[^=|]*) = (-?\$[\d.]+)", PAGE.read_text("utf-8"))
    assert [amount for _, amount in rows] == ["$0.66", "$2.14", "-$0.96", "$0.12", "$0.21"]
    for formula, amount in rows:
        code = formula.replace(",", "").replace("×", "*").replace("^", "**")
        assert f"{eval(code):.2f}" == amount.replace("$", "")  # noqa: S307


def test_an_open_session_writes_its_history_again_if_the_text_is_replaced() -> None:
    usage = replace(CLAUDE, prompt_tokens=61_234, main=PrefixCalls(reads=900, writes_5m=100))
    more = price_open_session(usage, SONNET, None)
    assert more == Decimal("0.2112573")  # 61,234 * ($3.75 - $0.30) / 10^6
    usage = replace(CODEX, prompt_tokens=10_000)
    more = price_open_session(usage, prices("1.25", "0.125"), None)
    assert more == Decimal("0.01125")  # 10,000 * ($1.25 - $0.125) / 10^6


def test_an_open_session_writes_text_that_is_appended() -> None:
    assert price_open_session(CLAUDE, SONNET, 20_000) == Decimal("0.12")  # 20,000 * $6 / 10^6


def test_an_open_session_costs_nothing_more_if_nothing_is_sent_or_was_cached() -> None:
    assert price_open_session(CLAUDE, SONNET, 0) is None
    local = replace(LOCAL, prompt_tokens=61_234)
    assert price_open_session(local, prices("1", "0.20"), None) is None
    assert price_open_session(replace(CLAUDE, prompt_tokens=61_234), None, None) is None


def test_a_change_has_no_price_if_no_call_has_one() -> None:
    price = price_change([added(CLAUDE, 317)], lambda _: None, 30)
    assert price.usd is None
    assert price.unpriced_calls == price.calls == 4_210


def test_calls_without_a_price_for_one_kind_of_tokens_are_unpriced() -> None:
    price = price_change([added(CLAUDE, 317)], lambda _: prices("3"), 30)
    assert price.usd is None


def test_calls_of_a_kind_that_does_not_occur_need_no_price() -> None:
    price = price_change([added(LOCAL, 1_000)], lambda _: prices("1"), 30)
    assert price.usd == Decimal("0.04")


def test_sub_agents_may_send_less_of_a_change() -> None:
    price = price_change([added(CLAUDE, 317, 100)], lambda _: SONNET, 30)
    assert price.subagents == Decimal("0.0234")  # (280 * $0.30 + 40 * $3.75) * 100 / 10^6
    assert price_change([added(CLAUDE, 317, 0)], lambda _: SONNET, 30).subagents == 0


def test_an_unchanged_size_costs_nothing() -> None:
    price = price_change([added(CLAUDE, 0)], lambda _: SONNET, 30)
    assert price.usd == 0
    assert price.read_percent == 0


def test_each_model_is_priced_by_its_own_tokens() -> None:
    units = {"gpt": prices("1.25", "0.125"), "coder": prices("1", "0.20")}
    changes = [added(CODEX, 1_000), added(QWEN, 1_500)]
    price = price_change(changes, lambda usage: units[usage.model], 30)
    # 900 * 1,000 * $0.125 / 10^6 + 500 * 1,500 * $0.20 / 10^6
    assert price.reads == Decimal("0.2625")
    assert price == price_change(changes[::-1], lambda usage: units[usage.model], 30)
