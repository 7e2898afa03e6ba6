"""What a model's window and price make of a number of tokens: for the server and the command line.

What is not loaded yet is not known: a window or price is None until a worker has looked it up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sidecar.context.window import Limit, NamedLimits, Window, resolve_limit
from sidecar.counting.count import Count, Measure
from sidecar.models import catalogue
from sidecar.models.names import matches

if TYPE_CHECKING:
    from sidecar.config.settings import Price, Settings
    from sidecar.workspace.state import State

_MODELS_KEPT = 4_096


class Windows:
    """Limits and prices by model. For the event loop."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.ready = False
        """Whether the price list is there, so that one model more is soon looked up."""
        self._loaded: set[tuple[str, tuple[Price, ...]]] = set()

    def is_loaded(self, model: str, settings: Settings) -> bool:
        """Whether a model's window and price are known without waiting."""
        return (model, settings.prices) in self._loaded

    def looking_up(self, model: str, settings: Settings) -> Callable[[], None]:
        """What looks a model up. Blocking, the first time most of a second: for a worker."""
        return partial(_look_up, self._state, model, settings)

    def looked_up(self, model: str, settings: Settings) -> None:
        """A model was looked up: from now on its price is known."""
        if len(self._loaded) > _MODELS_KEPT:  # random names must not fill the memory
            self._loaded.clear()
        self._loaded.add((model, settings.prices))

    def price(self, model: str, tokens: int, settings: Settings) -> float | None:
        """USD of so many uncached input tokens; None where nobody says, or not yet."""
        if not self.is_loaded(model, settings):
            return None
        cost = self._state.book(settings).estimate(model, tokens)
        return None if cost is None else float(cost)

    def count(
        self,
        measure: Measure,
        model: str,
        characters: int,
        settings: Settings,
        *,
        named: NamedLimits = NamedLimits(),  # noqa: B008 - it is frozen
        note: str | None = None,
    ) -> Count:
        """The public count: a measure beside the model's usable window."""
        limit = limit_of(model, settings, named)
        window = None if limit is None else Window(limit, settings.context.reserve)
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
            input_cost_usd=self.price(model, measure.tokens, settings),
            note=note,
            similar_models=similar_if_known(model, settings),
        )


def similar_models(model: str, settings: Settings) -> tuple[str, ...] | None:
    """The known models most like one that no list, no family and no table of the settings names.

    None where the name is known. Blocking; `similar_if_known` then knows it too.
    """
    return None if _is_named(model, settings) else catalogue.similar_models(model)


def similar_if_known(model: str, settings: Settings) -> tuple[str, ...] | None:
    """Return `similar_models` as far as it is known at once. Never waits."""
    return None if _is_named(model, settings) else catalogue.similar_if_known(model)


def _is_named(model: str, settings: Settings) -> bool:
    named = [one.models for one in settings.endpoints]
    named += [one.models for one in settings.tokenizers]
    named += [one.models for one in settings.prices]
    return any(matches(model, globs) for globs in named)


def _look_up(state: State, model: str, settings: Settings) -> None:
    similar_models(model, settings)
    catalogue.window_of(model)
    state.book(settings).estimate(model, 1)


def limit_of(
    model: str,
    settings: Settings,
    named: NamedLimits = NamedLimits(),  # noqa: B008 - it is frozen
) -> Limit | None:
    """A model's window and its source; None while the catalogue is not loaded and nobody else
    says. Never waits."""
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
