"""The one place that turns a text, a document or a chat into a `Count`.

The status, diagnostics, hints, fixes, fitting and the command line all ask here. Which tokenizer
counts, whether the user's endpoint is asked first, and by what an estimate is corrected, is
decided in `Counts.gauge`; everything else is counted with the gauge that it gives.
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
from sidecar.counting.fit import Fitted, Mode
from sidecar.counting.incremental import Stopped
from sidecar.counting.tokenizer import SAMPLED
from sidecar.counting.tokenizers import CalibratedTokenizer
from sidecar.endpoints.outcome import EndpointCount
from sidecar.waiting import SharedTasks
from sidecar.workspace.documents import Snapshot
from sidecar.workspace.events import Event, Missed
from sidecar.workspace.gauges import Gauge, Gauges, may_ask

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from sidecar.config.settings import Settings
    from sidecar.context.window import NamedLimits
    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.endpoints.outcome import MissKind
    from sidecar.endpoints.registry import Endpoints
    from sidecar.text.document import TextDocument
    from sidecar.workspace.calibrations import CalibrationStore
    from sidecar.workspace.windows import Windows
    from sidecar.workspace.workers import Workers
    from sidecar.workspace.workspace import Workspace

ENDPOINT_SECONDS = 2.0
"""How long somebody who types waits for an endpoint."""
LATEST_SECONDS = 30.0
"""How long an answer is waited for that a count could not wait for."""
QUIET_CHARACTERS = 20_000
"""A longer document is sent to an endpoint when typing pauses, not after every key."""
CHARACTERS_PER_QUIET_SECOND = 200_000
LONGEST_QUIET_SECONDS = 1.0
_ANSWERS_KEPT = 4_096
_FIT_ROUNDS = 12
GUESS_PERCENT = 25.0
"""Half of the band of a number that is scaled up from a sample."""
_LEARN_CHARACTERS = 200
"""A shorter text teaches nothing: what stands around it weighs too much."""


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


class Counts(Gauges):
    """Counts for every workspace of a process; for the event loop, but where a method says so."""

    def __init__(
        self,
        workers: Workers,
        calibrations: CalibrationStore,
        windows: Windows,
        *,
        roots: Iterable[Workspace] | None = None,
        publish: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """`roots`: whose settings are in force; all are by default. `publish`: tells listeners what
        has changed."""
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

    def basis(self, model: str, settings: Settings, *, sent: bool = True) -> Hashable:
        """All that a text's count depends on beside the text and the model.

        `sent`: whether a server that counts is sent it; what is too long for that rests on what
        was learned.
        """
        learned = self.calibrations.known
        standing = self.endpoints(settings).standing(model) if self.asks(model, settings) else None
        asked = sent and standing is not None
        lessons = 0 if asked or learned is None else learned.lessons
        return self.tokenizers(settings), model, standing, lessons

    async def gauge(self, taken: Snapshot, model: str, settings: Settings) -> Gauge:
        """What counts a text for a model: the endpoint's own number, where it has one."""
        note = None
        if taken.characters and self.asks(model, settings):
            whole, note = await self._ask(taken, model, settings)
            if whole is not None:
                return Gauge(model, self._fitted(taken, model, settings, whole), whole)
        return self.here(taken, model, settings)._replace(note=note)

    def gauge_now(self, taken: Snapshot, model: str, settings: Settings) -> Gauge:
        """The same by what is known already: nobody is asked."""
        if taken.characters and self.asks(model, settings):
            whole = self._answer_to(self._asked(taken, model, settings))
            if whole is not None:
                return Gauge(model, self._fitted(taken, model, settings, whole), whole)
        return self.here(taken, model, settings)

    def _asked(self, taken: Snapshot, model: str, settings: Settings) -> _AskedText:
        return _AskedText(self.endpoints(settings), model, hash(taken.text), len(taken.text))

    def _answer_to(self, text: _AskedText) -> Measure | None:
        return self._answers.get((text.endpoints.standing(text.model), text))

    async def _ask(
        self, taken: Snapshot, model: str, settings: Settings
    ) -> tuple[Measure | None, str | None]:
        """The endpoint's count, or why there is none by now; those who ask together share one
        request, and an answer that is late is taken when it comes."""
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
            """Whether it is still to be sent: a request waits, or a document shows an estimate."""
            return self._asking.waiting(text) > 0 or taken.is_newest

        if not await self._typing_pauses(taken):
            return None, "the document is being edited"
        found = await text.endpoints.count_text(model, taken.text, LATEST_SECONDS, is_wanted)
        if not isinstance(found, EndpointCount):
            self._take_outcome(text, None)
            self.missed(model, settings, found.kind)
            return None, found.reason
        measure = _by_endpoint(found)
        standing = text.endpoints.standing(model)
        if standing is not None:
            self._answers[standing, text] = measure
        with suppress(Stopped):  # the server ends, and nothing more is learned
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
        may_later = self.endpoints(settings).again_in(model, kind, 1) is not None
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
            calibrations.learn(key, estimated, real, 1.0, doubt)
            self.was_learned()

    def was_learned(self) -> None:
        """Have what was learned written soon."""
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
        self, taken: Snapshot, model: str | None, workspace: Workspace, gauge: Gauge | None = None
    ) -> Count:
        """The count of a text; an empty one is 0, exact, for every model, and asks nobody.

        `gauge`, where the caller has it already.
        """
        name, settings = model or workspace.model, workspace.settings
        await self.load(name, settings)
        if taken.characters and self.window_due(name, settings):
            await self.endpoints(settings).limit(name, self.seconds)
        gauge = gauge or await self.gauge(taken, name, settings)
        measure = await self.measure(taken, gauge)
        return self.public(measure, name, taken.characters, workspace, gauge.note)

    async def measure(self, taken: Snapshot, gauge: Gauge) -> Measure:
        """A text's tokens by its gauge."""
        if gauge.whole is not None:
            return gauge.whole
        tokens = await self.workers.count(taken, gauge.tokenizer)
        return gauge.tokenizer.measure(tokens, taken.sample)

    def now(self, taken: Snapshot, model: str, workspace: Workspace) -> Count | None:
        """A text's count, or None where that takes a request, a look-up of the model's window and
        price, or over a millisecond."""
        settings = workspace.settings
        asked = self.window_due(model, settings) or self.asks(model, settings)
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
        here = self.here(taken, model, workspace.settings)
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
    ) -> tuple[Fitted, Measure]:
        """A text in so many tokens at most, and how what is left of it was counted."""
        gauge = await self.gauge(Snapshot(text=text), model, settings)
        tokenizer, whole = gauge.tokenizer, gauge.whole
        if whole is None:
            work = partial(fitting.fit, text, max_tokens, mode, tokenizer, marker)
            fitted = await self.workers.run(work)
            return fitted, tokenizer.measure(fitted.tokens, text)
        if whole.tokens <= max_tokens:
            kept = Fitted(
                text=text, tokens=whole.tokens, removed_tokens=0, removed_lines=0, changed=False
            )
            return kept, whole
        aimed, target = CalibratedTokenizer(tokenizer, 1.0, 0.0), max_tokens
        for _ in range(_FIT_ROUNDS):
            work = partial(fitting.fit, text, max(0, target), mode, aimed, marker)
            fitted = await self.workers.run(work)
            left = Snapshot(text=fitted.text)
            measure = await self.measure(left, await self.gauge(left, model, settings))
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
        """A measure beside the window and the price that hold for it in a workspace."""
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
        """Have a model that is new here looked up off the event loop."""
        if self.windows.is_loaded(model, settings):
            return
        tokenizers = self.tokenizers(settings)
        if not self.windows.ready:  # the list is not there yet: only make sure that it is counted
            await self.workers.run(partial(tokenizers.for_model, model))
            return
        await self.workers.run(self.windows.looking_up(model, settings))
        self.windows.looked_up(model, settings)


def _by_endpoint(found: EndpointCount) -> Measure:
    return Measure(found.tokens, "endpoint", f"{found.server}:{found.model}", 0.0)


def _read(messages: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """Code points of the messages' texts, and how the longest of them begins."""
    from sidecar.messages.content import read_message

    texts = [text for message in messages for text in read_message(message).texts]
    return sum(map(len, texts)), max(texts, key=len, default="")[:SAMPLED]
