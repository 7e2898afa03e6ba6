"""Describes models, and lists the models that a user can choose (`models/list`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from sidecar.counting.count_result import Method
from sidecar.counting.tokenizer_choice import counted_by
from sidecar.models import catalogue
from sidecar.models.catalogue import Catalogue, known_window, provider_of, usual_window
from sidecar.models.names import generation_of, parse
from sidecar.models.window import max_output_of


class ModelInfo(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A model in the catalogue."""

    id: str
    provider: str | None
    """The provider's id in genai-prices, or a local provider; null if unknown."""
    tokenizer: str
    """The name of a vocabulary or an estimator, or `generation~vocabulary` for an approximation."""
    context_window: int | None
    """The context window in tokens; null if unknown or not loaded yet."""
    max_output: int | None
    """The maximum number of tokens in a reply; null if unknown."""
    method: Method


_MIN_CURRENT_WINDOW = 100_000
_CURRENT = re.compile(
    r"(gpt-5|o\d|claude-(opus|sonnet|haiku|fable)-[4-9]|gemini-[3-9]|gemini-2\.5|grok-[4-9]|"
    r"mistral-(large|medium|small)|devstral|codestral|deepseek|qwen-?3|kimi-k|glm-[4-9]|command-a)"
    r"(?!.*(embed|audio|tts|image|realtime|transcri|live))"
)

Describe = Callable[[str], tuple[str, Method]]
"""A function that returns a model's tokenizer name and counting method."""


def _describe_model(model: str) -> tuple[str, Method]:
    return counted_by(generation_of(model))


def model_info(model: str, describe: Describe = _describe_model) -> ModelInfo:
    """Return a model's description, without loading the price list."""
    tokenizer, method = describe(model)
    return ModelInfo(
        id=model,
        provider=provider_of(model) or None,
        tokenizer=tokenizer,
        context_window=known_window(model),
        max_output=max_output_of(parse(model).bare),
        method=method,
    )


def search(query: str | None = None, describe: Describe = _describe_model) -> list[ModelInfo]:
    """Return the models whose `provider/id` contains every word of `query` (default: all models).

    The vendors' own models come first, then OpenRouter's, each sorted by id. This call blocks
    while the price list is loaded.
    """
    words = (query or "").lower().split()
    models = [
        info
        for provider in catalogue.current().providers
        for info in _models_of(provider, words, describe)
    ]
    return sorted(models, key=lambda info: (info.provider == "openrouter", info.id, info.provider))


def choices(
    query: str | None = None, describe: Describe = _describe_model, first: Sequence[str] = ()
) -> list[ModelInfo]:
    """Return the models that a user can choose, without duplicate names.

    Every request accepts the returned ids. An id is the bare model id if that is unambiguous, and
    `provider/id` otherwise. This call blocks while the price list is loaded.

    Args:
        query: Words that `provider/id` must contain.
        describe: Returns the name and method of a model's tokenizer.
        first: Names to list first. The vendors' current models come next.
    """
    words = (query or "").lower().split()
    return [
        model_info(name, describe)
        for name in dict.fromkeys((*first, *_all_names(catalogue.current())))
        if all(word in f"{provider_of(name)}/{name}".lower() for word in words)
    ]


@lru_cache(maxsize=1)
def _all_names(listed: Catalogue) -> tuple[str, ...]:
    names = {
        _shortest_name(provider.id, model.id)
        for provider in listed.providers
        for model in provider.models
    }
    return tuple(sorted(names, key=_sort_key))


def _sort_key(name: str) -> tuple[bool, bool, bool, str]:
    is_hosted = "/" in name
    is_current = (
        not is_hosted
        and bool(_CURRENT.match(name))
        and (known_window(name) or 0) >= _MIN_CURRENT_WINDOW
    )
    return provider_of(name) == "openrouter", is_hosted, not is_current, name.lower()


def _shortest_name(provider: str, model: str) -> str:
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
