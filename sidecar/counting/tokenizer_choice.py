"""Chooses the tokenizer or endpoint used to count text.

This code is separate from `counts` so that the command line need not import asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.counting.incremental import measure_text
from sidecar.counting.model_tokenizers import Tokenizers, calibrate
from sidecar.endpoints.outcome import ENDPOINTS_OFF, NO_ENDPOINT, undeclared_reason
from sidecar.models.names import matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.config.settings import Endpoint, Settings
    from sidecar.counting.count_result import Measure
    from sidecar.counting.open_documents import Snapshot
    from sidecar.counting.saved_calibrations import CalibrationStore
    from sidecar.counting.tokenizer_interface import Tokenizer
    from sidecar.counting.windows import Root
    from sidecar.endpoints.endpoints import Endpoints


class CounterChoice(NamedTuple):
    """How to count text for a model. Includes the token count if it is already known."""

    model: str
    tokenizer: Tokenizer
    """A calibrated tokenizer for parts of the text, or for all of it if `whole` is None."""
    whole: Measure | None = None
    """The token count of the whole text if it is known, for example from an endpoint."""
    note: str | None = None
    """The reason why an endpoint provided no count, for display."""

    def measure(self, text: str) -> Measure:
        """Count the text's tokens. This function blocks."""
        if self.whole is not None:
            return self.whole
        return measure_text(text, self.tokenizer)


class CounterChooser:
    """Chooses how to count text. Thread-safe as long as no calibration changes."""

    def __init__(
        self,
        calibrations: CalibrationStore,
        *,
        roots: Iterable[Root] | None = None,
    ) -> None:
        """Create a chooser.

        Args:
            calibrations: Corrections for estimates.
            roots: Workspaces whose endpoints may be used. Defaults to all workspaces.
        """
        self.calibrations = calibrations
        self._tokenizers: dict[Any, Tokenizers] = {}
        self._endpoints: dict[Any, Endpoints] = {}
        self._roots = roots

    def tokenizers(self, settings: Settings) -> Tokenizers:
        """Return the tokenizers for the settings. Workspaces with equal settings share them."""
        key = (settings.tokenizers, settings.tokenize.estimator)
        if key not in self._tokenizers:
            self._tokenizers[key] = Tokenizers(*key)
        return self._tokenizers[key]

    def endpoints(self, settings: Settings) -> Endpoints:
        """Return the endpoints for the settings, or no endpoints if the settings are outdated."""
        from sidecar.endpoints.endpoints import Endpoints

        if not self._is_in_force(settings):
            return Endpoints((), use_endpoint=False)
        key = endpoint_key(settings)
        if key not in self._endpoints:
            self._endpoints[key] = Endpoints(*key[:2], window=settings.tokenize.endpoint_window)
        return self._endpoints[key]

    def _is_in_force(self, settings: Settings) -> bool:
        """Return whether any workspace still uses these endpoints.

        Tasks that started with old settings must not send text to an endpoint that has been
        removed.
        """
        declared, roots = endpoint_key(settings), self._roots
        return roots is None or any(endpoint_key(one.settings) == declared for one in roots)

    async def close_unused_endpoints(self, used: Iterable[Settings]) -> None:
        """Close the endpoints that the given settings no longer use."""
        keys = {endpoint_key(settings) for settings in used}
        gone = [self._endpoints.pop(key) for key in [*self._endpoints] if key not in keys]
        for endpoints in gone:
            await endpoints.aclose()

    async def aclose(self) -> None:
        for endpoints in [*self._endpoints.values()]:
            await endpoints.aclose()

    def asks_endpoint(self, model: str, settings: Settings) -> bool:
        """Return whether an endpoint is used to count text for the model.

        This is false if the model's own tokenizer is available.
        """
        if not has_enabled_endpoints(settings) or not self.endpoints(settings).serves(model):
            return False
        from sidecar.counting.exact_engines import names

        tokenizers = self.tokenizers(settings)
        return tokenizers.for_model(model).name not in names() and not tokenizers.is_user_file(
            model
        )

    def known_limit(self, model: str, settings: Settings) -> int | None:
        """Return the context window (in tokens) that an endpoint has reported. Sends no request."""
        return self.endpoints(settings).known_limit(model) if settings.endpoints else None

    def why_not_asked(self, model: str, settings: Settings) -> str | None:
        """Return the reason why no endpoint counts text for the model, or None if one does."""
        how = settings.tokenize
        served = any(matches(model, endpoint.models) for endpoint in settings.endpoints)
        if how.use_endpoint:
            if not settings.endpoints:
                return NO_ENDPOINT
            return None if served else undeclared_reason(model)
        return ENDPOINTS_OFF if served and not how.endpoint_window else None

    def is_window_due(self, model: str, settings: Settings) -> bool:
        """Return whether it is time to ask an endpoint for the model's context window."""
        return bool(settings.endpoints) and self.endpoints(settings).is_window_due(model)

    def tokenizer(self, model: str, settings: Settings, snapshot: Snapshot) -> Tokenizer:
        """Return a model's tokenizer, calibrated for the type of text in the snapshot."""
        plain = self.tokenizers(settings).for_model(model)
        calibrations = self.calibrations.known
        if calibrations is None or plain.method == "exact":
            return plain
        return calibrate(plain, calibrations, model, snapshot.sample)

    def choose_local_counter(
        self, snapshot: Snapshot, model: str, settings: Settings
    ) -> CounterChoice:
        """Choose how to count text without an endpoint."""
        return CounterChoice(model, self.tokenizer(model, settings, snapshot))


def endpoint_key(settings: Settings) -> tuple[tuple[Endpoint, ...], bool, bool]:
    """Return a hashable key of all settings that affect endpoints."""
    how = settings.tokenize
    return settings.endpoints, how.use_endpoint, how.endpoint_window


def has_enabled_endpoints(settings: Settings) -> bool:
    """Return whether any endpoints are configured and enabled."""
    return bool(settings.tokenize.use_endpoint and settings.endpoints)
