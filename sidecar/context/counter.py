"""Counting for one model: the interface that this package needs, and sums of counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add, sub
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

import msgspec

from sidecar.counting import fit as fitting
from sidecar.counting import messages
from sidecar.counting.count import Measure
from sidecar.counting.incremental import measure_text

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation
    from sidecar.counting.count import Method
    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.messages.turns import Turn


MARKS = 12
"""Tokens of markup around a reply and the next turn that the formula may miss."""


class Counter(Protocol):
    """Counts for one model. Pure: the same input gives the same result."""

    @property
    def key(self) -> str:
        """Key of stored counts: the model."""

    @property
    def tokenizer(self) -> str:
        """The tokenizer's name, for a count of nothing."""

    @property
    def basis(self) -> str:
        """The tokenizer that counts here. If it changes, everything is counted again."""

    def is_like(self, other: Any) -> bool:
        """Whether counts of the other counter, for the same model, are valid for this one."""

    @property
    def priming(self) -> int:
        """Tokens of a request besides its messages and tools."""

    def text(self, text: str) -> Measure:
        """Count a text on its own."""

    def message(self, turn: Turn) -> Measure:
        """Count a message with the markup of the model's format."""

    def around(self, turn: Turn, counted: int) -> Measure:
        """Count a message whose texts the model's server has counted."""

    def tools(self, tools: Sequence[Any]) -> Measure:
        """Count tool schemas as the model sees them."""

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        """Cut `text` to `max_tokens`; returns the same text if it fits."""


class Calibration(Protocol):
    """What reported usage has shown about this counter's estimates."""

    @property
    def factor(self) -> float:
        """Real tokens per estimated token."""

    @property
    def samples(self) -> int:
        """Number of reports."""

    @property
    def error_percent(self) -> float | None:
        """Error band (±%) of corrected estimates; None if unknown."""

    @property
    def hidden(self) -> tuple[float, float] | None:
        """Tokens that the client adds unseen, and their error band; None if unknown."""

    def band_factor(self, kind: str | None = None) -> float:
        """Factor for the error band of an estimate, from past errors."""


class Sums(NamedTuple):
    """Tokens added up by how they were counted. Subtracting removes a part again."""

    exact: int = 0
    endpoint: int = 0
    estimate: int = 0
    """Estimated and calibrated tokens. The conversation's calibration applies to them."""
    calibrated: int = 0
    """The part of `estimate` with the method `calibrated`."""
    error: float = 0.0
    """Expected error of the measured part of `estimate`, in tokens."""
    unmeasured: int = 0
    """The part of `estimate` whose error is unknown."""

    documents: int = 0
    """Estimates of documents, already corrected for their kind of text. The conversation's
    calibration does not apply to them.
    """
    document_estimate: int = 0
    """The part of `documents` with the method `estimate`."""
    document_error: float = 0.0
    """Expected error of `documents` in tokens, if known."""

    def plus(self, other: Sums) -> Sums:
        return Sums(*map(add, self, other))

    def minus(self, other: Sums) -> Sums:
        return Sums(*map(sub, self, other))

    def tokens(self, factor: float = 1.0) -> int:
        """Return the number of tokens, with estimates multiplied by `factor`."""
        return self.exact + self.endpoint + self.documents + round(self.estimate * factor)


def sums_of(measure: Measure) -> Sums:
    """Return the sums of one count."""
    if measure.method == "exact":
        return Sums(exact=measure.tokens)
    if measure.method == "endpoint":
        return Sums(endpoint=measure.tokens)
    error, unsure = measure.error_percent, measure.tokens - measure.counted
    return Sums(
        endpoint=measure.counted,
        estimate=unsure,
        calibrated=unsure if measure.method == "calibrated" else 0,
        error=0.0 if error is None else measure.tokens * error / 100,
        unmeasured=unsure if error is None else 0,
    )


def all_sums(parts: Sequence[Sums]) -> Sums:
    """Add up several sums."""
    return reduce(Sums.plus, parts, Sums())


def document_sums(measure: Measure) -> Sums:
    """Return the sums of a text that was counted as a document."""
    if measure.method in ("exact", "endpoint"):
        return sums_of(measure)
    tokens, error = measure.tokens, measure.error_percent
    return Sums(
        documents=tokens,
        document_estimate=tokens if measure.method == "estimate" else 0,
        document_error=0.0 if error is None else tokens * error / 100,
        unmeasured=tokens if error is None else 0,
    )


def factor_of(calibration: Calibration | None) -> float:
    """Return the factor for estimates; 1 before anything was learned."""
    return 1.0 if calibration is None else calibration.factor


def is_learned(calibration: Calibration | None) -> TypeGuard[Calibration]:
    """Return whether the calibration has data for this model or its generation."""
    return calibration is not None and (calibration.samples > 0 or calibration.factor != 1.0)


def summed(
    sums: Sums, tokenizer: str, calibration: Calibration | None, kind: str | None = None
) -> Measure:
    """Return sums as one count, with the method of the least certain part.

    `kind` is the kind of the estimated texts, if they have the same.
    """
    tokens = max(0, sums.tokens(factor_of(calibration)))
    if not sums.estimate and not sums.documents:
        method: Method = "endpoint" if sums.endpoint else "exact"
        return Measure(tokens, method, tokenizer, 0.0)
    doubt = abs(sums.error)
    if is_learned(calibration) and sums.estimate:
        method = "estimate" if sums.document_estimate else "calibrated"
        if sums.unmeasured:
            part = abs(sums.estimate * calibration.factor)
            return Measure(
                tokens, method, tokenizer, _error_of_whole(calibration.error_percent, part, tokens)
            )
        doubt *= calibration.factor * calibration.band_factor(kind)
    else:
        sure = sums.calibrated == sums.estimate and not sums.document_estimate
        method = "calibrated" if sure else "estimate"
        if sums.unmeasured:
            return Measure(tokens, method, tokenizer, None)
    return Measure(
        tokens, method, tokenizer, _error_percent(doubt + abs(sums.document_error), tokens)
    )


def with_hidden_tokens(measure: Measure, calibration: Calibration | None) -> Measure:
    """Return a prompt without reports, including the client's known hidden tokens."""
    if calibration is None or calibration.hidden is None or measure.method == "endpoint":
        return measure
    around, doubt = calibration.hidden
    tokens = measure.tokens + round(around)
    error = measure.error_percent
    if error is not None:
        error = _error_percent(measure.tokens * error / 100 + doubt, tokens)
    return Measure(tokens, "calibrated", measure.tokenizer, error)


def with_markup(measure: Measure) -> Measure:
    """Return the count of what follows a reported number, including the markup around the reply."""
    if measure.error_percent is None or measure.method in ("exact", "endpoint"):
        return measure
    error = round(measure.error_percent + _error_percent(MARKS, measure.tokens), 2)
    return msgspec.structs.replace(measure, error_percent=error)


def _error_percent(doubt: float, tokens: int) -> float:
    return _round_error(100 * doubt / max(1, tokens))


def _round_error(error_percent: float) -> float:
    """Round an error to hundredths, but never to 0."""
    return max(0.01, round(error_percent, 2)) if error_percent > 0 else 0.0


def _error_of_whole(error_percent: float | None, part: float, whole: int) -> float | None:
    if error_percent is None:
        return None
    return _round_error(min(error_percent, error_percent * part / max(1, whole)))


class ModelCounter:
    """Counts texts, messages and tools for `model`. Blocking, for worker threads."""

    def __init__(self, model: str, tokenizer: Tokenizer, server: str | None = None) -> None:
        self.key = model
        self._tokenizer, self._server = tokenizer, server
        self.priming = messages.priming_tokens(model)

    @property
    def tokenizer(self) -> str:
        """Name of the tokenizer, also for an empty conversation: the server's if it counts the
        turns."""
        return self._server or self._tokenizer.name

    @property
    def basis(self) -> str:
        """The tokenizer that counts here, even if a server counts the turns."""
        return self._tokenizer.name

    def is_like(self, other: ModelCounter) -> bool:
        """Whether the other counts in the same way; counts by a server are always valid."""
        return self._server is not None or self.basis == other.basis

    def served_by(self, server: str) -> ModelCounter:
        """Return a counter for a conversation whose texts this server counts."""
        return ModelCounter(self.key, self._tokenizer, server)

    def text(self, text: str) -> Measure:
        """Count a text on its own."""
        return measure_text(text, self._tokenizer)

    def message(self, turn: Turn) -> Measure:
        """Count a message with the markup of the model's format."""
        return messages.message_tokens(msgspec.to_builtins(turn), self.key, self._tokenizer)

    def around(self, turn: Turn, counted: int) -> Measure:
        """Count a message whose texts the model's server has counted."""
        message = msgspec.to_builtins(turn)
        return messages.message_tokens(message, self.key, self._tokenizer, counted)

    def tools(self, tools: Sequence[Any]) -> Measure:
        """Count tool schemas as the model sees them."""
        return messages.tools_tokens(tools, self.key, self._tokenizer)

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        """Cut `text` to `max_tokens`; returns the same text if it fits."""
        return fitting.fit(text, max_tokens, truncation, self._tokenizer).text
