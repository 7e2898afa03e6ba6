"""The interface for counting texts for one model, and sums of counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add, sub
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

import msgspec

from sidecar.counting import fit as fitting
from sidecar.counting import message_tokens
from sidecar.counting.count import Measure
from sidecar.counting.incremental import measure_text

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation
    from sidecar.counting.count import Method
    from sidecar.counting.tokenizer_interface import Tokenizer
    from sidecar.messages.turns import Turn


MARKS = 12
"""Tokens of markup around a reply and the next turn that the formula may lack."""


class Counter(Protocol):
    """Counts texts for one model. The same input always gives the same result."""

    @property
    def key(self) -> str:
        """The model, under which counts are stored."""

    @property
    def tokenizer(self) -> str:
        """The tokenizer's name, also for an empty text."""

    @property
    def basis(self) -> str:
        """The tokenizer that counts here. If it changes, everything is counted again."""

    def is_like(self, other: Any) -> bool:
        """Whether this counter can use the other counter's counts for the same model."""

    @property
    def priming(self) -> int:
        """Tokens of a request besides its messages and tools."""

    def text(self, text: str) -> Measure: ...

    def message(self, turn: Turn) -> Measure:
        """Count a message with the markup of the model's template."""

    def around(self, turn: Turn, counted: int) -> Measure:
        """Count the markup around a message, and add the server's count of its text."""

    def tools(self, tools: Sequence[Any]) -> Measure:
        """Count tool schemas in the form that the model gets."""

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        """Shorten a text to at most `max_tokens`. A text that fits is unchanged."""


class Calibration(Protocol):
    """Corrections of a counter's estimates, learned from reported usage."""

    @property
    def factor(self) -> float:
        """Real tokens per estimated token."""

    @property
    def samples(self) -> int:
        """Number of reports."""

    @property
    def error_percent(self) -> float | None:
        """Error band (±%) of corrected estimates, or None if unknown."""

    @property
    def hidden(self) -> tuple[float, float] | None:
        """Tokens that the client adds to the prompt, with their error band, or None if unknown."""

    def band_factor(self, kind: str | None = None) -> float:
        """Return the factor for the error band of an estimate, from past errors."""


class Sums(NamedTuple):
    """Tokens added up by how they were counted. Sums can be added and subtracted."""

    exact: int = 0
    endpoint: int = 0
    estimate: int = 0
    """Estimated and calibrated tokens. The conversation's calibration applies to them."""
    calibrated: int = 0
    """The calibrated tokens in `estimate`."""
    error: float = 0.0
    """Expected error of `estimate` in tokens, as far as measured."""
    unmeasured: int = 0
    """The tokens in `estimate` whose error is unknown."""

    documents: int = 0
    """Estimates of documents, which have their own calibration."""
    document_estimate: int = 0
    """The tokens in `documents` that are not calibrated."""
    document_error: float = 0.0
    """Expected error of `documents` in tokens, as far as measured."""

    def plus(self, other: Sums) -> Sums:
        return Sums(*map(add, self, other))

    def minus(self, other: Sums) -> Sums:
        return Sums(*map(sub, self, other))

    def tokens(self, factor: float = 1.0) -> int:
        """Return the number of tokens, with estimates multiplied by `factor`."""
        return self.exact + self.endpoint + self.documents + round(self.estimate * factor)


def sums_of(measure: Measure) -> Sums:
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
    """Return the factor for estimates, or 1 without calibration."""
    return 1.0 if calibration is None else calibration.factor


def is_learned(calibration: Calibration | None) -> TypeGuard[Calibration]:
    """Return whether the calibration has data for this model or its generation."""
    return calibration is not None and (calibration.samples > 0 or calibration.factor != 1.0)


def summed(
    sums: Sums, tokenizer: str, calibration: Calibration | None, kind: str | None = None
) -> Measure:
    """Return sums as one count, with the method of its least certain part.

    `kind` is the kind of the estimated texts, if all have the same.
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
    """Add the client's known hidden tokens to a prompt that has no report."""
    if calibration is None or calibration.hidden is None or measure.method == "endpoint":
        return measure
    around, doubt = calibration.hidden
    tokens = measure.tokens + round(around)
    error = measure.error_percent
    if error is not None:
        error = _error_percent(measure.tokens * error / 100 + doubt, tokens)
    return Measure(tokens, "calibrated", measure.tokenizer, error)


def with_markup(measure: Measure) -> Measure:
    """Add the markup around the reply to the count of what follows a report."""
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
    """Counts texts, messages and tools for a model. Blocking."""

    def __init__(self, model: str, tokenizer: Tokenizer, server: str | None = None) -> None:
        self.key = model
        self._tokenizer, self._server = tokenizer, server
        self.priming = message_tokens.priming_tokens(model)

    @property
    def tokenizer(self) -> str:
        return self._server or self._tokenizer.name

    @property
    def basis(self) -> str:
        return self._tokenizer.name

    def is_like(self, other: ModelCounter) -> bool:
        return self._server is not None or self.basis == other.basis

    def served_by(self, server: str) -> ModelCounter:
        """Return a counter for a conversation whose texts this server counts."""
        return ModelCounter(self.key, self._tokenizer, server)

    def text(self, text: str) -> Measure:
        return measure_text(text, self._tokenizer)

    def message(self, turn: Turn) -> Measure:
        return message_tokens.count_message(msgspec.to_builtins(turn), self.key, self._tokenizer)

    def around(self, turn: Turn, counted: int) -> Measure:
        message = msgspec.to_builtins(turn)
        return message_tokens.count_message(message, self.key, self._tokenizer, counted)

    def tools(self, tools: Sequence[Any]) -> Measure:
        return message_tokens.count_tools(tools, self.key, self._tokenizer)

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        return fitting.fit(text, max_tokens, truncation, self._tokenizer).text
