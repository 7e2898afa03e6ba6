"""The model catalogue: from a model's name to who serves it, and to its context window.

Windows come from the price list in force (`sidecar.models.price_list`), whose import takes most of
a second: `warm` loads it on a worker thread, and until then a window is None. Nothing here reaches
the network, and nothing raises for any name.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any

from sidecar.config.paths import state_dir
from sidecar.config.stored_prices import STORED_LIST
from sidecar.models import families
from sidecar.models.names import KNOWN_PROVIDERS, LOCAL_PROVIDERS, parse
from sidecar.models.price_list import price_list
from sidecar.models.windows import input_limit, overruling_window, published_window

_LONG = 60  # characters of a name that may be a slip of another
_NEAR = 0.8  # of 1 for the same name
_FAR = 0.5  # of 1, where the name is surely a family's, but nothing is near
_DIGITS = re.compile(r"\d+")
_lock = threading.Lock()
_prices: Any = None
_windows: dict[str, int | None] = {}
_similar: dict[str, tuple[str, ...] | None] = {}


def warm() -> None:
    """Load the price list: 0.2 to 0.8 s once, so call it on a worker thread. Never raises."""
    global _prices
    with _lock:
        if _prices is None:
            try:
                _prices = price_list(state_dir() / STORED_LIST)
            except Exception:  # a broken or foreign version: no windows, but counts all the same
                _prices = ()


def provider_of(model: str) -> str:
    """Who serves a model, by its name alone: what stands in it, else the maker's own API.

    "" where its name does not show it.
    """
    return parse(model).provider or families.maker_of(model) or ""


def provider_name(named: str) -> str:
    """Return the price list's name of a provider, such as `x-ai` for `xAI`; others as they are."""
    return KNOWN_PROVIDERS.get(named.lower(), named)


@lru_cache(maxsize=4096)
def billing_provider(named: str, model: str) -> str:
    """Who is taken to bill a call: the provider that a user named, or the model's maker for one
    that no price list knows, such as a proxy."""
    known = KNOWN_PROVIDERS.get(named.lower())
    return known or provider_of(model) or named


def loaded() -> bool:
    """Whether windows are known without waiting."""
    return _prices is not None


def providers() -> Sequence[Any]:
    """genai-prices' providers with their models; empty until `warm` was called."""
    return getattr(_prices, "providers", ())


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


def is_other(said: str, asked: str) -> bool:
    """Whether a reply that names its model came of another than was asked for.

    A release date is no other model, nor is a name that no list knows: local servers have their
    own. Loads the list if need be.
    """
    names = {families.undated(parse(model).bare).replace(".", "-") for model in (said, asked)}
    return len(names) > 1 and window_of(said) is not None


def similar_models(model: str) -> tuple[str, ...] | None:
    """The known models whose names are most like one that no list and no family has.

    Empty where none is like it. None for a name that is known: a local server's, one of a list or
    of a known family, or one that differs from a listed one in its numbers only, as a newer model
    does. Loads the list if need be.
    """
    if model not in _similar:
        if len(_similar) > 4096:
            _similar.clear()
        _similar[model] = _similar_models(model)
    return _similar[model]


def similar_if_known(model: str) -> tuple[str, ...] | None:
    """Return `similar_models` where it was computed before, else None. Never waits."""
    return _similar.get(model)


def _similar_models(model: str) -> tuple[str, ...] | None:
    name = parse(model)
    bare = families.undated(name.bare)[:_LONG]
    if name.provider in LOCAL_PROVIDERS or name.bare in _names():
        return None
    is_misspelt = families.is_misspelt(name.bare)
    if not is_misspelt:
        is_newer = _DIGITS.sub("", bare) in {_DIGITS.sub("", one) for one in _names()}
        if is_newer or published_window(bare) or window_of(model):
            return None
    import difflib

    similar = tuple(difflib.get_close_matches(bare, _names(), 2, _NEAR))
    if is_misspelt and not similar:
        similar = tuple(difflib.get_close_matches(bare, _names(), 2, _FAR))
    is_family = families.generation_of(model) != families.UNKNOWN
    return None if is_family and not similar else similar


@cache
def _names() -> list[str]:
    warm()
    return sorted({parse(model.id).bare for provider in providers() for model in provider.models})


def prompt_limit_of(model: str) -> int | None:
    """Tokens that the maker lets a prompt hold, where that is less than the window; else None."""
    name = parse(model)
    return None if name.provider in LOCAL_PROVIDERS else input_limit(name.bare)


def _look_up(model: str) -> int | None:
    name = parse(model)
    if name.provider in LOCAL_PROVIDERS:
        return None  # what a local server gives is what it was started with, not what is possible
    if (window := overruling_window(name.bare)) is not None:
        return window
    for provider, reference in _candidates(model):
        window = _window_at(provider, reference)
        if window:
            return window
    return usual_window(name.bare)


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


def usual_window(bare: str) -> int | None:
    """What most of those who serve a model give it; the smaller one where they are even.

    What its maker publishes where nobody's is listed; None where that is not known either.
    """
    windows = _by_bare().get(bare) or _by_bare().get(families.undated(bare))
    if not windows:
        return published_window(families.undated(bare)) or published_window(bare)
    return max(sorted(set(windows)), key=windows.count)


@cache
def _by_bare() -> dict[str, list[int]]:
    index: dict[str, list[int]] = {}
    for provider in providers():
        for model in provider.models:
            if model.context_window:
                index.setdefault(parse(model.id).bare, []).append(model.context_window)
    return index
