"""Tests the context page: its parts add up to the window, and names are escaped."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from sidecar.conversations.context_page import context_page
from sidecar.conversations.context_protocol import ContextPart, ContextUsage, Forecast, SessionInfo

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
CONTENTS = [
    ContextPart(label="Results of Bash", tokens=40_000),
    ContextPart(label="System prompt and tools", tokens=14_148),
]


def usage(**fields: object) -> ContextUsage:
    made: dict[str, object] = {
        "tokens": 54_148,
        "limit": 200_000,
        "limit_source": "transcript",
        "reserve": 500,
        "usable": 199_500,
        "available": 145_352,
        "percent": 27,
        "method": "exact",
        "model": "claude-opus-5",
        "contents": CONTENTS,
        "session": SessionInfo(id="s", source="claude-code", updated_at="", label="Fix the parser"),
    }
    return ContextUsage(**made | fields)  # type: ignore[arg-type]


def page(found: ContextUsage) -> str:
    shown = context_page(found, cost="$0.97", updated="3 min ago", empty="Nothing yet.", now=NOW)
    return shown.html


def test_the_parts_fill_the_window() -> None:
    html = page(usage())
    parts = re.findall(r"<title>([^<:]+): (~?[\d,]+) tokens</title>", html)
    tokens = {name: int(number.lstrip("~").replace(",", "")) for name, number in parts}
    assert list(tokens) == [*(part.label for part in CONTENTS), "Reserved for the reply", "Free"]
    assert sum(tokens.values()) == 200_000


def test_no_two_parts_look_the_same() -> None:
    parts = [ContextPart(label=f"Results of {name}", tokens=100) for name in range(12)]
    html = page(usage(contents=parts, tokens=1_200, available=198_300))
    classes = re.findall(r'<rect class="([^"]+)" x=', html)
    assert len(set(classes)) == len(classes) == 14


def test_percentages_of_the_parts_add_up_to_the_headline() -> None:
    parts = [ContextPart(label=name, tokens=18_050) for name in "ABC"]
    html = page(usage(contents=parts, tokens=54_150, available=145_350))
    shares = re.findall(r"<span>([^<]+)</span><b>~?[\d,]+(?: \((\d+) %\))?</b>", html)
    assert shares == [
        ("A", "9"),
        ("B", "9"),
        ("C", "9"),
        ("Reserved for the reply", ""),
        ("Free", "73"),
    ]


def test_the_rest_of_the_window_is_reserved_if_the_prompt_is_limited() -> None:
    html = page(usage(limit=400_000, usable=272_000, available=217_852))
    parts = re.findall(r"<title>([^<:]+): (~?[\d,]+) tokens</title>", html)
    assert parts[-2:] == [("Reserved for the reply", "128,000"), ("Free", "217,852")]
    assert "54,148 of 400,000 tokens (from the agent), prompts up to 272,000" in html


def test_the_head_names_session_agent_model_cost_and_age() -> None:
    html = page(usage())
    assert "<h1>Fix the parser</h1>" in html
    assert "claude-code · opus-5 · $0.97 · 3 min ago" in html
    assert "54,148 of 200,000 tokens (from the agent)" in html


def test_a_forecast_says_what_comes_next() -> None:
    forecast = Forecast(calls_left=12, next_input_usd=0.04, next_input_uncached_usd=0.31)
    html = page(usage(forecast=forecast))
    assert "<dt>Calls left</dt><dd>about 12</dd>" in html
    assert "$0.04 from the cache" in html.replace("$0.040", "$0.04")
    assert "What comes next" not in page(usage())


@pytest.mark.parametrize("severity", ["warning", "error"])
def test_a_nearly_full_window_is_marked(severity: str) -> None:
    assert f'class="size {severity}"' in page(usage(severity=severity))


def test_no_generated_id_names_a_conversation() -> None:
    session = SessionInfo(
        id="0b8f4b52-7c1d-4c0e-8f6e-2f1c55a0c9aa", source="protocol", updated_at=""
    )
    html = page(usage(session=session, contents=[]))
    assert "<h1>Conversation</h1>" in html
    assert "In use: 54,148 tokens" in html


def test_names_are_escaped() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    session = SessionInfo(id="s", source=hostile, updated_at="", label=hostile)
    parts = [ContextPart(label=hostile, tokens=9)]
    assert "<img" not in page(usage(session=session, contents=parts, largest=parts, note=hostile))


def test_without_a_session_it_says_what_to_expect() -> None:
    assert page(ContextUsage()) == "<h1>Context</h1><p>Nothing yet.</p>"
