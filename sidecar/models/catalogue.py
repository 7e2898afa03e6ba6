"""Loads the price list, and looks up a model's provider and context window by name, offline.

The list takes up to 0.8 s to load. `refresh` loads it on a worker thread. Until then, windows are
None. `sidecar.cost.prices` computes costs by the list.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from sidecar import typed
from sidecar.config.paths import STORED_LIST, state_dir
from sidecar.config.safe_files import FileStamp, ListFile, read_price_list, set_aside, stamp_of
from sidecar.models.names import (
    LOCAL_PROVIDERS,
    UNKNOWN,
    generation_of,
    is_misspelled,
    known_providers,
    maker_of,
    parse,
    without_date,
)
from sidecar.models.window import input_limit, overruling_window, published_window

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import Provider

_LONG = 60  # how many characters of a name to compare with known names
_NEAR = 0.8  # the minimum similarity (0 to 1) of a suggested name
_FAR = 0.5  # the minimum similarity of names that clearly belong to a family
_DIGITS = re.compile(r"\d+")


ListVersion: TypeAlias = tuple[ListFile, FileStamp | None]
"""The file of a saved price list and its stamp, or (None, None) for the bundled list."""


class Catalogue(msgspec.Struct, frozen=True, eq=False):
    """A loaded price list. Caches of what is found in it have it as a key."""

    version: ListVersion
    prices: Any
    """A `DataSnapshot`, or an empty tuple if no list could be loaded."""

    @property
    def providers(self) -> Sequence[Any]:
        return getattr(self.prices, "providers", ())


_current: Catalogue | None = None
_similar: dict[tuple[Catalogue, str], tuple[str, ...] | None] = {}


class PriceFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What `prices.toml` says."""

    notes: dict[str, str]
    regional_factors: dict[str, Decimal]
    hour_to_input: int
    optional_tier_providers: frozenset[str]
    providers: list[dict[str, Any]]


@cache
def price_facts() -> PriceFacts:
    """Return what `prices.toml` says."""
    return typed.read_table("sidecar.models", "prices.toml", PriceFacts)


_lock = threading.Lock()
_refreshing = threading.Lock()
_loaded: dict[ListVersion, DataSnapshot] = {}


def is_list_loaded(file: ListFile = None) -> bool:
    """Return whether `price_list` returns without reading a file."""
    return _version_of(file) in _loaded


def _version_of(file: ListFile) -> ListVersion:
    stamp = stamp_of(file)
    return (None, None) if stamp is None else (file, stamp)


@cache
def package_versions() -> str:
    """Return a text that changes whenever the bundled list or `prices.toml` may change."""
    from importlib.metadata import version

    from sidecar import __version__

    return f"{__version__} {version('genai-prices')}"


def price_list(file: ListFile = None) -> DataSnapshot:
    """Return the price list that `update-prices` saved to `file`, or the bundled list.

    If the file is unusable, it is renamed and the reason is logged. The first call blocks for
    0.2 to 0.8 s. The list is cached until the file changes.
    """
    with _lock:
        version = _version_of(file)
        if version not in _loaded:
            _loaded[version] = _load_list(file)
            for earlier in [one for one in _loaded if one[0] == version[0] and one != version]:
                del _loaded[earlier]
        return _loaded[version]


def _load_list(file: ListFile) -> DataSnapshot:
    from genai_prices.data_snapshot import get_snapshot

    data = read_price_list(file)
    if file is not None and data is not None:
        try:
            return _with_own_prices(parse_list(data))
        except ValueError as error:
            set_aside(file, f"{error}; download it again with `token-sidecar cost update-prices`")
    return _with_own_prices(get_snapshot())


def _with_own_prices(snapshot: DataSnapshot) -> DataSnapshot:
    """Return a copy with the providers in `prices.toml` that the list does not contain."""
    from genai_prices.data_snapshot import DataSnapshot

    own, listed = _read_providers(price_facts().providers), {one.id for one in snapshot.providers}
    missing = [provider for provider in own if provider.id not in listed]
    return DataSnapshot([*snapshot.providers, *missing], snapshot.from_auto_update)


def parse_list(data: bytes) -> DataSnapshot:
    """Parse a price list in genai-prices' JSON format.

    Raises:
        ValueError: The data is not a price list.
    """
    from genai_prices.data_snapshot import DataSnapshot

    try:
        providers = _read_providers(typed.decode(data, list[dict[str, Any]]))
    except Exception as error:  # any error in the library means that the list is invalid
        raise ValueError("this is not a price list in the format of genai-prices") from error
    if not providers:
        raise ValueError("the price list is empty")
    return DataSnapshot(providers, from_auto_update=True)


def _read_providers(raw: list[dict[str, Any]]) -> list[Provider]:
    import warnings

    from genai_prices.types import _providers_from_raw

    with warnings.catch_warnings():
        # Newer price lists may contain units that this version does not know.
        warnings.simplefilter("ignore")
        return _providers_from_raw(raw)


def current() -> Catalogue:
    """Return the price list in use. The first call loads it. Never raises."""
    return _current or _refresh()


def refresh() -> bool:
    """Load the price list if none is in use, or if its file has changed. Never raises.

    This blocks for up to 0.8 s. Returns whether another list is in use now.
    """
    before = _current
    return _refresh() is not before


def _refresh() -> Catalogue:
    global _current
    with _refreshing:
        file = state_dir() / STORED_LIST
        version = _version_of(file)
        if _current is None or _current.version != version:
            try:
                _current = Catalogue(version, price_list(file))
            except Exception:  # without the price list, windows are unknown but counting works
                _current = Catalogue(version, ())
            # Otherwise, these caches would keep the earlier list in memory.
            _find_window.cache_clear()
            _similar.clear()
        return _current


def is_outdated() -> bool:
    """Return whether the file of the price list in use has changed. This function blocks."""
    return _current is not None and _current.version != _version_of(state_dir() / STORED_LIST)


@lru_cache(maxsize=4096)
def provider_of(model: str) -> str:
    """Return the provider that a model's name implies, or an empty string if none is known."""
    return parse(model).provider or maker_of(model) or ""


def provider_name(named: str) -> str:
    """Return the price list's id for a provider, such as `x-ai` for `xAI`."""
    return known_providers().get(named.lower(), named)


@lru_cache(maxsize=4096)
def billing_provider(named: str, model: str) -> str:
    """Return the provider that bills a call.

    This is the named provider if the price list contains it. Otherwise (for a proxy, for example),
    the model's vendor is returned.
    """
    known = known_providers().get(named.lower())
    return known or provider_of(model) or named


def loaded() -> bool:
    """Return whether the price list has been loaded."""
    return _current is not None


def known_window(model: str) -> int | None:
    """Return a model's context window in tokens, or None if it is unknown.

    Never blocks. Returns None if the price list has not been loaded yet.
    """
    return None if _current is None else _find_window(_current, model)


def window_of(model: str) -> int | None:
    """Return a model's context window in tokens, or None. The first call loads the price list."""
    return _find_window(current(), model)


@lru_cache(maxsize=4096)  # limited, because clients may send arbitrary names
def _find_window(catalogue: Catalogue, model: str) -> int | None:
    name = parse(model)
    if name.window is not None:
        return name.window
    if name.provider in LOCAL_PROVIDERS:
        return None  # the window of a local server depends on its start options
    if (window := overruling_window(name.bare)) is not None:
        return window
    for provider, reference in _lookup_candidates(model):
        window = _window_at(catalogue, provider, reference)
        if window:
            return window
    return _usual_window(catalogue, name.bare)


def is_different_model(reported: str, requested: str) -> bool:
    """Return whether a reply comes from a different model than the one that was requested.

    Release dates are ignored. Returns False if the reported name is unknown, because local
    servers use arbitrary names. The first call loads the price list.
    """
    names = {without_date(parse(model).bare).replace(".", "-") for model in (reported, requested)}
    return len(names) > 1 and window_of(reported) is not None


def similar_models(model: str) -> tuple[str, ...] | None:
    """Return the known models with the most similar names, or None if the model itself is known.

    These models are considered known: local models, listed models, models in known families, and
    names that differ from a listed name only in their numbers. The first call loads the price
    list.
    """
    catalogue = current()
    key = catalogue, model
    try:
        return _similar[key]
    except KeyError:
        if len(_similar) > 4096:
            _similar.clear()
        found = _similar[key] = _find_similar(catalogue, model)
        return found


def similar_if_known(model: str) -> tuple[str, ...] | None:
    """Return the cached result of `similar_models`. Never blocks.

    If there is no cached result, returns an empty tuple for a name that is obviously misspelled,
    and None otherwise.
    """
    name = parse(model)
    is_wrong = name.provider not in LOCAL_PROVIDERS and is_misspelled(name.bare)
    unknown = () if is_wrong else None
    return unknown if _current is None else _similar.get((_current, model), unknown)


def _find_similar(catalogue: Catalogue, model: str) -> tuple[str, ...] | None:
    name, names = parse(model), _all_names(catalogue)
    bare = without_date(name.bare)[:_LONG]
    if name.provider in LOCAL_PROVIDERS or name.bare in names:
        return None
    is_typo = is_misspelled(name.bare)
    if not is_typo:
        is_newer = _DIGITS.sub("", bare) in {_DIGITS.sub("", one) for one in names}
        if is_newer or published_window(bare) or window_of(model):
            return None
    import difflib

    similar = tuple(difflib.get_close_matches(bare, names, 2, _NEAR))
    if is_typo and not similar:
        similar = tuple(difflib.get_close_matches(bare, names, 2, _FAR))
    is_family = generation_of(model) != UNKNOWN
    return None if is_family and not similar else similar


@lru_cache(maxsize=1)
def _all_names(catalogue: Catalogue) -> list[str]:
    return sorted(
        {parse(one.id).bare for provider in catalogue.providers for one in provider.models}
    )


def prompt_limit_of(model: str) -> int | None:
    """Return the maximum prompt size in tokens if it is smaller than the window, or None."""
    name = parse(model)
    return None if name.provider in LOCAL_PROVIDERS else input_limit(name.bare)


def _lookup_candidates(model: str) -> Iterator[tuple[str | None, str]]:
    name, maker = parse(model), maker_of(model)
    if name.provider:
        yield name.provider, name.host_id
        yield name.provider, name.host_id.partition(":")[0]
    yield maker, name.bare
    yield maker, without_date(name.bare)
    yield "openrouter", name.host_id


def _window_at(catalogue: Catalogue, provider: str | None, reference: str) -> int | None:
    try:
        _found, info = catalogue.prices.find_provider_model(reference, None, provider, None)
    except Exception:  # the library raises LookupError and other errors for unknown models
        return None
    window = info.context_window
    return window if isinstance(window, int) and window > 0 else None


def usual_window(bare: str) -> int | None:
    """Return the context window that providers list most often for a model, or None.

    If several windows are equally common, the smallest is returned. If no provider lists the
    model, the window that its vendor publishes is returned. The first call loads the price list.
    """
    return _usual_window(current(), bare)


def _usual_window(catalogue: Catalogue, bare: str) -> int | None:
    known = _windows_by_name(catalogue)
    windows = known.get(bare) or known.get(without_date(bare))
    if not windows:
        return published_window(without_date(bare)) or published_window(bare)
    return max(sorted(set(windows)), key=windows.count)


@lru_cache(maxsize=1)
def _windows_by_name(catalogue: Catalogue) -> dict[str, list[int]]:
    index: dict[str, list[int]] = {}
    for provider in catalogue.providers:
        for model in provider.models:
            if model.context_window:
                index.setdefault(parse(model.id).bare, []).append(model.context_window)
    return index
