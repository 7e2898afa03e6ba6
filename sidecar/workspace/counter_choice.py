"""Chooses the tokenizer or endpoint that counts a text for a model, without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.counting.incremental import measure_text
from sidecar.counting.tokenizers import Tokenizers, calibrate
from sidecar.endpoints.outcome import ENDPOINTS_OFF, NO_ENDPOINT, undeclared_reason
from sidecar.models.names import matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.config.settings import Endpoint, Settings
    from sidecar.counting.count import Measure
    from sidecar.counting.engines import Purpose
    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.endpoints.registry import Endpoints
    from sidecar.workspace.calibrations import CalibrationStore
    from sidecar.workspace.documents import Snapshot
    from sidecar.workspace.workspace import Workspace


class CounterChoice(NamedTuple):
    """How one text is counted for one model."""

    model: str
    tokenizer: Tokenizer
    """Calibrated. It counts the text's parts, and the whole unless `whole` is given."""
    whole: Measure | None = None
    """A count of the whole text that is known already, such as the endpoint's."""
    note: str | None = None
    """Why the endpoint gave no count."""

    def measure(self, text: str) -> Measure:
        """Return the text's tokens. Blocking."""
        if self.whole is not None:
            return self.whole
        return measure_text(text, self.tokenizer)


class CounterChooser:
    """Chooses how texts are counted. Safe for threads while no calibration changes."""

    def __init__(
        self,
        calibrations: CalibrationStore,
        purpose: Purpose = "interactive",
        *,
        roots: Iterable[Workspace] | None = None,
    ) -> None:
        """
        Args:
            calibrations: Correct estimates.
            purpose: Selects among the shipped engines.
            roots: Endpoints are asked only while one of these declares them; by default always.
        """
        self.calibrations = calibrations
        self._purpose: Purpose = purpose
        self._tokenizers: dict[Any, Tokenizers] = {}
        self._endpoints: dict[Any, Endpoints] = {}
        self._roots = roots

    def tokenizers(self, settings: Settings) -> Tokenizers:
        """Return the tokenizers of settings, shared by all settings that name the same files."""
        key = (settings.tokenizers, settings.tokenize.estimator)
        if key not in self._tokenizers:
            self._tokenizers[key] = Tokenizers(*key, self._purpose)
        return self._tokenizers[key]

    def endpoints(self, settings: Settings) -> Endpoints:
        """Return the endpoints of settings; none if these settings are no longer in force."""
        from sidecar.endpoints.registry import Endpoints

        if not self._is_in_force(settings):
            return Endpoints((), use_endpoint=False)
        key = endpoint_key(settings)
        if key not in self._endpoints:
            self._endpoints[key] = Endpoints(*key[:2], window=settings.tokenize.endpoint_window)
        return self._endpoints[key]

    def _is_in_force(self, settings: Settings) -> bool:
        """Whether a root still declares these endpoints.

        Work that began with older settings must not send text to a removed endpoint.
        """
        declared, roots = endpoint_key(settings), self._roots
        return roots is None or any(endpoint_key(one.settings) == declared for one in roots)

    async def keep_endpoints(self, used: Iterable[Settings]) -> None:
        """Close the endpoints that none of these settings declares."""
        keys = {endpoint_key(settings) for settings in used}
        gone = [self._endpoints.pop(key) for key in [*self._endpoints] if key not in keys]
        for endpoints in gone:
            await endpoints.aclose()

    async def aclose(self) -> None:
        """Close connections."""
        for endpoints in [*self._endpoints.values()]:
            await endpoints.aclose()

    def asks_endpoint(self, model: str, settings: Settings) -> bool:
        """Whether an endpoint counts this model's texts.

        It does not if the model's own tokenizer is shipped, or the user named its file.
        """
        if not uses_endpoints(settings) or not self.endpoints(settings).serves(model):
            return False
        from sidecar.counting.engines import names

        tokenizers = self.tokenizers(settings)
        return tokenizers.for_model(model).name not in names() and not tokenizers.is_user_file(
            model
        )

    def known_limit(self, model: str, settings: Settings) -> int | None:
        """Return the window that an endpoint has reported, in tokens. Sends no request."""
        return self.endpoints(settings).known_limit(model) if settings.endpoints else None

    def why_unasked(self, model: str, settings: Settings) -> str | None:
        """Return why no endpoint counts for the model although the user expects one, if so."""
        how = settings.tokenize
        served = any(matches(model, endpoint.models) for endpoint in settings.endpoints)
        if how.use_endpoint:
            if not settings.endpoints:
                return NO_ENDPOINT
            return None if served else undeclared_reason(model)
        return ENDPOINTS_OFF if served and not how.endpoint_window else None

    def is_window_due(self, model: str, settings: Settings) -> bool:
        """Whether an endpoint must still be asked for the model's window."""
        return bool(settings.endpoints) and self.endpoints(settings).is_window_due(model)

    def tokenizer(self, model: str, settings: Settings, snapshot: Snapshot) -> Tokenizer:
        """Return the tokenizer of a model, calibrated for the text's kind."""
        plain = self.tokenizers(settings).for_model(model)
        calibrations = self.calibrations.known
        if calibrations is None or plain.method == "exact":
            return plain
        return calibrate(plain, calibrations, model, snapshot.sample)

    def choose_local_counter(
        self, snapshot: Snapshot, model: str, settings: Settings
    ) -> CounterChoice:
        """Choose how a text is counted without an endpoint."""
        return CounterChoice(model, self.tokenizer(model, settings, snapshot))


def endpoint_key(settings: Settings) -> tuple[tuple[Endpoint, ...], bool, bool]:
    """Return everything that the endpoints of settings depend on."""
    how = settings.tokenize
    return settings.endpoints, how.use_endpoint, how.endpoint_window


def uses_endpoints(settings: Settings) -> bool:
    """Whether the user has declared an endpoint and switched endpoints on."""
    return bool(settings.tokenize.use_endpoint and settings.endpoints)
