"""Tests what `check --diff` says about the growth of what agents send with every call."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from sidecar.budgets.check_report import (
    START,
    FileReport,
    Growth,
    PromptGrowth,
    Report,
    ReportedFinding,
    as_github,
    as_json,
    as_markdown,
    as_text,
)
from sidecar.cost.change_price import ChangePrice

PRICE = ChangePrice(
    calls=4_210,
    reads=Decimal("3.78"),
    writes=Decimal("0.40"),
    uncached=Decimal("0.02"),
    subagents=Decimal("0.50"),
)


def growth_of(**fields: Any) -> PromptGrowth:
    return PromptGrowth(
        **{
            "agent": "claude-code",
            "title": "Claude Code",
            "model": "claude-sonnet-5",
            "before": 3_601,
            "tokens": 3_918,
            "method": "exact",
            "base": "main",
            "price": PRICE,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 4,210 calls in the last 30 "
            "days about +$4.20 a month, 90 % of it cache reads.",
        ),
        (
            {
                "tokens": 3_600,
                "method": "estimate",
                "days": 1,
                "price": ChangePrice(calls=4_210, reads=Decimal("-3.78"), writes=Decimal("-0.42")),
            },
            "Every Claude Code call: ~-1 token (~3,601 → ~3,600); at 4,210 calls in the last 1 day "
            "about -$4.20 a month, 90 % of it cache reads.",
        ),
        (
            {"price": replace(PRICE, open_session=Decimal("0.12")), "after_change": "appended"},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 4,210 calls in the last 30 "
            "days about +$4.20 a month, 90 % of it cache reads. An open session costs $0.12 more "
            "once, because the new text is appended.",
        ),
        (
            {"price": replace(PRICE, open_session=Decimal("0.2112573"))},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 4,210 calls in the last 30 "
            "days about +$4.20 a month, 90 % of it cache reads. An open session costs $0.21 more "
            "once, because its history is no longer in the cache.",
        ),
        (
            {"price": None},
            "Every Claude Code call: +317 tokens (3,601 → 3,918). No calls are known; to see the "
            "price, write a profile with `token-sidecar cost profile`.",
        ),
        (
            {"price": ChangePrice(calls=1, unpriced_calls=1)},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 1 call in the last 30 days, "
            "unpriced. Add a [[price]] for claude-sonnet-5 to see the price.",
        ),
        (
            {"price": ChangePrice(calls=12, unpriced_calls=2, reads=Decimal("0.004"))},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 12 calls in the last 30 days "
            "about +$0.0040 a month, 100 % of it cache reads; 2 calls unpriced.",
        ),
        (
            {"price": ChangePrice(calls=12, reads=Decimal("0.0004"))},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 12 calls in the last 30 days "
            "less than $0.001 a month.",
        ),
        (
            {"price": ChangePrice(calls=12, uncached=Decimal("3.20"))},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 12 calls in the last 30 days "
            "about +$3.20 a month.",
        ),
        (
            {"price": None, "has_profile": True, "is_other_model": True},
            "Every Claude Code call: +317 tokens for claude-sonnet-5 (3,601 → 3,918). The usage "
            "profile has no such calls; to see the price, write it again with "
            "`token-sidecar cost profile`.",
        ),
        (
            {"price": ChangePrice(calls=12)},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 12 calls in the last 30 days "
            "$0.00 a month.",
        ),
    ],
)
def test_the_sentence(fields: dict[str, Any], message: str) -> None:
    assert growth_of(**fields).message == message


FINDING = ReportedFinding(
    severity="warning",
    budget=10,
    tokens=12,
    over=2,
    section=None,
    code="budget-exceeded",
    message="<a|b>.md is 12 tokens",
    rule="budget[0]",
    model="gpt-5",
    method="exact",
    line=START.line,
    column=START.column,
    end_line=START.end_line,
    end_column=START.end_column,
)
FILE = FileReport("<a|b>.md", 12, "exact", (FINDING,))


def report_of(*growth: PromptGrowth) -> Report:
    return Report(
        files=(FILE,),
        distinct_findings=((FILE, FINDING),),
        growth=(
            Growth("b.md", 9, 5, "exact", "main"),
            Growth("<a|b>.md", 2, 1_012, "estimate", "main"),
        ),
        prompt_growth=growth,
        budgets=1,
    )


def test_text_ends_with_a_sentence_for_each_agent() -> None:
    growths = growth_of(), growth_of(title="Codex", tokens=4_000)
    assert as_text(report_of(*growths)).splitlines()[-2:] == [one.message for one in growths]


def test_agents_that_grow_alike_share_a_sentence() -> None:
    names = "Codex", "Pi", "Amp", "Goose", "Crush"
    growths = [growth_of(title=name, price=None) for name in names]
    assert as_text(report_of(*growths)).splitlines()[-1] == (
        "Every call of Codex, Pi, Amp and 2 more: +317 tokens (3,601 → 3,918). No calls are known; "
        "to see the price, write a profile with `token-sidecar cost profile`."
    )


def test_annotations_have_a_notice_for_each_agent() -> None:
    (line,) = [line for line in as_github(report_of(growth_of())).splitlines() if "Every" in line]
    assert line == f"::notice title=Token budget::{growth_of().message.replace('%', '%25')}"


def test_json_has_the_parts_of_the_price() -> None:
    (found,) = json.loads(as_json(report_of(growth_of())))["promptGrowth"]
    assert found.pop("message") == growth_of().message
    assert found == {
        "agent": "claude-code",
        "model": "claude-sonnet-5",
        "before": 3_601,
        "tokens": 3_918,
        "added": 317,
        "method": "exact",
        "base": "main",
        "unread": [],
        "calls": 4_210,
        "unpricedCalls": 0,
        "days": 30,
        "costUsd": 4.2,
        "readsUsd": 3.78,
        "writesUsd": 0.4,
        "uncachedUsd": 0.02,
        "subagentsUsd": 0.5,
        "openSessionUsd": None,
    }


@pytest.mark.parametrize("price", [None, ChangePrice(calls=1, unpriced_calls=1)])
def test_json_of_an_unknown_price_is_null(price: ChangePrice | None) -> None:
    (found,) = json.loads(as_json(report_of(growth_of(price=price))))["promptGrowth"]
    assert {found[name] for name in found if name.endswith("Usd")} == {None}


def test_markdown_answers_first_what_every_call_costs() -> None:
    assert as_markdown(report_of(growth_of())).splitlines() == [
        "### Token budgets",
        "",
        "**Every Claude Code call: +317 tokens (3,601 → 3,918); at 4,210 calls in the last 30 days "
        "about +$4.20 a month, 90 % of it cache reads.**",
        "",
        "1 file checked: 1 budget exceeded, 0 near",
        "",
        "| Place | Severity | Finding |",
        "|---|---|---|",
        r"| \<a\|b\>.md:1 | warning | \<a\|b\>.md is 12 tokens |",
        "",
        "| File | Tokens in main | Now | Added |",
        "|---|---:|---:|---|",
        r"| \<a\|b\>.md | ~2 | ~1,012 | +1,010 |",
        "| b.md | 9 | 5 | -4 |",
    ]


def test_markdown_without_findings_is_the_summary() -> None:
    report = Report(files=(FILE,), distinct_findings=(), budgets=1)
    assert as_markdown(report) == "### Token budgets\n\n1 file checked: all within budget"
