"""The model catalogue: from a model's name to its tokenizer, context window and output limit.

Tokenizers come from the small table in `families`, at once. Windows come from genai-prices'
offline data, whose import takes most of a second: `warm` loads it on a worker thread, and until
then a window is None. Nothing here reaches the network, and nothing raises for any name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.counting import families
from sidecar.counting.count import Method
from sidecar.counting.names import LOCAL_PROVIDERS, parse
from sidecar.counting.outputs import max_output_of
from sidecar.counting.vocabularies import counted_by

if TYPE_CHECKING:
    from collections.abc import Iterator


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


_lock = threading.Lock()
_prices: Any = None
_windows: dict[str, int | None] = {}


def warm() -> None:
    """Load the price list: 0.2 to 0.8 s once, so call it on a worker thread. Never raises."""
    global _prices
    with _lock:
        if _prices is None:
            _prices = _snapshot()


def _snapshot() -> Any:
    try:
        from genai_prices.data_snapshot import get_snapshot

        return get_snapshot()
    except Exception:  # a broken or foreign version: no windows, but counts all the same
        return ()


def provider_of(model: str) -> str | None:
    """Who serves a model, by its name alone: what stands in it, else the maker's own API."""
    name = parse(model)
    return name.provider or families.maker_of(model)


Describe = Callable[[str], tuple[str, Method]]
"""What counts for a model, and how; `Tokenizers.describe` knows the user's own files too."""


def _describe(model: str) -> tuple[str, Method]:
    return counted_by(families.tokenizer_for(model))


def find(model: str, describe: Describe = _describe) -> ModelInfo:
    """What is known of `model` without waiting. Never raises; an unknown one is estimated."""
    tokenizer, method = describe(model)
    return ModelInfo(
        id=model,
        provider=provider_of(model),
        tokenizer=tokenizer,
        context_window=known_window(model),
        max_output=max_output_of(parse(model).bare),
        method=method,
    )


def loaded() -> bool:
    """Whether windows can be told without waiting."""
    return _prices is not None


def known_window(model: str) -> int | None:
    """The context window in tokens if the price list is loaded, else None. Never waits."""
    return None if _prices is None else window_of(model)


def window_of(model: str) -> int | None:
    """The context window in tokens; None where no list knows it. Loads the list if need be."""
    if model not in _windows:
        warm()
        if len(_windows) > 4096:  # a client that sends random names must not fill the memory
            _windows.clear()
        _windows[model] = _look_up(model)
    return _windows[model]


def _look_up(model: str) -> int | None:
    name = parse(model)
    if name.provider in LOCAL_PROVIDERS:
        return None  # what a local server gives is what it was started with, not what is possible
    for provider, reference in _candidates(model):
        window = _window_at(provider, reference)
        if window:
            return window
    return _usual_window(name.bare)


def _candidates(model: str) -> Iterator[tuple[str | None, str]]:
    """Where to look a window up, best first: who serves it, the maker, then anybody."""
    name, maker = parse(model), families.maker_of(model)
    if name.provider:
        yield name.provider, name.host_id
        yield name.provider, name.host_id.partition(":")[0]
    yield maker, name.bare
    yield maker, families.undated(name.bare)
    yield "openrouter", name.host_id


def _window_at(provider: str | None, reference: str) -> int | None:
    try:
        _found, info = _prices.find_provider_model(reference, None, provider, None)
    except Exception:  # LookupError for what it does not know; anything else is no window either
        return None
    window = info.context_window
    return window if isinstance(window, int) and window > 0 else None


def _usual_window(bare: str) -> int | None:
    """What most of those who serve a model give it; the smaller one where they are even."""
    windows = _by_bare().get(bare) or _by_bare().get(families.undated(bare))
    if not windows:
        return None
    return max(sorted(set(windows)), key=windows.count)


@cache
def _by_bare() -> dict[str, list[int]]:
    index: dict[str, list[int]] = {}
    for provider in getattr(_prices, "providers", ()):
        for model in provider.models:
            if model.context_window:
                index.setdefault(parse(model.id).bare, []).append(model.context_window)
    return index


def search(query: str | None = None, describe: Describe = _describe) -> list[ModelInfo]:
    """The models whose `provider/id` holds every word of `query`; all of them without one.

    The makers' own models come first, then the hosts', each in the order of its id. Loads the
    price list: call it on a worker thread.
    """
    warm()
    words = (query or "").lower().split()
    found = [
        info
        for provider in getattr(_prices, "providers", ())
        for info in _models_of(provider, words, describe)
    ]
    return sorted(found, key=lambda info: (info.provider == "openrouter", info.id, info.provider))


def choices(query: str | None = None, describe: Describe = _describe) -> list[ModelInfo]:
    """What somebody can choose to count for: each name once, with what it is then counted as.

    `id` is a name that every request takes for that model: the bare id where that stands for it,
    else with its host before it. Loads the price list: call it on a worker thread.
    """
    warm()
    words = (query or "").lower().split()
    return [
        find(name, describe)
        for name in _names()
        if all(word in f"{provider_of(name)}/{name}".lower() for word in words)
    ]


@cache
def _names() -> tuple[str, ...]:
    names = {
        _name(provider.id, model.id)
        for provider in getattr(_prices, "providers", ())
        for model in provider.models
    }
    return tuple(sorted(names, key=_rank))


def _rank(name: str) -> tuple[bool, bool, str]:
    """The makers' own models first, then the hosts', those of the widest host last."""
    return provider_of(name) == "openrouter", "/" in name, name.lower()


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
                context_window=model.context_window or _usual_window(parse(model.id).bare),
                max_output=max_output_of(parse(model.id).bare),
                method=method,
            )
