"""Counts the tokens of strings, documents and chats.

`Counts.choose_counter` chooses the tokenizer and the calibration, and asks the user's
endpoint first if there is one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec
from cachetools import LRUCache

from sidecar.counting import fitting
from sidecar.counting.calibration import CalibrationStore, document_key
from sidecar.counting.count_result import Count, Measure, Method
from sidecar.counting.estimators import kind_of
from sidecar.counting.fitting import FittedText
from sidecar.counting.open_documents import Documents, Snapshot
from sidecar.counting.tokenizer_choice import (
    CalibratedTokenizer,
    CounterChoice,
    CounterChooser,
)
from sidecar.counting.tokenizer_interface import (
    SAMPLE_CHARACTERS,
    Tokenizer,
    count_pieces,
    countable_pieces,
)
from sidecar.counting.windows import Root, Windows, find_window, load_window_and_price
from sidecar.endpoints.outcome import LARGEST_CHARACTERS, TOO_LONG, EndpointCount, MissKind
from sidecar.errors import WorkStoppedError
from sidecar.models.window import NamedLimits
from sidecar.tasks import SharedTasks, Workers
from sidecar.text.document import TextDocument
from sidecar.text.outline import Part, find_parts

if TYPE_CHECKING:
    from sidecar.config.settings import Settings, Truncation
    from sidecar.endpoints.endpoints import Endpoints


ENDPOINT_SECONDS = 2.0
"""How long to wait for an endpoint before falling back to an estimate, in seconds."""
LATEST_SECONDS = 30.0
"""Maximum time to wait for an endpoint's answer, in seconds. Later answers are discarded."""
QUIET_CHARACTERS = 20_000
"""Documents with at least this many characters are sent to an endpoint only after a pause in
typing.
"""
CHARACTERS_PER_QUIET_SECOND = 200_000
LONGEST_QUIET_SECONDS = 1.0
_ANSWERS_KEPT = 4_096
_FIT_ROUNDS = 12
EXTRAPOLATED_CHARACTERS = 6_000
"""Number of characters in the sample used to estimate a long document's token count."""
GIANT_CHARACTERS = 100_000
"""A piece with more characters than this is giant. Tokenizing it is slow and cannot be
interrupted.
"""
UNUSUAL_WORD = "zqxjkvé"
"""A word that is not a token. At the first one, splintr prepares merging, which takes 0.1 s."""
GUESS_PERCENT = 25.0
"""Margin of error (±%) of an estimate based on a sample."""
_MIN_CALIBRATION_CHARACTERS = 200
"""Minimum length of text that is used for calibration. In shorter text, endpoint overhead would
distort the result.
"""


class _AskedText(NamedTuple):
    endpoints: Endpoints
    model: str
    hash: int
    characters: int


_Answer: TypeAlias = tuple[Measure | None, str | None]
"""An endpoint's count, or the reason why there is no count."""


def seconds_until_pause(snapshot: Snapshot) -> float:
    """Return the remaining wait in seconds before the document may be sent to an endpoint."""
    if snapshot.edited_at is None or snapshot.characters < QUIET_CHARACTERS:
        return 0.0
    quiet = min(LONGEST_QUIET_SECONDS, snapshot.characters / CHARACTERS_PER_QUIET_SECOND)
    return max(0.0, snapshot.edited_at + quiet - time.monotonic())


class SnapshotCounter:
    """Counts snapshots with a tokenizer, on a worker thread unless the count is quick."""

    def __init__(self, workers: Workers, documents: Documents) -> None:
        """Create a counter.

        Args:
            workers: Runs counts that take long on threads.
            documents: The open documents. Their cached counts are reused.
        """
        self._workers, self._documents = workers, documents
        self._loaded: set[Tokenizer] = set()
        self._counting: SharedTasks[tuple[Snapshot, Tokenizer], int]
        self._counting = SharedTasks("counting", outlives_waiters=False)

    async def load(self, tokenizers: Sequence[Tokenizer]) -> None:
        """Load tokenizers in advance to speed up their first counts."""
        await self._workers.run(partial(_load_tokenizers, tokenizers))
        self._loaded.update(one.base for one in tokenizers)

    async def count(self, snapshot: Snapshot, tokenizer: Tokenizer) -> int:
        """Return a snapshot's token count. Pieces with a cached count are not tokenized again."""
        tokens = self.count_if_quick(snapshot, tokenizer)
        if tokens is not None:
            return tokens
        count = partial(self._count, snapshot, tokenizer.base)
        return tokenizer.scale(await self._counting.run((snapshot, tokenizer.base), count))

    async def _count(self, snapshot: Snapshot, base: Tokenizer) -> int:
        work = partial(_count_snapshot, snapshot, base)
        tokens = await self._workers.run_count(partial(work, False))
        if tokens is None:
            tokens = await self._workers.run_count(partial(work, True), is_giant=True)
        self._loaded.add(base)
        return tokens or 0

    def count_if_quick(self, snapshot: Snapshot, tokenizer: Tokenizer) -> int | None:
        """Return a snapshot's token count, or None if counting would take over a millisecond."""
        if not snapshot.characters:
            return 0
        base = tokenizer.base
        if base not in self._loaded:
            return None
        document = self._documents.get(snapshot.uri)
        tokens = snapshot.count_if_quick(base, base.inline_characters, document)
        return None if tokens is None else tokenizer.scale(tokens)

    def extrapolate(self, document: TextDocument, tokenizer: Tokenizer) -> int:
        """Estimate a document's token count from a sample."""
        characters = document.characters
        if tokenizer.base not in self._loaded or characters <= EXTRAPOLATED_CHARACTERS:
            return characters // 4
        pieces = document.pieces
        texts = [pieces[i * (len(pieces) - 1) // 2].text for i in range(3)]
        sample = [text[: EXTRAPOLATED_CHARACTERS // 3] for text in texts]
        tokens = sum(tokenizer.count(text) for text in sample)
        return tokens * characters // max(1, sum(map(len, sample)))


def _load_tokenizers(tokenizers: Sequence[Tokenizer]) -> None:
    for tokenizer in tokenizers:
        tokenizer.count(UNUSUAL_WORD)


def _count_snapshot(
    snapshot: Snapshot, base: Tokenizer, giants: bool, should_stop: Callable[[], bool]
) -> int | None:
    """Count a snapshot. This function blocks.

    Returns None if `giants` is false and the snapshot has a giant piece without a cached count.
    """
    base.count(UNUSUAL_WORD)  # so that later inline counts are quick
    pieces = countable_pieces(snapshot, base)
    if not giants and any(
        len(piece) > GIANT_CHARACTERS and base.name not in piece.counts for piece in pieces
    ):
        return None
    return count_pieces(pieces, base, should_stop)


CountEvent = Literal[
    "endpoint",  # an endpoint has counted text
    "missed",  # an endpoint failed to count, but may be asked again
    "learned",  # a calibration has changed and needs to be written
]


class MissedCount(NamedTuple):
    """A count that an endpoint failed to provide."""

    model: str
    settings: Settings
    seconds: float
    """How long to wait before asking again."""


class Counts(CounterChooser):
    """Counts text for all workspaces of the process."""

    def __init__(
        self,
        workers: Workers,
        calibrations: CalibrationStore,
        windows: Windows,
        *,
        documents: Documents | None = None,
        roots: Iterable[Root] | None = None,
        publish: Callable[[CountEvent, MissedCount | None], None] = lambda *_: None,
    ) -> None:
        """Create the counter.

        Args:
            workers: Threads for blocking work.
            calibrations: Corrections for estimates.
            windows: Context windows and prices.
            documents: The open documents.
            roots: Workspaces whose endpoints may be used. Defaults to all workspaces.
            publish: Called with each event, and with the count if one was missed.
        """
        self._documents = Documents() if documents is None else documents
        super().__init__(calibrations, roots=roots)
        self._publish = publish
        self.workers, self.windows = workers, windows
        self.snapshots = SnapshotCounter(workers, self._documents)
        self.seconds = ENDPOINT_SECONDS
        self._answers: LRUCache[Any, Measure] = LRUCache(_ANSWERS_KEPT)
        """Cached endpoint counts. The keys contain a hash of the text, not the text itself."""
        self._outcomes: LRUCache[Hashable, int | None] = LRUCache(_ANSWERS_KEPT)
        self._asking = SharedTasks[_AskedText, _Answer](
            "counting by an endpoint", outlives_waiters=True
        )
        self._edits: dict[str, asyncio.Event] = {}
        """An event for each document that is waiting for a pause in typing, keyed by the document's
        URI. Editing the document sets its event.
        """

    # -- choosing ---------------------------------------------------------------------------

    def count_cache_key(self, model: str, settings: Settings, *, sent: bool = True) -> Hashable:
        """Return a cache key for a count.

        The key covers everything that affects the count, except for the text.

        Args:
            model: The model.
            settings: The workspace's settings.
            sent: Whether the text is short enough to be sent to an endpoint.
        """
        calibrations = self.calibrations.known
        fingerprint = (
            self.endpoints(settings).fingerprint(model)
            if self.asks_endpoint(model, settings)
            else None
        )
        asked = sent and fingerprint is not None
        version = 0 if asked or calibrations is None else calibrations.version
        return self.tokenizers(settings), model, fingerprint, version

    async def choose_counter(
        self, snapshot: Snapshot, model: str, settings: Settings
    ) -> CounterChoice:
        """Choose how to count text. Waits for the endpoint if there is one for the model."""
        note = None
        if snapshot.characters and self.asks_endpoint(model, settings):
            whole, note = await self._ask(snapshot, model, settings)
            if whole is not None:
                return CounterChoice(
                    self._scaled_tokenizer(snapshot, model, settings, whole), whole
                )
        return self.choose_local_counter(snapshot, model, settings)._replace(note=note)

    def choose_counter_now(
        self, snapshot: Snapshot, model: str, settings: Settings
    ) -> CounterChoice:
        """Choose how to count text. Never waits: only a cached endpoint count is used."""
        whole = self._cached_answer(snapshot, model, settings)
        if whole is None:
            return self.choose_local_counter(snapshot, model, settings)
        return CounterChoice(self._scaled_tokenizer(snapshot, model, settings, whole), whole)

    def has_answer(self, snapshot: Snapshot, model: str, settings: Settings) -> bool:
        """Return whether an endpoint's count of the text is cached."""
        return self._cached_answer(snapshot, model, settings) is not None

    def _cached_answer(self, snapshot: Snapshot, model: str, settings: Settings) -> Measure | None:
        is_sent = 0 < snapshot.characters <= LARGEST_CHARACTERS
        if not is_sent or not self.asks_endpoint(model, settings):
            return None
        return self._answer_to(self._make_request(snapshot, model, settings))

    def _make_request(self, snapshot: Snapshot, model: str, settings: Settings) -> _AskedText:
        return _AskedText(self.endpoints(settings), model, hash(snapshot.text), len(snapshot.text))

    def _answer_to(self, text: _AskedText) -> Measure | None:
        return self._answers.get((text.endpoints.fingerprint(text.model), text))

    async def _ask(
        self, snapshot: Snapshot, model: str, settings: Settings
    ) -> tuple[Measure | None, str | None]:
        """Request an endpoint's count. Returns the count, or the reason why there is none.

        Concurrent callers share one request. A late answer is cached and published.
        """
        if snapshot.characters > LARGEST_CHARACTERS:
            return None, TOO_LONG  # hashing the text would block the event loop
        text = self._make_request(snapshot, model, settings)
        measure = self._answer_to(text)
        if measure is not None:
            return measure, None
        request = partial(self._answer, snapshot, model, settings, text)
        try:
            return await self._asking.run(text, request, self.seconds)
        except TimeoutError:
            self._record_outcome(text, None)
            return None, f"no answer within {self.seconds:g} s"

    async def _answer(
        self, snapshot: Snapshot, model: str, settings: Settings, text: _AskedText
    ) -> _Answer:
        def is_wanted() -> bool:
            """Return whether this text's count is still needed."""
            return self._asking.waiting(text) > 0 or self._documents.is_newest(snapshot)

        if not await self._wait_for_typing_pause(snapshot):
            return None, "the document is being edited"
        answer = await text.endpoints.count_text(model, snapshot.text, LATEST_SECONDS, is_wanted)
        if not isinstance(answer, EndpointCount):
            self._record_outcome(text, None)
            self.report_miss(model, settings, answer.kind)
            return None, answer.reason
        measure = _measure_of(answer)
        fingerprint = text.endpoints.fingerprint(model)
        if fingerprint is not None:
            self._answers[fingerprint, text] = measure
        with suppress(WorkStoppedError):  # the server is shutting down
            await self._learn(snapshot, model, settings, measure.tokens)
        self._record_outcome(text, measure.tokens)
        return measure, None

    async def _wait_for_typing_pause(self, snapshot: Snapshot) -> bool:
        """Wait for a pause in typing. Returns False if the document is edited first."""
        if (seconds := seconds_until_pause(snapshot)) <= 0:
            return True
        edited = self._edits.setdefault(snapshot.uri, asyncio.Event())
        with suppress(TimeoutError):
            await asyncio.wait_for(edited.wait(), seconds)
        return not edited.is_set()

    def document_edited(self, uri: str) -> None:
        """Cancel pending endpoint requests for earlier versions of a document."""
        if (edited := self._edits.pop(uri, None)) is not None:
            edited.set()

    def _record_outcome(self, text: Hashable, tokens: int | None) -> None:
        before = self._outcomes.get(text, tokens)
        self._outcomes[text] = tokens
        if before != tokens:
            self._publish("endpoint", None)

    def report_miss(self, model: str, settings: Settings, kind: MissKind) -> bool:
        """Report that an endpoint failed to count text. Returns whether a retry is planned."""
        seconds = self.endpoints(settings).retry_delay(model, kind)
        if seconds is not None:
            self._publish("missed", MissedCount(model, settings, seconds))
        return seconds is not None

    async def _learn(self, snapshot: Snapshot, model: str, settings: Settings, real: int) -> None:
        plain = self.tokenizers(settings).for_model(model)
        estimated = await self.snapshots.count(snapshot, plain)
        calibrations = self.calibrations.known
        if calibrations is not None and snapshot.characters >= _MIN_CALIBRATION_CHARACTERS:
            key = document_key(model, plain.name, kind_of(snapshot.sample))
            band = plain.band(estimated, snapshot.sample)
            error_tokens = None if band is None else estimated * band / 100
            calibrations.update(key, estimated, real, 1.0, error_tokens)
            self.calibration_changed()

    def calibration_changed(self) -> None:
        """Report that a calibration has changed. The calibrations are written to the file later."""
        self.calibrations.changed()
        self._publish("learned", None)

    def _scaled_tokenizer(
        self, snapshot: Snapshot, model: str, settings: Settings, whole: Measure
    ) -> Tokenizer:
        plain = self.tokenizers(settings).for_model(model)
        estimated = self.snapshots.count_if_quick(snapshot, plain)
        if not estimated or plain.method == "exact":
            return self.tokenizer(model, settings, snapshot)
        return CalibratedTokenizer(plain, whole.tokens / estimated)

    # -- counting ---------------------------------------------------------------------------

    async def count(
        self,
        snapshot: Snapshot,
        model: str | None,
        workspace: Root,
        choice: CounterChoice | None = None,
    ) -> Count:
        """Count text. The result includes the model's window and price.

        Args:
            snapshot: The text. Empty text is never sent to an endpoint.
            model: The model. Defaults to the workspace's model.
            workspace: The workspace.
            choice: How to count, if this has already been decided.
        """
        name, settings = model or workspace.model, workspace.settings
        await self.load(name, settings)
        if snapshot.characters:
            await self.ask_window_if_due(name, settings)
        choice = choice or await self.choose_counter(snapshot, name, settings)
        measure = await self.measure(snapshot, choice)
        return self.add_window_and_price(measure, name, snapshot.characters, workspace, choice.note)

    async def measure(self, snapshot: Snapshot, choice: CounterChoice) -> Measure:
        if choice.whole is not None:
            return choice.whole
        tokens = await self.snapshots.count(snapshot, choice.tokenizer)
        return choice.tokenizer.measure(tokens, snapshot.sample)

    def count_if_quick(self, snapshot: Snapshot, model: str, workspace: Root) -> Count | None:
        """Return the text's count, or None if counting would take over a millisecond."""
        settings = workspace.settings
        asked = self.is_window_due(model, settings) or self.asks_endpoint(model, settings)
        unloaded = self.windows.ready and not self.windows.is_loaded(model, settings)
        if unloaded or (snapshot.characters and asked):
            return None
        tokenizer = self.tokenizer(model, settings, snapshot)
        tokens = self.snapshots.count_if_quick(snapshot, tokenizer)
        if tokens is None:
            return None
        measure = tokenizer.measure(tokens, snapshot.sample)
        return self.add_window_and_price(measure, model, snapshot.characters, workspace)

    async def count_locally(self, snapshot: Snapshot, model: str, workspace: Root) -> Count:
        """Count text without using an endpoint."""
        here = self.choose_local_counter(snapshot, model, workspace.settings)
        return await self.count(snapshot, model, workspace, here)

    def extrapolate(self, document: TextDocument, model: str, workspace: Root) -> Count:
        """Estimate a long document's count from a sample. The estimate is shown until the real
        count is known.
        """
        tokenizer = self.tokenizers(workspace.settings).for_model(model)
        tokens = self.snapshots.extrapolate(document, tokenizer)
        band = max(tokenizer.band(tokens) or 0.0, GUESS_PERCENT)
        measure = Measure(tokens, "estimate", tokenizer.name, band)
        return self.add_window_and_price(measure, model, document.characters, workspace)

    async def fit(
        self,
        text: str,
        max_tokens: int,
        mode: Truncation,
        marker: str,
        model: str,
        settings: Settings,
    ) -> tuple[FittedText, Measure]:
        """Shorten text to at most `max_tokens`. Returns the shortened text and its count."""
        choice = await self.choose_counter(Snapshot(text=text), model, settings)
        tokenizer, whole = choice.tokenizer, choice.whole
        if whole is None:
            work = partial(fitting.fit, text, max_tokens, mode, tokenizer, marker)
            fitted = await self.workers.run(work)
            return fitted, tokenizer.measure(fitted.tokens, text)
        if whole.tokens <= max_tokens:
            kept = FittedText(
                text=text, tokens=whole.tokens, removed_tokens=0, removed_lines=0, changed=False
            )
            return kept, whole
        aimed, target = CalibratedTokenizer(tokenizer, 1.0, 0.0), max_tokens
        for _ in range(_FIT_ROUNDS):
            work = partial(fitting.fit, text, max(0, target), mode, aimed, marker)
            fitted = await self.workers.run(work)
            left = Snapshot(text=fitted.text)
            measure = await self.measure(left, await self.choose_counter(left, model, settings))
            if measure.tokens <= max_tokens:
                break
            target -= max(1, measure.tokens - max_tokens)
        removed = max(0, whole.tokens - measure.tokens)
        fitted = msgspec.structs.replace(fitted, tokens=measure.tokens, removed_tokens=removed)
        return fitted, measure

    async def count_messages(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        model: str | None,
        workspace: Root,
    ) -> Count:
        """Count a chat and its tools with an endpoint or, if there is none, with a formula."""
        from sidecar.counting.message_tokens import count_messages

        name, settings = model or workspace.model, workspace.settings
        await self.load(name, settings)
        characters, sample = await self.workers.run(partial(_measure_texts, messages))
        note = None
        if (messages or tools) and self.is_served(name, settings):
            endpoints = self.endpoints(settings)
            answer = await endpoints.count_chat(name, messages, tools, self.seconds)
            if isinstance(answer, EndpointCount):
                return self.add_window_and_price(_measure_of(answer), name, characters, workspace)
            note = answer.reason
        tokenizer = self.tokenizer(name, settings, Snapshot(text=sample))
        measure = await self.workers.run(partial(count_messages, messages, tools, name, tokenizer))
        return self.add_window_and_price(measure, name, characters, workspace, note)

    def add_window_and_price(
        self,
        measure: Measure,
        model: str,
        characters: int,
        workspace: Root,
        note: str | None = None,
    ) -> Count:
        """Return a `Count` with the measured tokens and the model's window and price."""
        settings = workspace.settings
        if note is None and measure.method in ("calibrated", "estimate"):
            note = self.why_not_asked(model, settings)
        named = self.add_reported_window(model, settings, workspace.limits_for(model))
        limit = find_window(model, settings, named)
        return self.windows.count(measure, model, characters, settings, limit, note)

    async def ask_window_if_due(self, model: str, settings: Settings) -> None:
        """Ask the model's endpoint for its window, unless it is known or was just asked for."""
        if self.is_window_due(model, settings):
            await self.endpoints(settings).limit(model, self.seconds)

    def add_reported_window(
        self, model: str, settings: Settings, session: NamedLimits
    ) -> NamedLimits:
        """Return a session's context windows, including the window that an endpoint has reported.

        If the session already specifies an endpoint's window, that window is kept.
        """
        endpoint = session.endpoint or self.known_limit(model, settings)
        return msgspec.structs.replace(session, endpoint=endpoint)

    async def load(self, model: str, settings: Settings) -> None:
        """Look up a new model's window and price.

        Before the price list is available, only the model's tokenizer is loaded.
        """
        if self.windows.ready:
            await self.load_window_and_price(model, settings)
        else:
            await self.workers.run(partial(self.tokenizers(settings).for_model, model))

    async def load_window_and_price(self, model: str, settings: Settings) -> None:
        """Look up a model's window and price, unless they are already loaded."""
        if not self.windows.is_loaded(model, settings):
            await self.workers.run(
                partial(load_window_and_price, self.windows.estimate, model, settings)
            )
            self.windows.mark_loaded(model, settings)


def _measure_of(count: EndpointCount) -> Measure:
    return Measure(count.tokens, "endpoint", count.name, 0.0)


def _measure_texts(messages: Sequence[dict[str, Any]]) -> tuple[int, str]:
    from sidecar.messages.messages import read_message

    texts = [text for message in messages for text in read_message(message).texts]
    return sum(map(len, texts)), max(texts, key=len, default="")[:SAMPLE_CHARACTERS]


PartCounts: TypeAlias = dict[tuple[str, int, int], int]
"""Uncalibrated token counts, keyed by tokenizer name, text hash and text length."""


class CountedPart(msgspec.Struct, frozen=True):
    """A section or block of a document and its token count."""

    part: Part
    tokens: int
    method: Method


def count_parts(
    snapshot: Snapshot, choice: CounterChoice, before: Mapping[tuple[str, int, int], int]
) -> tuple[tuple[CountedPart, ...], PartCounts]:
    """Count the sections or blocks of a document. This function blocks.

    Args:
        snapshot: The document.
        choice: How to count the document.
        before: The previous call's result. Counts of unchanged parts are reused.
    """
    base, counts, counted = choice.tokenizer.base, PartCounts(), []
    for part in find_parts(snapshot.text, snapshot.uri, snapshot.language_id):
        if choice.whole is not None and part.end - part.start == snapshot.characters:
            measure = choice.whole
        else:
            text = snapshot.text[part.start : part.end]
            key = (base.name, hash(text), len(text))
            tokens = before.get(key)
            counts[key] = base.count(text) if tokens is None else tokens
            measure = choice.tokenizer.measure_base(counts[key], text)
        counted.append(CountedPart(part, measure.tokens, measure.method))
    return tuple(counted), counts
