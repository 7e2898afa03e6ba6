"""The model catalogue: from a model's name to its provider and context window.

Windows come from the price list (`sidecar.models.price_list`), whose import takes most of a
second. `warm` loads it on a worker thread; until then a window is None. Nothing here uses the
network.
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
from sidecar.models.limits import input_limit, overruling_window, published_window
from sidecar.models.names import KNOWN_PROVIDERS, LOCAL_PROVIDERS, parse
from sidecar.models.price_list import price_list

_LONG = 60  # longest name, in characters, that is checked for misspellings
_NEAR = 0.8  # similarity; 1 is identical
_FAR = 0.5  # similarity, if the name clearly belongs to a family
_DIGITS = re.compile(r"\d+")
_lock = threading.Lock()
_prices: Any = None
_windows: dict[str, int | None] = {}
_similar: dict[str, tuple[str, ...] | None] = {}


def warm() -> None:
    """Load the price list. Blocking, 0.2 to 0.8 s the first time. Never raises."""
    global _prices
    with _lock:
        if _prices is None:
            try:
                _prices = price_list(state_dir() / STORED_LIST)
            except Exception:  # a broken or incompatible version: no windows, but counting works
                _prices = ()


def provider_of(model: str) -> str:
    """Return the provider that a model's name implies, or "" if the name does not show it."""
    return parse(model).provider or families.maker_of(model) or ""


def provider_name(named: str) -> str:
    """Return the price list's name of a provider, such as `x-ai` for `xAI`."""
    return KNOWN_PROVIDERS.get(named.lower(), named)


@lru_cache(maxsize=4096)
def billing_provider(named: str, model: str) -> str:
    """Return the provider that bills a call.

    That is the named provider, or the model's vendor if the named one is not in the price list,
    such as a proxy.
    """
    known = KNOWN_PROVIDERS.get(named.lower())
    return known or provider_of(model) or named


def loaded() -> bool:
    """Return whether the price list is loaded."""
    return _prices is not None


def providers() -> Sequence[Any]:
    """Return the providers of genai-prices with their models; empty until `warm` has run."""
    return getattr(_prices, "providers", ())


def known_window(model: str) -> int | None:
    """Return the context window in tokens, or None if unknown or not loaded. Never waits."""
    return None if _prices is None else window_of(model)


def window_of(model: str) -> int | None:
    """Return the context window in tokens, or None if unknown. Loads the price list."""
    if model not in _windows:
        warm()
        if len(_windows) > 4096:  # bounded: a client may send random names
            _windows.clear()
        _windows[model] = _look_up(model)
    return _windows[model]


def is_other(said: str, asked: str) -> bool:
    """Return whether a reply names a different model than the request.

    A release date makes no difference, and unknown names are never different, because local
    servers use their own names. Loads the price list.
    """
    names = {families.undated(parse(model).bare).replace(".", "-") for model in (said, asked)}
    return len(names) > 1 and window_of(said) is not None


def similar_models(model: str) -> tuple[str, ...] | None:
    """Return the known models with the most similar names, or None for a known name.

    A local model, a listed one, one of a known family, or one that differs from a listed one
    only in its numbers is known. Loads the price list.
    """
    if model not in _similar:
        if len(_similar) > 4096:
            _similar.clear()
        _similar[model] = _similar_models(model)
    return _similar[model]


def similar_if_known(model: str) -> tuple[str, ...] | None:
    """Return `similar_models` if it is cached. Never waits.

    Otherwise returns () for a name that is misspelt by its form, and None for any other.
    """
    name = parse(model)
    is_wrong = name.provider not in LOCAL_PROVIDERS and families.is_misspelt(name.bare)
    return _similar.get(model, () if is_wrong else None)


def _similar_models(model: str) -> tuple[str, ...] | None:
    name = parse(model)
    bare = families.undated(name.bare)[:_LONG]
    if name.provider in LOCAL_PROVIDERS or name.bare in _all_names():
        return None
    is_misspelt = families.is_misspelt(name.bare)
    if not is_misspelt:
        is_newer = _DIGITS.sub("", bare) in {_DIGITS.sub("", one) for one in _all_names()}
        if is_newer or published_window(bare) or window_of(model):
            return None
    import difflib

    similar = tuple(difflib.get_close_matches(bare, _all_names(), 2, _NEAR))
    if is_misspelt and not similar:
        similar = tuple(difflib.get_close_matches(bare, _all_names(), 2, _FAR))
    is_family = families.generation_of(model) != families.UNKNOWN
    return None if is_family and not similar else similar


@cache
def _all_names() -> list[str]:
    warm()
    return sorted({parse(model.id).bare for provider in providers() for model in provider.models})


def prompt_limit_of(model: str) -> int | None:
    """Return the largest prompt in tokens if the vendor limits it below the window, else None."""
    name = parse(model)
    return None if name.provider in LOCAL_PROVIDERS else input_limit(name.bare)


def _look_up(model: str) -> int | None:
    name = parse(model)
    if name.provider in LOCAL_PROVIDERS:
        return None  # a local server's window depends on how it was started
    if (window := overruling_window(name.bare)) is not None:
        return window
    for provider, reference in _lookup_candidates(model):
        window = _window_at(provider, reference)
        if window:
            return window
    return usual_window(name.bare)


def _lookup_candidates(model: str) -> Iterator[tuple[str | None, str]]:
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
    except Exception:  # LookupError for an unknown model; other errors mean the same
        return None
    window = info.context_window
    return window if isinstance(window, int) and window > 0 else None


def usual_window(bare: str) -> int | None:
    """Return the window that most providers give a model, or of two equally common ones the
    smaller.

    Falls back to the vendor's published window, or None.
    """
    windows = _windows_by_name().get(bare) or _windows_by_name().get(families.undated(bare))
    if not windows:
        return published_window(families.undated(bare)) or published_window(bare)
    return max(sorted(set(windows)), key=windows.count)


@cache
def _windows_by_name() -> dict[str, list[int]]:
    index: dict[str, list[int]] = {}
    for provider in providers():
        for model in provider.models:
            if model.context_window:
                index.setdefault(parse(model.id).bare, []).append(model.context_window)
    return index
