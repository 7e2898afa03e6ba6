"""Tests context windows, prompt limits and output limits, including models missing from the price
list.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.conversations.changes import models_that_fit, preflight
from sidecar.conversations.context_protocol import Alternative, PreflightParams
from sidecar.conversations.context_rows import context_rows, short_text
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import context_usage
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.model_list import model_info
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages.messages import Turn
from sidecar.messages.vendor_usage import Usage
from sidecar.models import catalogue
from sidecar.models.catalogue import prompt_limit_of, usual_window, window_of
from sidecar.models.names import parse
from sidecar.models.window import (
    Limit,
    Window,
    max_output_of,
    published_window,
    resolve_limit,
    usable,
)
from tests.cases import read_rows, read_table
from tests.unit.context_fakes import session, user

UNKNOWN = Path(__file__).parents[1] / "fixtures" / "models" / "no-window.txt"


LIMITS = read_table("model_limits")


@pytest.mark.parametrize(
    ("kind", "limit_of"),
    [
        ("window", window_of),
        ("window", lambda model: model_info(model).context_window),
        ("prompt", prompt_limit_of),
        ("output", lambda model: max_output_of(parse(model).bare)),
        ("output", lambda model: model_info(model).max_output),
    ],
)
def test_limits_of_models(kind: str, limit_of: Callable[[str], int | None]) -> None:
    """Windows in the price list take precedence over published ones."""
    catalogue.refresh()
    assert {model: limit_of(model) or 0 for model in LIMITS[kind]} == LIMITS[kind]


MAKERS = frozenset(
    (
        *("anthropic", "openai", "google", "mistral", "deepseek", "x-ai", "moonshotai"),
        *("zhipuai", "zai", "minimax", "cohere", "meta", "perplexity", "voyageai"),
    )
)
OTHERWISE = {
    "claude-2": "the list contains the window of Claude 2.1, not 2.0",
    "deepseek-chat": "the list contains the window of its first version",
    "deepseek-reasoner": "the list contains the window of its first version",
    "gemini-1.5-pro": "Google's page says 2,097,152",
    "gemini-2.5-flash-image": "Google's page says 65,536",
    "gemini-3-pro-image-preview": "Google's page says 65,536",
    "gemini-3.1-flash-image-preview": "Google's page says 65,536",
    "gpt-3.5-turbo-0613": "OpenAI's page says 4,096; the 16k version is another model",
    "gpt-5.3": "the list contains the window of the chat version",
}
"""Models whose published window differs from that in the price list, with the reason."""


def test_published_windows_agree_with_the_list() -> None:
    """Published windows are meant for models that are missing from the price list.

    This test checks them against models that are in the list.
    """
    listed = [
        (model.id, parse(model.id).bare, model.context_window)
        for provider in catalogue.current().providers
        for model in provider.models
        if provider.id in MAKERS and model.context_window
    ]
    compared = [(name, published_window(bare), window) for name, bare, window in listed]
    far = {name for name, ours, window in compared if ours and abs(ours - window) > 0.06 * window}
    assert len(listed) > 200
    assert sum(ours is None for _, ours, _ in compared) <= 5
    assert far <= set(OTHERWISE)


def test_prompt_limit_determines_the_usable_window() -> None:
    window = Window(resolve_limit(catalogue=400_000, prompt=272_000))
    assert window.usable == 272_000
    assert (window.available(200_000), window.percent(200_000)) == (72_000, 73)
    assert not window.over(272_000)
    assert (window.available(272_000), window.percent(272_000)) == (0, 100)
    assert window.over(272_001)
    assert window.available(272_001) == -1


@pytest.mark.parametrize("known", [{"request": 400_000}, {"endpoint": 400_000}])
def test_window_from_client_or_server_ignores_the_prompt_limit(known: dict[str, Any]) -> None:
    window = Window(resolve_limit(**known, prompt=272_000))
    assert not window.over(300_000)


def test_smaller_configured_limit_replaces_the_prompt_limit() -> None:
    limit = resolve_limit(catalogue=400_000, setting=100_000, prompt=272_000)
    assert (limit.tokens, limit.prompt) == (100_000, None)


def test_suggested_models_can_hold_the_prompt() -> None:
    models = [
        Alternative(model="gpt-5-mini", context_window=400_000),
        Alternative(model="claude-opus-5", context_window=1_000_000),
    ]
    assert [one.model for one in models_that_fit(models, 300_000, "gpt-5", 500)] == [
        "claude-opus-5"
    ]
    assert [one.model for one in models_that_fit(models, 200_000, "gpt-5", 500)] == [
        "gpt-5-mini",
        "claude-opus-5",
    ]


def test_every_listed_model_has_a_window() -> None:
    """After updating genai-prices, add the reported models to `limits.toml`.

    Models that have no context window, such as image and speech models, are listed in the
    fixture instead.
    """
    unknown = {
        f"{provider.id}/{model.id}"
        for provider in catalogue.current().providers
        for model in provider.models
        if not (model.context_window or usual_window(parse(model.id).bare))
    }
    accepted = set(UNKNOWN.read_text(encoding="utf-8").split())
    assert len(accepted) <= 140
    added = sorted(unknown - accepted)
    assert not added, f"add {added} to limits.toml, or to `words` if a new word resembles theirs"


def test_preflight_uses_the_prompt_limit() -> None:
    window = Window(resolve_limit(catalogue=400_000, prompt=272_000))
    found = preflight(session(turns=[user("x" * 280_000)]), window, PreflightParams())
    assert (found.verdict, found.fits) == ("refuse", False)
    assert "the prompt limit of 272,000 tokens" in found.reasons[0].message
    assert found.available < 0


tokens = st.integers(0, 10**7)
limits = st.integers(1, 10**7)


@pytest.mark.parametrize(("limit", "reserve", "expected"), read_rows("context", "usable"))
def test_usable(limit: int, reserve: int, expected: int) -> None:
    assert usable(limit, reserve) == expected


@given(tokens, limits, st.integers(0, 10**6))
def test_percent_rounds_down_and_ends_at_100(used: int, limit: int, reserve: int) -> None:
    room = usable(limit, reserve)
    shown = Window(Limit(limit, "catalogue"), reserve).percent(used)
    assert 1 <= room <= limit
    assert shown == 100 or shown * room <= 100 * used < (shown + 1) * room
    assert (shown == 100) == (used >= room)


@given(tokens, limits)
def test_over_means_negative_available_tokens(used: int, limit: int) -> None:
    window = Window(Limit(limit, "catalogue"))
    assert window.over(used) == (window.available(used) < 0)


def test_first_known_limit_is_used() -> None:
    known = {"request": 1, "transcript": 2, "endpoint": 3, "catalogue": 4}
    for source in ("request", "transcript", "endpoint", "catalogue"):
        assert resolve_limit(**known) == Limit(known.pop(source), source)
    assert resolve_limit() == Limit(16_384, "default")


def test_setting_limits_and_replaces_unknown_limits() -> None:
    assert resolve_limit(endpoint=8_000, setting=4_000) == Limit(4_000, "settings")
    assert resolve_limit(request=8_000, setting=4_000) == Limit(4_000, "settings")
    assert resolve_limit(endpoint=8_000, setting=8_000) == Limit(8_000, "endpoint")
    assert resolve_limit(endpoint=8_000, setting=9_000) == Limit(8_000, "endpoint")
    assert resolve_limit(setting=40_000) == Limit(40_000, "settings")


@pytest.mark.parametrize(
    ("limit", "reported", "is_known"),
    [
        (resolve_limit(), 27_076, False),
        (resolve_limit(), 16_384, True),
        (resolve_limit(setting=16_384), 27_076, True),
    ],
)
def test_a_report_larger_than_an_assumed_window_makes_the_window_unknown(
    limit: Limit, reported: int, is_known: bool
) -> None:
    session = Conversation("s", Counter("house-1", Tokenizers().for_model("house-1")))
    session.append(
        [Turn(role="user", content="hello"), Turn(role="assistant", content="hi")],
        Usage(input_tokens=reported, prompt_tokens=reported),
    )
    usage = context_usage(session, Window(limit))
    rows = {row.label: row.value for row in context_rows(usage)}
    numbers = (usage.limit, usage.usable, usage.available, usage.percent, usage.over)
    assert [number is not None for number in numbers] == [is_known] * 5
    assert ("%" in short_text(usage, "percent")) is is_known
    assert (rows["Window"] != "?") is is_known
    assert ("Over by" in rows) is is_known
    assert usage.severity == ("error" if is_known else "ok")


def test_an_estimate_larger_than_an_assumed_window_exceeds_it() -> None:
    session = Conversation("s", Counter("house-1", Tokenizers().for_model("house-1")))
    session.append([Turn(role="user", content="hello " * 20_000)])
    assert context_usage(session, Window(resolve_limit())).over
