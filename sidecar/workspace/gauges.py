"""What counts a text for a model, and whether a server is asked for it: the part of `Counts` that
never waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.counting.incremental import measure_text
from sidecar.counting.tokenizers import Tokenizers, calibrated
from sidecar.endpoints.outcome import NO_ENDPOINT, OFF, undeclared
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


class Gauge(NamedTuple):
    """What one text is counted by for one model."""

    model: str
    tokenizer: Tokenizer
    """Corrected by what was learned; counts the parts, and the whole where `whole` does not."""
    whole: Measure | None = None
    """The count of the whole text where it is known already, such as the endpoint's."""
    note: str | None = None
    """Why the endpoint gave none."""

    def measure(self, text: str) -> Measure:
        """The text's tokens. Blocking."""
        if self.whole is not None:
            return self.whole
        return measure_text(text, self.tokenizer)


class Gauges:
    """Chooses what counts. Any thread may ask while nothing is learned."""

    def __init__(
        self,
        calibrations: CalibrationStore,
        purpose: Purpose = "interactive",
        *,
        roots: Iterable[Workspace] | None = None,
    ) -> None:
        """`purpose`: what the shipped engines are for.

        `roots`: whose settings are in force; all are by default.
        """
        self.calibrations = calibrations
        self._purpose: Purpose = purpose
        self._tokenizers: dict[Any, Tokenizers] = {}
        self._endpoints: dict[Any, Endpoints] = {}
        self._roots = roots

    def tokenizers(self, settings: Settings) -> Tokenizers:
        """The tokenizers of some settings: shared by all that name the same files."""
        key = (settings.tokenizers, settings.tokenize.estimator)
        if key not in self._tokenizers:
            self._tokenizers[key] = Tokenizers(*key, self._purpose)
        return self._tokenizers[key]

    def endpoints(self, settings: Settings) -> Endpoints:
        """The model servers that the user declared: shared by all with the same settings. None of
        settings that are no longer in force."""
        from sidecar.endpoints.registry import Endpoints

        if not self._is_in_force(settings):
            return Endpoints((), use_endpoint=False)
        key = servers(settings)
        if key not in self._endpoints:
            self._endpoints[key] = Endpoints(*key[:2], window=settings.tokenize.endpoint_window)
        return self._endpoints[key]

    def _is_in_force(self, settings: Settings) -> bool:
        """Whether the endpoints of some settings may still be asked: work that began by older ones
        must not have its text sent to one that was withdrawn meanwhile."""
        declared, roots = servers(settings), self._roots
        return roots is None or any(servers(one.settings) == declared for one in roots)

    async def keep_endpoints(self, used: Iterable[Settings]) -> None:
        """Close what was declared by settings that hold no longer."""
        keys = {servers(settings) for settings in used}
        gone = [self._endpoints.pop(key) for key in [*self._endpoints] if key not in keys]
        for endpoints in gone:
            await endpoints.aclose()

    async def aclose(self) -> None:
        """Close connections."""
        for endpoints in [*self._endpoints.values()]:  # one may be made while another is closed
            await endpoints.aclose()

    def asks(self, model: str, settings: Settings) -> bool:
        """Whether an endpoint is asked for this model's texts: not where what counts here is the
        model's own, shipped or named by the user."""
        if not may_ask(settings) or not self.endpoints(settings).serves(model):
            return False
        from sidecar.counting.engines import names

        tokenizers = self.tokenizers(settings)
        return tokenizers.for_model(model).name not in names() and not tokenizers.is_users(model)

    def known_limit(self, model: str, settings: Settings) -> int | None:
        """The window that an endpoint has reported, in tokens. Asks nobody."""
        return self.endpoints(settings).known_limit(model) if settings.endpoints else None

    def why_unasked(self, model: str, settings: Settings) -> str | None:
        """Why nobody is asked to count for the model, though the user wants or has declared a
        server that does; None where somebody is, or nobody was meant to be."""
        how = settings.tokenize
        served = any(matches(model, endpoint.models) for endpoint in settings.endpoints)
        if how.use_endpoint:
            if not settings.endpoints:
                return NO_ENDPOINT
            return None if served else undeclared(model)
        return OFF if served and not how.endpoint_window else None

    def window_due(self, model: str, settings: Settings) -> bool:
        """Whether an endpoint is still to be asked for the model's window."""
        return bool(settings.endpoints) and self.endpoints(settings).window_due(model)

    def tokenizer(self, model: str, settings: Settings, taken: Snapshot) -> Tokenizer:
        """What counts a text for a model here, corrected by what was learned for its kind."""
        plain = self.tokenizers(settings).for_model(model)
        learned = self.calibrations.known
        if learned is None or plain.method == "exact":
            return plain
        return calibrated(plain, learned, model, taken.sample)

    def here(self, taken: Snapshot, model: str, settings: Settings) -> Gauge:
        """What counts a text for a model without asking anybody."""
        return Gauge(model, self.tokenizer(model, settings, taken))


def servers(settings: Settings) -> tuple[tuple[Endpoint, ...], bool, bool]:
    """What the clients of model servers are made of."""
    how = settings.tokenize
    return settings.endpoints, how.use_endpoint, how.endpoint_window


def may_ask(settings: Settings) -> bool:
    """Whether the user declared an endpoint and switched endpoints on."""
    return bool(settings.tokenize.use_endpoint and settings.endpoints)
