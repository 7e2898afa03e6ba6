"""Counts tokens for one model, and adds up counts together with their error bands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add, sub
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import msgspec

from sidecar.counting import fit as fitting
from sidecar.counting import message_tokens
from sidecar.counting.count import Measure
from sidecar.counting.incremental import measure_text

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation
    from sidecar.counting.calibration import ConversationCalibration
    from sidecar.counting.count import Method
    from sidecar.counting.tokenizer_interface import Tokenizer
    from sidecar.messages.turns import Turn


MARKS = 12
"""The markup formula can miss up to this many of the markup tokens around a reply."""


class Counter:
    """Counts text, messages and tools for one model.

    Results are deterministic. The methods block while they count.
    """

    def __init__(self, model: str, tokenizer: Tokenizer, server: str | None = None) -> None:
        """Create a counter.

        Args:
            model: The model to count for, which is also the key for stored counts.
            tokenizer: The local tokenizer.
            server: The name of a server whose counts replace some of the local counts.
        """
        self.key = model
        self._tokenizer, self._server = tokenizer, server
        self.priming = message_tokens.priming_tokens(model)
        """Tokens that every request contains in addition to its messages and tools."""

    @property
    def tokenizer(self) -> str:
        """The tokenizer name to display. This is the server's name if there is a server."""
        return self._server or self._tokenizer.name

    @property
    def basis(self) -> str:
        """The local tokenizer's name. When it changes, everything is recounted."""
        return self._tokenizer.name

    def is_like(self, other: Counter) -> bool:
        """Return whether this counter can reuse another counter's counts for the same model."""
        return self._server is not None or self.basis == other.basis

    def served_by(self, server: str) -> Counter:
        """Return a copy for a conversation whose text is counted by `server`."""
        return Counter(self.key, self._tokenizer, server)

    def text(self, text: str) -> Measure:
        """Count text without message markup."""
        return measure_text(text, self._tokenizer)

    def message(self, turn: Turn) -> Measure:
        """Count a message, including the markup of the model's chat template."""
        return message_tokens.count_message(msgspec.to_builtins(turn), self.key, self._tokenizer)

    def around(self, turn: Turn, counted: int) -> Measure:
        """Count a message whose text was counted by a server, and add the markup around the text.

        Args:
            turn: The message.
            counted: The server's count of the message's text.
        """
        message = msgspec.to_builtins(turn)
        return message_tokens.count_message(message, self.key, self._tokenizer, counted)

    def tools(self, tools: Sequence[Any]) -> Measure:
        """Count tool schemas in the format that the model receives."""
        return message_tokens.count_tools(tools, self.key, self._tokenizer)

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        """Return text, shortened if it exceeds `max_tokens`."""
        return fitting.fit(text, max_tokens, truncation, self._tokenizer).text


class Sums(NamedTuple):
    """Token totals grouped by counting method."""

    exact: int = 0
    endpoint: int = 0
    estimate: int = 0
    """The estimated token count, to which the conversation's calibration is applied."""
    calibrated: int = 0
    """The part of `estimate` that has already been calibrated."""
    error: float = 0.0
    """The error band of `estimate` in tokens, excluding the `unmeasured` part."""
    unmeasured: int = 0
    """Tokens in `estimate` and `documents` whose error band is unknown."""

    documents: int = 0
    """Estimated tokens of documents, which are calibrated separately."""
    document_estimate: int = 0
    """The part of `documents` that has not been calibrated."""
    document_error: float = 0.0
    """The error band of `documents` in tokens, excluding the `unmeasured` part."""

    def plus(self, other: Sums) -> Sums:
        return Sums(*map(add, self, other))

    def minus(self, other: Sums) -> Sums:
        return Sums(*map(sub, self, other))

    def tokens(self, factor: float = 1.0) -> int:
        """Return the total number of tokens, with `estimate` multiplied by `factor`."""
        return self.exact + self.endpoint + self.documents + round(self.estimate * factor)


def sums_of(measure: Measure) -> Sums:
    """Convert a count to `Sums`."""
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
    """Convert a document's count to `Sums`."""
    if measure.method in ("exact", "endpoint"):
        return sums_of(measure)
    tokens, error = measure.tokens, measure.error_percent
    return Sums(
        documents=tokens,
        document_estimate=tokens if measure.method == "estimate" else 0,
        document_error=0.0 if error is None else tokens * error / 100,
        unmeasured=tokens if error is None else 0,
    )


def factor_of(calibration: ConversationCalibration | None) -> float:
    """Return the calibration's factor, or 1 if there is no calibration."""
    return 1.0 if calibration is None else calibration.factor


def has_samples(calibration: ConversationCalibration | None) -> TypeGuard[ConversationCalibration]:
    """Return whether there are reports for the model or another model of the same generation."""
    return calibration is not None and (calibration.samples > 0 or calibration.factor != 1.0)


def measure_of(sums: Sums, tokenizer: str, calibration: ConversationCalibration | None) -> Measure:
    """Combine sums into one count, and give it the least reliable of their methods.

    Args:
        sums: The token totals to combine.
        tokenizer: The tokenizer name to put in the count.
        calibration: The calibration to apply to the estimated tokens.
    """
    tokens = max(0, sums.tokens(factor_of(calibration)))
    if not sums.estimate and not sums.documents:
        method: Method = "endpoint" if sums.endpoint else "exact"
        return Measure(tokens, method, tokenizer, 0.0)
    margin = abs(sums.error)
    if has_samples(calibration) and sums.estimate:
        method = "estimate" if sums.document_estimate else "calibrated"
        if sums.unmeasured:
            part = abs(sums.estimate * calibration.factor)
            return Measure(
                tokens, method, tokenizer, _error_of_whole(calibration.error_percent, part, tokens)
            )
        margin *= calibration.factor * calibration.band_factor
    else:
        sure = sums.calibrated == sums.estimate and not sums.document_estimate
        method = "calibrated" if sure else "estimate"
        if sums.unmeasured:
            return Measure(tokens, method, tokenizer, None)
    return Measure(
        tokens, method, tokenizer, _error_percent(margin + abs(sums.document_error), tokens)
    )


def with_hidden_tokens(measure: Measure, calibration: ConversationCalibration | None) -> Measure:
    """Add the tokens that the client adds to each prompt, unless a server counted the prompt."""
    if calibration is None or calibration.hidden is None or measure.method == "endpoint":
        return measure
    around, margin = calibration.hidden
    tokens = measure.tokens + round(around)
    error = measure.error_percent
    if error is not None:
        error = _error_percent(measure.tokens * error / 100 + margin, tokens)
    return Measure(tokens, "calibrated", measure.tokenizer, error)


def with_reply_markup(measure: Measure) -> Measure:
    """Widen the error band to allow for unknown markup around the last reported reply."""
    if measure.error_percent is None or measure.method in ("exact", "endpoint"):
        return measure
    error = round(measure.error_percent + _error_percent(MARKS, measure.tokens), 2)
    return msgspec.structs.replace(measure, error_percent=error)


def _error_percent(margin: float, tokens: int) -> float:
    return _round_error(100 * margin / max(1, tokens))


def _round_error(error_percent: float) -> float:
    return max(0.01, round(error_percent, 2)) if error_percent > 0 else 0.0


def _error_of_whole(error_percent: float | None, part: float, whole: int) -> float | None:
    if error_percent is None:
        return None
    return _round_error(min(error_percent, error_percent * part / max(1, whole)))
