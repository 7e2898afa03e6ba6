"""Counts texts for one model, and adds up counts with their error bands."""

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
"""Largest number of markup tokens around a reply that the formula may miss."""


class Counter:
    """Counts texts, messages and tools for one model.

    The same input always gives the same result. The methods block while they count.
    """

    def __init__(self, model: str, tokenizer: Tokenizer, server: str | None = None) -> None:
        """Create a counter.

        Args:
            model: The model, under which counts are stored.
            tokenizer: The local tokenizer.
            server: The server whose counts replace some of the local ones.
        """
        self.key = model
        self._tokenizer, self._server = tokenizer, server
        self.priming = message_tokens.priming_tokens(model)
        """Tokens of a request besides its messages and tools."""

    @property
    def tokenizer(self) -> str:
        """The name shown as the tokenizer: the server, or the local tokenizer."""
        return self._server or self._tokenizer.name

    @property
    def basis(self) -> str:
        """The name of the local tokenizer. If it changes, everything is counted again."""
        return self._tokenizer.name

    def is_like(self, other: Counter) -> bool:
        """Return whether this counter can use the other counter's counts for the same model."""
        return self._server is not None or self.basis == other.basis

    def served_by(self, server: str) -> Counter:
        """Return a copy for a conversation whose texts the server counts."""
        return Counter(self.key, self._tokenizer, server)

    def text(self, text: str) -> Measure:
        """Count a text by itself."""
        return measure_text(text, self._tokenizer)

    def message(self, turn: Turn) -> Measure:
        """Count a message with the markup of the model's template."""
        return message_tokens.count_message(msgspec.to_builtins(turn), self.key, self._tokenizer)

    def around(self, turn: Turn, counted: int) -> Measure:
        """Count the markup around a message, and add `counted`, a server's count of its text."""
        message = msgspec.to_builtins(turn)
        return message_tokens.count_message(message, self.key, self._tokenizer, counted)

    def tools(self, tools: Sequence[Any]) -> Measure:
        """Count tool schemas in the form in which the model receives them."""
        return message_tokens.count_tools(tools, self.key, self._tokenizer)

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        """Return the text, shortened to `max_tokens` if it is longer."""
        return fitting.fit(text, max_tokens, truncation, self._tokenizer).text


class Calibration(Protocol):
    """Corrects estimates by factors that were learned from reported usage."""

    @property
    def factor(self) -> float:
        """The number of real tokens per estimated token."""

    @property
    def samples(self) -> int:
        """The number of usage reports that the factor was learned from."""

    @property
    def error_percent(self) -> float | None:
        """Error band (±%) of corrected estimates, or None if unknown."""

    @property
    def hidden(self) -> tuple[float, float] | None:
        """The tokens that the client adds to each prompt, with their error band, if known."""

    def band_factor(self, kind: str | None = None) -> float:
        """Return the factor by which past errors widen or narrow an estimate's error band."""


class Sums(NamedTuple):
    """Token totals, separated by how the tokens were counted."""

    exact: int = 0
    endpoint: int = 0
    estimate: int = 0
    """Estimated and calibrated tokens, to which the conversation's calibration applies."""
    calibrated: int = 0
    """The part of `estimate` that is already calibrated."""
    error: float = 0.0
    """The error band of `estimate` in tokens, without the `unmeasured` part."""
    unmeasured: int = 0
    """The part of `estimate` and `documents` whose error band is unknown."""

    documents: int = 0
    """Estimated tokens of documents, which have a calibration of their own."""
    document_estimate: int = 0
    """The part of `documents` that is not calibrated."""
    document_error: float = 0.0
    """The error band of `documents` in tokens, without the `unmeasured` part."""

    def plus(self, other: Sums) -> Sums:
        return Sums(*map(add, self, other))

    def minus(self, other: Sums) -> Sums:
        return Sums(*map(sub, self, other))

    def tokens(self, factor: float = 1.0) -> int:
        """Return the total number of tokens, with estimates multiplied by `factor`."""
        return self.exact + self.endpoint + self.documents + round(self.estimate * factor)


def sums_of(measure: Measure) -> Sums:
    """Convert a count to sums."""
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


def add_sums(parts: Sequence[Sums]) -> Sums:
    """Return the total of several sums."""
    return reduce(Sums.plus, parts, Sums())


def document_sums(measure: Measure) -> Sums:
    """Convert the count of a document to sums."""
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
    """Return the calibration's factor, or 1 without a calibration."""
    return 1.0 if calibration is None else calibration.factor


def has_samples(calibration: Calibration | None) -> TypeGuard[Calibration]:
    """Return whether the calibration has learned from reports for this model or its generation."""
    return calibration is not None and (calibration.samples > 0 or calibration.factor != 1.0)


def measure_of(
    sums: Sums, tokenizer: str, calibration: Calibration | None, kind: str | None = None
) -> Measure:
    """Convert sums to one count, which has the method of its least certain part.

    Args:
        sums: The sums.
        tokenizer: The tokenizer to name in the count.
        calibration: The calibration for the estimated tokens.
        kind: The kind of the estimated texts, if they are all of one kind.
    """
    tokens = max(0, sums.tokens(factor_of(calibration)))
    if not sums.estimate and not sums.documents:
        method: Method = "endpoint" if sums.endpoint else "exact"
        return Measure(tokens, method, tokenizer, 0.0)
    doubt = abs(sums.error)
    if has_samples(calibration) and sums.estimate:
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
    """Add the tokens that the client is known to add to each prompt, unless a server counted it."""
    if calibration is None or calibration.hidden is None or measure.method == "endpoint":
        return measure
    around, doubt = calibration.hidden
    tokens = measure.tokens + round(around)
    error = measure.error_percent
    if error is not None:
        error = _error_percent(measure.tokens * error / 100 + doubt, tokens)
    return Measure(tokens, "calibrated", measure.tokenizer, error)


def with_reply_markup(measure: Measure) -> Measure:
    """Widen the error band of a conversation with reported usage by the markup around its reply."""
    if measure.error_percent is None or measure.method in ("exact", "endpoint"):
        return measure
    error = round(measure.error_percent + _error_percent(MARKS, measure.tokens), 2)
    return msgspec.structs.replace(measure, error_percent=error)


def _error_percent(doubt: float, tokens: int) -> float:
    return _round_error(100 * doubt / max(1, tokens))


def _round_error(error_percent: float) -> float:
    """Round an error band to hundredths. A band above 0 is at least 0.01."""
    return max(0.01, round(error_percent, 2)) if error_percent > 0 else 0.0


def _error_of_whole(error_percent: float | None, part: float, whole: int) -> float | None:
    if error_percent is None:
        return None
    return _round_error(min(error_percent, error_percent * part / max(1, whole)))
