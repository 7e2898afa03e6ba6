"""The one place that turns a text, a document or a chat into a `Count`.

The status, diagnostics, hints, fixes, fitting and the command line all ask here. Which tokenizer
counts, whether the user's endpoint is asked first, and by what an estimate is corrected, is
decided in `Counts.choose_counter`; everything else is counted with the choice that it gives.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
from cachetools import LRUCache

from sidecar.counting import fit as fitting
from sidecar.counting.calibration import document_key
from sidecar.counting.count import Count, Measure
from sidecar.counting.fit import FitResult, Mode
from sidecar.counting.tokenizer import SAMPLE_CHARACTERS
from sidecar.counting.tokenizers import CalibratedTokenizer
from sidecar.endpoints.outcome import EndpointCount
from sidecar.errors import WorkStoppedError
from sidecar.waiting import SharedTasks
from sidecar.workspace.counter_choice import CounterChoice, CounterChooser, may_ask
from sidecar.workspace.documents import Documents, Snapshot
from sidecar.workspace.windows import Windows, look_up
from sidecar.workspace.workspace import Event, Missed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from sidecar.config.settings import Settings
    from sidecar.context.window import NamedLimits
    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.endpoints.outcome import MissKind
    from sidecar.endpoints.registry import Endpoints
    from sidecar.text.document import TextDocument
    from sidecar.workspace.calibrations import CalibrationStore
    from sidecar.workspace.workers import Workers
    from sidecar.workspace.workspace import Workspace

ENDPOINT_SECONDS = 2.0
"""How long an editor waits for an endpoint's count."""
LATEST_SECONDS = 30.0
"""How long a late endpoint answer may still update a count."""
QUIET_CHARACTERS = 20_000
"""A longer document is sent to an endpoint when typing pauses, not after every key."""
CHARACTERS_PER_QUIET_SECOND = 200_000
LONGEST_QUIET_SECONDS = 1.0
_ANSWERS_KEPT = 4_096
_FIT_ROUNDS = 12
GUESS_PERCENT = 25.0
"""Error band (±%) of a count extrapolated from a sample."""
_LEARN_CHARACTERS = 200
"""Shorter texts do not calibrate: what the endpoint adds around them weighs too much."""


class _AskedText(NamedTuple):
    """A text that an endpoint is asked about, without holding it."""

    endpoints: Endpoints
    model: str
    hash: int
    characters: int


_Answer: TypeAlias = tuple[Measure | None, str | None]
"""A count, or why there is none."""


def quiet_seconds(taken: Snapshot) -> float:
    """How much longer a document must stay unedited before an endpoint is sent it."""
    if taken.edited_at is None or taken.characters < QUIET_CHARACTERS:
        return 0.0
    quiet = min(LONGEST_QUIET_SECONDS, taken.characters / CHARACTERS_PER_QUIET_SECOND)
    return max(0.0, taken.edited_at + quiet - time.monotonic())


class Counts(CounterChooser):
    """Counts for every workspace of a process; for the event loop, but where a method says so."""

    def __init__(
        self,
        workers: Workers,
        calibrations: CalibrationStore,
        windows: Windows,
        *,
        documents: Documents | None = None,
        roots: Iterable[Workspace] | None = None,
        publish: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """`documents`: the open ones. `roots`: whose settings are in force; all are by default.
        `publish`: tells listeners what has changed."""
        self._documents = Documents() if documents is None else documents
        super().__init__(calibrations, roots=roots)
        self._publish = publish
        self.workers, self.windows = workers, windows
        self.seconds = ENDPOINT_SECONDS
        """How long a count waits for an endpoint."""
        self._answers: LRUCache[Any, Measure] = LRUCache(_ANSWERS_KEPT)
        """Endpoints' counts by all that they depend on; holds no text."""
        self._outcomes: LRUCache[Hashable, int | None] = LRUCache(_ANSWERS_KEPT)
        self._asking = SharedTasks[_AskedText, _Answer](
            "counting by an endpoint", outlives_waiters=True
        )
        self._edits: dict[str, asyncio.Event] = {}
        """By document that waits for a pause in typing, set at its next edit."""

    # -- what counts ------------------------------------------------------------------------

    def count_cache_key(self, model: str, settings: Settings, *, sent: bool = True) -> Hashable:
        """Return everything that a count depends on besides the text.

        `sent`: whether the text is sent to an endpoint; a longer one depends on calibration.
        """
        learned = self.calibrations.known
        standing = (
            self.endpoints(settings).fingerprint(model) if self.asks(model, settings) else None
        )
        asked = sent and standing is not None
        lessons = 0 if asked or learned is None else learned.version
        return self.tokenizers(settings), model, standing, lessons

    async def choose_counter(
        self, taken: Snapshot, model: str, settings: Settings
    ) -> CounterChoice:
        """Choose how a text is counted, and await the endpoint's count if there is one."""
        note = None
        if taken.characters and self.asks(model, settings):
            whole, note = await self._ask(taken, model, settings)
            if whole is not None:
                return CounterChoice(model, self._fitted(taken, model, settings, whole), whole)
        return self.choose_local_counter(taken, model, settings)._replace(note=note)

    def choose_counter_now(self, taken: Snapshot, model: str, settings: Settings) -> CounterChoice:
        """Choose how a text is counted, with the endpoint's count only if it is known already."""
        if taken.characters and self.asks(model, settings):
            whole = self._answer_to(self._asked(taken, model, settings))
            if whole is not None:
                return CounterChoice(model, self._fitted(taken, model, settings, whole), whole)
        return self.choose_local_counter(taken, model, settings)

    def has_answer(self, taken: Snapshot, model: str, settings: Settings) -> bool:
        """Whether an endpoint has counted this text."""
        if not taken.characters or not self.asks(model, settings):
            return False
        return self._answer_to(self._asked(taken, model, settings)) is not None

    def _asked(self, taken: Snapshot, model: str, settings: Settings) -> _AskedText:
        return _AskedText(self.endpoints(settings), model, hash(taken.text), len(taken.text))

    def _answer_to(self, text: _AskedText) -> Measure | None:
        return self._answers.get((text.endpoints.fingerprint(text.model), text))

    async def _ask(
        self, taken: Snapshot, model: str, settings: Settings
    ) -> tuple[Measure | None, str | None]:
        """Return the endpoint's count, or why there is none.

        Callers that ask at the same time share one request; a late answer is used when it comes.
        """
        text = self._asked(taken, model, settings)
        known = self._answer_to(text)
        if known is not None:
            return known, None
        answer = partial(self._answer, taken, model, settings, text)
        try:
            return await self._asking.run(text, answer, self.seconds)
        except TimeoutError:
            self._take_outcome(text, None)
            return None, f"no answer within {self.seconds:g} s"

    async def _answer(
        self, taken: Snapshot, model: str, settings: Settings, text: _AskedText
    ) -> _Answer:
        def is_wanted() -> bool:
            """Whether the text should still be sent: a request waits, or a document shows it."""
            return self._asking.waiting(text) > 0 or self._documents.is_newest(taken)

        if not await self._typing_pauses(taken):
            return None, "the document is being edited"
        found = await text.endpoints.count_text(model, taken.text, LATEST_SECONDS, is_wanted)
        if not isinstance(found, EndpointCount):
            self._take_outcome(text, None)
            self.missed(model, settings, found.kind)
            return None, found.reason
        measure = _by_endpoint(found)
        standing = text.endpoints.fingerprint(model)
        if standing is not None:
            self._answers[standing, text] = measure
        with suppress(WorkStoppedError):  # the server ends, and nothing more is learned
            await self._learn(taken, model, settings, measure.tokens)
        self._take_outcome(text, measure.tokens)
        return measure, None

    async def _typing_pauses(self, taken: Snapshot) -> bool:
        """Wait for a pause in typing. False where the document is edited before that."""
        if (seconds := quiet_seconds(taken)) <= 0:
            return True
        edited = self._edits.setdefault(taken.uri, asyncio.Event())
        with suppress(TimeoutError):
            await asyncio.wait_for(edited.wait(), seconds)
        return not edited.is_set()

    def document_edited(self, uri: str) -> None:
        """Drop the requests for an earlier version of the document that have not been sent."""
        if (edited := self._edits.pop(uri, None)) is not None:
            edited.set()

    def _take_outcome(self, text: Hashable, tokens: int | None) -> None:
        """An endpoint's count of a text, None where it gave none; listeners hear of a change."""
        before = self._outcomes.get(text, tokens)
        self._outcomes[text] = tokens
        if before != tokens:
            self._publish(Event("endpoint"))

    def missed(self, model: str, settings: Settings, kind: MissKind) -> bool:
        """Note that a model's endpoint gave no count. Returns whether it may after a while."""
        may_later = self.endpoints(settings).retry_delay(model, kind, 1) is not None
        if may_later:
            self._publish(Event("missed", missed=Missed(model, settings, kind)))
        return may_later

    async def _learn(self, taken: Snapshot, model: str, settings: Settings, real: int) -> None:
        """What an endpoint counted corrects later estimates of texts of this kind."""
        from sidecar.counting.kinds import kind_of

        plain = self.tokenizers(settings).for_model(model)
        estimated = await self.workers.count(taken, plain)
        calibrations = self.calibrations.known
        if calibrations is not None and taken.characters >= _LEARN_CHARACTERS:
            key = document_key(model, plain.name, kind_of(taken.sample))
            band = plain.band(estimated, taken.sample)
            doubt = None if band is None else estimated * band / 100
            calibrations.update(key, estimated, real, 1.0, doubt)
            self.calibration_changed()

    def calibration_changed(self) -> None:
        """Have the calibrations written soon."""
        self.calibrations.changed()
        self._publish(Event("learned"))

    def _fitted(self, taken: Snapshot, model: str, settings: Settings, whole: Measure) -> Tokenizer:
        """What counts the parts of a text whose whole the endpoint has counted."""
        plain = self.tokenizers(settings).for_model(model)
        estimated = self.workers.known(taken, plain)
        if not estimated or plain.method == "exact":
            return self.tokenizer(model, settings, taken)
        return CalibratedTokenizer(plain, whole.tokens / estimated)

    # -- counting ---------------------------------------------------------------------------

    async def count(
        self,
        taken: Snapshot,
        model: str | None,
        workspace: Workspace,
        choice: CounterChoice | None = None,
    ) -> Count:
        """The count of a text; an empty one is 0, exact, for every model, and asks nobody.

        `choice`, where the caller has it already.
        """
        name, settings = model or workspace.model, workspace.settings
        await self.load(name, settings)
        if taken.characters and self.is_window_due(name, settings):
            await self.endpoints(settings).limit(name, self.seconds)
        choice = choice or await self.choose_counter(taken, name, settings)
        measure = await self.measure(taken, choice)
        return self.public(measure, name, taken.characters, workspace, choice.note)

    async def measure(self, taken: Snapshot, choice: CounterChoice) -> Measure:
        """A text's tokens by its choice."""
        if choice.whole is not None:
            return choice.whole
        tokens = await self.workers.count(taken, choice.tokenizer)
        return choice.tokenizer.measure(tokens, taken.sample)

    def now(self, taken: Snapshot, model: str, workspace: Workspace) -> Count | None:
        """A text's count, or None where that takes a request, a look-up of the model's window and
        price, or over a millisecond."""
        settings = workspace.settings
        asked = self.is_window_due(model, settings) or self.asks(model, settings)
        unloaded = self.windows.ready and not self.windows.is_loaded(model, settings)
        if unloaded or (taken.characters and asked):
            return None
        tokenizer = self.tokenizer(model, settings, taken)
        tokens = self.workers.known(taken, tokenizer)
        if tokens is None:
            return None
        measure = tokenizer.measure(tokens, taken.sample)
        return self.public(measure, model, taken.characters, workspace)

    async def count_here(self, taken: Snapshot, model: str, workspace: Workspace) -> Count:
        """The count of a text without asking anybody."""
        here = self.choose_local_counter(taken, model, workspace.settings)
        return await self.count(taken, model, workspace, here)

    def guess(self, document: TextDocument, model: str, workspace: Workspace) -> Count:
        """What to show at once while a big document is counted: scaled up from a sample."""
        tokenizer = self.tokenizers(workspace.settings).for_model(model)
        tokens = self.workers.guess(document, tokenizer)
        band = max(tokenizer.band(tokens) or 0.0, GUESS_PERCENT)
        measure = Measure(tokens, "estimate", tokenizer.name, band)
        return self.public(measure, model, document.characters, workspace)

    async def fit(
        self,
        text: str,
        max_tokens: int,
        mode: Mode,
        marker: str,
        model: str,
        settings: Settings,
    ) -> tuple[FitResult, Measure]:
        """A text in so many tokens at most, and how what is left of it was counted."""
        choice = await self.choose_counter(Snapshot(text=text), model, settings)
        tokenizer, whole = choice.tokenizer, choice.whole
        if whole is None:
            work = partial(fitting.fit, text, max_tokens, mode, tokenizer, marker)
            fitted = await self.workers.run(work)
            return fitted, tokenizer.measure(fitted.tokens, text)
        if whole.tokens <= max_tokens:
            kept = FitResult(
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

    async def messages(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        model: str | None,
        workspace: Workspace,
    ) -> Count:
        """A whole chat with its tools: by the endpoint's own template, else by formula."""
        from sidecar.counting.messages import count_messages

        name, settings = model or workspace.model, workspace.settings
        await self.load(name, settings)
        characters, sample = await self.workers.run(partial(_read, messages))
        note = None
        if (messages or tools) and may_ask(settings) and self.endpoints(settings).serves(name):
            asked = self.endpoints(settings).count_chat(name, messages, tools, ENDPOINT_SECONDS)
            found = await asked
            if isinstance(found, EndpointCount):
                return self.public(_by_endpoint(found), name, characters, workspace)
            note = found.reason
        tokenizer = self.tokenizer(name, settings, Snapshot(text=sample))
        measure = await self.workers.run(partial(count_messages, messages, tools, name, tokenizer))
        return self.public(measure, name, characters, workspace, note)

    def public(
        self,
        measure: Measure,
        model: str,
        characters: int,
        workspace: Workspace,
        note: str | None = None,
    ) -> Count:
        """Return a measure with the window and price that hold in a workspace."""
        settings = workspace.settings
        if note is None and measure.method in ("calibrated", "estimate"):
            note = self.why_unasked(model, settings)
        named = self.named_limits(model, settings, workspace.limits_for(model))
        return self.windows.count(measure, model, characters, settings, named=named, note=note)

    def named_limits(self, model: str, settings: Settings, session: NamedLimits) -> NamedLimits:
        """What a session's client, agent or server named, and what its endpoint has reported."""
        endpoint = session.endpoint or self.known_limit(model, settings)
        return msgspec.structs.replace(session, endpoint=endpoint)

    async def load(self, model: str, settings: Settings) -> None:
        """Look up a new model, or only load its tokenizer while the price list is not loaded."""
        if self.windows.ready:
            await self.look_up(model, settings)
        else:
            await self.workers.run(partial(self.tokenizers(settings).for_model, model))

    async def look_up(self, model: str, settings: Settings) -> None:
        """Look up a model's window and price in the lists, once."""
        if not self.windows.is_loaded(model, settings):
            await self.workers.run(partial(look_up, self.windows.state, model, settings))
            self.windows.mark_loaded(model, settings)


def _by_endpoint(found: EndpointCount) -> Measure:
    return Measure(found.tokens, "endpoint", f"{found.server}:{found.model}", 0.0)


def _read(messages: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """Code points of the messages' texts, and how the longest of them begins."""
    from sidecar.messages.content import read_message

    texts = [text for message in messages for text in read_message(message).texts]
    return sum(map(len, texts)), max(texts, key=len, default="")[:SAMPLE_CHARACTERS]
