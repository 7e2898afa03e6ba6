"""Tests context windows, prompt limits and output limits, including models missing from the price
list.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.conversations.context_protocol import Alternative, PreflightParams
from sidecar.conversations.preflight import models_that_fit, preflight
from sidecar.models import catalogue
from sidecar.models.catalogue import prompt_limit_of, usual_window, window_of
from sidecar.models.families import max_output_of, published_window
from sidecar.models.names import parse
from sidecar.models.window import Window, resolve_limit
from tests.unit.context_fakes import session, user

UNKNOWN = Path(__file__).parents[1] / "fixtures" / "models" / "no-window.txt"


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-5-chat-latest", 128_000),
        ("gpt-5.2-chat-latest", 128_000),
        ("gpt-6-rosalind", 1_050_000),
        ("sonnet", 1_000_000),
        ("opus", 1_000_000),
        ("claude-sonnet-4", 200_000),
        ("anthropic/claude-3.5-sonnet", 200_000),
        ("gemini-3-pro-preview", 1_048_576),
        ("gemini-3.1-flash-live-preview", 131_072),
        ("gemini-2.5-flash-preview", 1_048_576),
        ("mistral-large-latest", 262_144),
        ("mistral-medium-latest", 131_072),
        ("mistral-small-latest", 131_072),
        ("codestral-latest", 256_000),
        ("ministral-8b-latest", 131_072),
        ("command-r-plus", 128_000),
        ("command-r7b", 128_000),
        ("meta-llama/llama-4-maverick", 1_048_576),
        ("llama-3.3-70b-versatile", 131_072),
        ("Qwen/Qwen3.6-35B-A3B-FP8", 262_144),
        ("fireworks/deepseek-v4p1-flash", 1_048_576),
        ("neversleep/llama-3.1-lumimaid-70b", 131_072),
        ("grok-latest", 500_000),
        ("claude-opus-4-6-fast", 1_000_000),
        ("claude-opus-4-5-fast", 200_000),
        ("kimi-k3.2-code", 1_048_576),
        ("glm-5.4", 1_000_000),
        ("mistral-large-4-latest", 1_048_576),
        ("minimax-m4", 1_000_000),
        ("gemma-4-31b-it-qat", 262_144),
        ("o3-2025-04-16", 200_000),
        ("muse-spark-2", 1_048_576),
        ("qwen3.9-plus", 1_000_000),
    ],
)
def test_window_missing_in_the_list_is_the_published_one(model: str, window: int) -> None:
    assert window_of(model) == window


def test_list_takes_precedence_over_published_windows() -> None:
    assert window_of("claude-opus-4-8") == 1_000_000
    assert window_of("gpt-5.3") == 128_000  # the published window is 400,000


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
    catalogue.warm()
    listed = [
        (model.id, parse(model.id).bare, model.context_window)
        for provider in catalogue.providers()
        for model in provider.models
        if provider.id in MAKERS and model.context_window
    ]
    compared = [(name, published_window(bare), window) for name, bare, window in listed]
    far = {name for name, ours, window in compared if ours and abs(ours - window) > 0.06 * window}
    assert len(listed) > 200
    assert sum(ours is None for _, ours, _ in compared) <= 5
    assert far <= set(OTHERWISE)


@pytest.mark.parametrize("model", ["ollama/llama4", "nobody-knows-me", "llama-4.gguf"])
def test_unknown_model_has_no_window(model: str) -> None:
    assert window_of(model) is None


@pytest.mark.parametrize(
    ("model", "prompt"),
    [
        ("gpt-5", 272_000),
        ("gpt-5-mini", 272_000),
        ("gpt-5.2", 272_000),
        ("gpt-5.4-nano", 272_000),
        ("gpt-5.4", 922_000),
        ("gpt-5.6-sol", 922_000),
        ("gpt-6-astra", 922_000),
        ("gpt-latest", 922_000),
        ("gpt-sol-latest", 922_000),
        ("gpt-mini-latest", 272_000),
        ("gpt-chat-latest", None),
        ("gpt-5-chat-latest", None),
        ("gpt-4.1", None),
        ("claude-opus-5", None),
        ("ollama/gpt-5", None),
    ],
)
def test_largest_prompts(model: str, prompt: int | None) -> None:
    assert prompt_limit_of(model) == prompt


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


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gpt-5.5", 128_000),
        ("gpt-6-astra", 128_000),
        ("gpt-5.2-chat-latest", 16_384),
        ("gpt-5-pro", 272_000),
        ("gpt-5-pro-2025-10-06", 272_000),
        ("openrouter/openai/gpt-5-pro", 272_000),
        ("gpt-5.2-pro", 128_000),
        ("claude-opus-5-5", 128_000),
        ("claude-sonnet-5-5", 128_000),
        ("claude-fable-5-2", 128_000),
        ("claude-haiku-5-5", 128_000),
        ("claude-haiku-latest", 128_000),
        ("claude-haiku-4-5", 64_000),
        ("claude-sonnet-4-5", 64_000),
        ("claude-sonnet-4-6", 128_000),
        ("gemini-3.8-flash", 65_536),
        ("gemini-flash-latest", 65_536),
        ("command-a-03-2025", 8_192),
        ("glm-4.6", 131_072),
        ("deepseek-v4-pro", 393_216),
        ("deepseek-flash", 393_216),
        ("deepseek-v3.2", 65_536),
        ("deepseek-r1-distill-llama-70b", None),
        ("grok-4.7", 500_000),
        ("grok-4.3", None),
        ("kimi-k2.6", 262_144),
        ("kimi-k3", 1_048_576),
        ("mistral-large-4", 1_048_576),
        ("mistral-medium-3-5", 262_144),
        ("mistral-embed", None),
        ("codestral-embed-2505", None),
        ("MiniMax-M2.7", 131_072),
        ("qwen3-max", 65_536),
        ("qwen3.8-max", 131_072),
        ("qwen3.6-plus", 65_536),
        ("qwen-plus", 32_768),
        ("qwen3-32b", 16_384),
        ("gpt-sol-latest", 128_000),
        ("gpt-latest", 128_000),
        ("o3-mini", 100_000),
        ("muse-spark-1.3", 131_072),
        ("llama-3.3-70b-versatile", None),
        ("llama-4-maverick", None),
        ("nobody-knows-me", None),
    ],
)
def test_largest_replies(model: str, tokens: int | None) -> None:
    assert max_output_of(parse(model).bare) == tokens


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
    catalogue.warm()
    unknown = {
        f"{provider.id}/{model.id}"
        for provider in catalogue.providers()
        for model in provider.models
        if not (model.context_window or usual_window(parse(model.id).bare))
    }
    accepted = set(UNKNOWN.read_text(encoding="utf-8").split())
    assert len(accepted) <= 140
    assert not unknown - accepted, "add these models to sidecar/models/limits.toml"


def test_preflight_uses_the_prompt_limit() -> None:
    window = Window(resolve_limit(catalogue=400_000, prompt=272_000))
    found = preflight(session(turns=[user("x" * 280_000)]), window, PreflightParams())
    assert (found.verdict, found.fits) == ("refuse", False)
    assert "the prompt limit of 272,000 tokens" in found.reasons[0].message
    assert found.available < 0
