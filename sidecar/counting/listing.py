"""What is known of a model, and the models that somebody can choose from (`models/list`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from sidecar.counting.count import Method
from sidecar.counting.vocabularies import counted_by
from sidecar.models import catalogue, families
from sidecar.models.catalogue import known_window, provider_of, usual_window
from sidecar.models.names import parse
from sidecar.models.outputs import max_output_of


class ModelInfo(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is known of a model (contract: `models/list`)."""

    id: str
    provider: str | None
    """genai-prices' id, or a local provider; None where nothing says who serves it."""
    tokenizer: str
    """What counts it here: a vocabulary, `generation~vocabulary` for an approximation, or an
    estimator's name."""
    context_window: int | None
    """Tokens; None where not known (or not loaded yet)."""
    max_output: int | None
    """Tokens of one reply at most; None where not known."""
    method: Method


LARGE = 100_000
"""Tokens that the window of a maker's present model has at least."""
_PRESENT = re.compile(
    r"(gpt-5|o\d|claude-(opus|sonnet|haiku|fable)-[4-9]|gemini-[3-9]|gemini-2\.5|grok-[4-9]|"
    r"mistral-(large|medium|small)|devstral|codestral|deepseek|qwen-?3|kimi-k|glm-[4-9]|command-a)"
    r"(?!.*(embed|audio|tts|image|realtime|transcri|live))"
)

Describe = Callable[[str], tuple[str, Method]]
"""What counts for a model, and how; `Tokenizers.describe` knows the user's own files too."""


def _describe(model: str) -> tuple[str, Method]:
    return counted_by(families.generation_of(model))


def find(model: str, describe: Describe = _describe) -> ModelInfo:
    """What is known of `model` without waiting. Never raises; an unknown one is estimated."""
    tokenizer, method = describe(model)
    return ModelInfo(
        id=model,
        provider=provider_of(model) or None,
        tokenizer=tokenizer,
        context_window=known_window(model),
        max_output=max_output_of(parse(model).bare),
        method=method,
    )


def search(query: str | None = None, describe: Describe = _describe) -> list[ModelInfo]:
    """The models whose `provider/id` holds every word of `query`; all of them without one.

    The makers' own models come first, then the hosts', each in the order of its id. Loads the
    price list: call it on a worker thread.
    """
    catalogue.warm()
    words = (query or "").lower().split()
    found = [
        info for provider in catalogue.providers() for info in _models_of(provider, words, describe)
    ]
    return sorted(found, key=lambda info: (info.provider == "openrouter", info.id, info.provider))


def choices(
    query: str | None = None, describe: Describe = _describe, first: Sequence[str] = ()
) -> list[ModelInfo]:
    """What somebody can choose to count for: each name once, with what it is then counted as.

    `id` is a name that every request takes for that model: the bare id where that stands for it,
    else with its host before it. The names `first` come first, then the makers' present models.
    Loads the price list: call it on a worker thread.
    """
    catalogue.warm()
    words = (query or "").lower().split()
    return [
        find(name, describe)
        for name in dict.fromkeys((*first, *_names()))
        if all(word in f"{provider_of(name)}/{name}".lower() for word in words)
    ]


@cache
def _names() -> tuple[str, ...]:
    names = {
        _name(provider.id, model.id)
        for provider in catalogue.providers()
        for model in provider.models
    }
    return tuple(sorted(names, key=_rank))


def _rank(name: str) -> tuple[bool, bool, bool, str]:
    """The makers' own models first, those for conversations of today before all; then the hosts',
    those of the widest host last."""
    hosted = "/" in name
    present = not hosted and bool(_PRESENT.match(name)) and (known_window(name) or 0) >= LARGE
    return provider_of(name) == "openrouter", hosted, not present, name.lower()


def _name(provider: str, model: str) -> str:
    """How a model of a provider is named; the id where no name would say that provider."""
    if provider_of(model) == provider:
        return model
    named = f"{provider}/{model}"
    return named if parse(named).provider == provider else model


def _models_of(provider: Any, words: list[str], describe: Describe) -> Iterator[ModelInfo]:
    for model in provider.models:
        label = f"{provider.id}/{model.id}".lower()
        if all(word in label for word in words):
            tokenizer, method = describe(model.id)
            yield ModelInfo(
                id=model.id,
                provider=provider.id,
                tokenizer=tokenizer,
                context_window=model.context_window or usual_window(parse(model.id).bare),
                max_output=max_output_of(parse(model.id).bare),
                method=method,
            )
