"""Context windows and prices by model.

All windows and prices are None until the model lists are loaded. Only `load_window_and_price`
waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Protocol

from sidecar.config.settings import Price, Settings
from sidecar.counting.count_result import Count, Measure, input_cost_text
from sidecar.models import catalogue
from sidecar.models.names import matches
from sidecar.models.window import Limit, NamedLimits, Window, resolve_limit

_MODELS_KEPT = 4_096

EstimateCost = Callable[[str, int, "Settings"], Decimal | None]
"""Returns the price in USD of uncached input, by model, tokens and settings. Blocks."""


class Root(Protocol):
    """What counting needs to know of a root folder."""

    @property
    def settings(self) -> Settings: ...

    @property
    def model(self) -> str:
        """The default model."""

    def limits_for(self, model: str) -> NamedLimits:
        """Return the context windows set by the displayed session, if it uses this model."""


def load_window_and_price(estimate: EstimateCost, model: str, settings: Settings) -> None:
    """Load a model's window and price. Blocks; the first call takes almost a second."""
    similar_models(model, settings)
    catalogue.window_of(model)
    estimate(model, 1, settings)


class Windows:
    """Keeps track of loaded windows and prices, and adds them to counts."""

    def __init__(self, estimate: EstimateCost) -> None:
        self.estimate = estimate
        self.ready = False
        """Whether the price list is loaded. If so, loading another model is fast."""
        self._loaded: set[tuple[str, tuple[Price, ...]]] = set()

    def is_loaded(self, model: str, settings: Settings) -> bool:
        """Return whether a model's window and price are loaded."""
        return (model, settings.prices) in self._loaded

    def forget_all(self) -> None:
        """Load windows and prices again when they are needed."""
        self._loaded.clear()

    def mark_loaded(self, model: str, settings: Settings) -> None:
        # The cache is limited, because clients can send any number of model names.
        if len(self._loaded) > _MODELS_KEPT:
            self._loaded.clear()
        self._loaded.add((model, settings.prices))

    def price(self, model: str, tokens: int, settings: Settings) -> float | None:
        """Return the price of uncached input in USD, or None if it is unknown or not loaded."""
        if not self.is_loaded(model, settings):
            return None
        cost = self.estimate(model, tokens, settings)
        return None if cost is None else float(cost)

    def count(
        self,
        measure: Measure,
        model: str,
        characters: int,
        settings: Settings,
        limit: Limit | None,
        note: str | None = None,
    ) -> Count:
        """Return a `Count` that includes the model's window, price and similar models."""
        window = None if limit is None else Window(limit, settings.context.reserve)
        cost = self.price(model, measure.tokens, settings)
        return Count(
            tokens=measure.tokens,
            method=measure.method,
            tokenizer=measure.tokenizer,
            model=model,
            error_percent=measure.error_percent,
            characters=characters,
            limit=None if limit is None else limit.tokens,
            limit_source=None if limit is None else limit.source,
            percent=None if window is None else window.percent(measure.tokens),
            input_cost_usd=cost,
            input_cost_text=None if cost is None else input_cost_text(cost, measure.method),
            note=note,
            similar_models=loaded_similar_models(model, settings),
        )


def similar_models(model: str, settings: Settings) -> tuple[str, ...] | None:
    """Return the known models whose names are most similar to an unknown model's name. Blocks.

    Returns None if the model is known, for example from a model list or from the settings.
    """
    return None if _is_named(model, settings) else catalogue.similar_models(model)


def loaded_similar_models(model: str, settings: Settings) -> tuple[str, ...] | None:
    """Return the result of `similar_models`, or None if it has not been computed yet."""
    return None if _is_named(model, settings) else catalogue.similar_if_known(model)


def _is_named(model: str, settings: Settings) -> bool:
    named = [one.models for one in settings.endpoints]
    named += [one.models for one in settings.tokenizers]
    named += [one.models for one in settings.prices]
    return any(matches(model, globs) for globs in named)


def find_window(
    model: str,
    settings: Settings,
    named: NamedLimits = NamedLimits(),  # noqa: B008 - it is frozen
) -> Limit | None:
    """Return a model's window and its source, without waiting.

    Returns None if the model list is not loaded and no other source provides a window.
    """
    if not catalogue.loaded() and named == NamedLimits():
        return None
    return resolve_limit(
        request=named.request,
        transcript=named.transcript,
        endpoint=named.endpoint,
        catalogue=catalogue.known_window(model),
        setting=settings.context.limit,
        prompt=catalogue.prompt_limit_of(model),
    )


def find_agent_window(model: str | None, settings: Settings, named: NamedLimits) -> Limit | None:
    """Return the window of an agent's session, or None if it is unknown.

    Agents work in much larger windows than the one that is assumed for conversations. The
    configured model says nothing about a session that doesn't name its model.
    """
    limit = find_window(model or "", settings, named)
    return None if limit is None or limit.source == "default" else limit
