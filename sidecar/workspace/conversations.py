"""Applies changes to a workspace's conversations: the only module that does.

A worker applies a change to a copy and counts what is new in it; the conversation that others see
stays as it is meanwhile. One step on the event loop, which awaits nothing, then puts the copy in
force, and its effects follow: publish, ask an endpoint, warn, keep. Changes of one conversation
come in their order; questions and other conversations do not wait for them. A change that is
cancelled before it is in force has not happened.

A conversation counts at once by an estimate, and goes on while an endpoint is asked. The endpoint's
late answer is another change: it is applied unless the conversation has changed by then, as every
change asks about all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec

from sidecar.context.conversation import Conversation
from sidecar.context.persist import restore, save
from sidecar.context.session import Session, texts_counted, uncounted
from sidecar.context.thresholds import budget_message, crossed
from sidecar.endpoints.outcome import EndpointCount, Miss
from sidecar.errors import BadParamsError, RequestError
from sidecar.messages.usage import Usage
from sidecar.waiting import or_meanwhile
from sidecar.workspace.changes import Change, Draft, Outcome
from sidecar.workspace.events import Event
from sidecar.workspace.followed import FollowedText
from sidecar.workspace.model_counter import ModelCounter
from sidecar.workspace.models import Alternatives
from sidecar.workspace.sections import SectionCounts
from sidecar.workspace.sessions import DEFAULT_ID, LONG_AGO, CountedSession
from sidecar.workspace.wording import NO_CONTEXT

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.context.response import WarningKind
    from sidecar.counting.calibration import ConversationCalibration
    from sidecar.endpoints.registry import Endpoints
    from sidecar.workspace.counts import Counts
    from sidecar.workspace.sessions import Sessions
    from sidecar.workspace.shared import Shared
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Effects(NamedTuple):
    """What follows from a conversation that has just been put in force."""

    conversation: Conversation
    before: Session | None
    asks_chat: bool
    """Whether the endpoint counts the whole chat."""
    usage: Usage | None = None
    """That was reported with the change, where an endpoint hears of it."""
    warnings: Sequence[tuple[WarningKind, str]] = ()


class Conversations:
    """Changes and answers about one workspace's conversations. For the event loop."""

    def __init__(self, services: Shared, workspace: Workspace, sessions: Sessions) -> None:
        self.services, self.workspace, self.sessions = services, workspace, sessions
        self._orders: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._restoring = asyncio.Lock()
        self._restored = asyncio.Event()
        self._run = services.workers.run
        self._sections = SectionCounts(services.counts)
        self._keeping = asyncio.Lock()
        self._kept: dict[str, int] = {}
        """Layouts of the conversations that were written, by id."""
        self._missed: dict[str, Hashable] = {}
        """The endpoint of each conversation that is still to be counted, as it was known then."""

    # -- changing ---------------------------------------------------------------------------

    async def apply(self, change: Change[T]) -> tuple[Conversation, T]:
        """Apply a change. Returns the conversation that is in force then, and the change's result.

        Raises:
            RequestError: for what cannot be done; then nothing was changed.
        """
        await self.restore()
        name = self.sessions.id_to_change(change.session)
        if change.needs_window:
            await self.look_up(change.model or self.model_of(name))
        async with self._order(name):
            named = self.sessions.state_of(name).named_model
            settings = self.workspace.settings
            if change.reads_first:
                prepare = partial(change.prepare, self.model_of(name), named, settings)
                change = await self._run(prepare)
            model = change.model or named or change.answered_model or self.model_of(name)
            await self.services.look_up(model, settings)
            before = self.sessions.store.get(name)
            draft = await self._draft(name, before, model)
            outcome = await self._work(draft, change)
            effects = self._commit(change, draft, outcome, before)
        return await self._run_effects(effects), outcome.result

    async def _work(self, draft: Draft, change: Change[T]) -> Outcome[T]:
        """Have a worker change a draft; a document that was edited meanwhile is in it too."""
        outcome = await self._run(partial(_worked, draft, change))
        if self._is_stale(draft.session):
            _follow_documents(draft.session)
            await self._count_sections(draft.session)
            await self._run(draft.session.total)
        return outcome

    def _commit(
        self, change: Change[T], draft: Draft, outcome: Outcome[T], before: Conversation | None
    ) -> Effects:
        """Put a draft in force, in one step."""
        made, session = draft.conversation, draft.session
        if not change.makes_current:
            session.updated_at = before.session.updated_at if before else LONG_AGO
        state = self.sessions.put(made)
        if change.model is not None:
            state.named_model = change.model
        if change.answered_model is not None:
            state.answered_model = change.answered_model
        if outcome.refused_limit is not None:
            state.refused_limits[session.model] = outcome.refused_limit
        if change.forgets_calibration:
            state.calibration = None
        self._learn(session, outcome)
        if outcome.spent is not None:
            self.services.show_spent(self.workspace, outcome.spent)
        asks = bool(self.workspace.settings.endpoints)
        effects = Effects(
            made,
            before.session if before else None,
            asks and change.asks_endpoint,
            outcome.usage if asks else None,
            outcome.warnings,
        )
        if not (effects.asks_chat or effects.usage):
            self.sessions.publish()
        return effects

    def _learn(self, session: Session, outcome: Outcome[T]) -> None:
        """Update the conversation's calibration with what was reported."""
        if not outcome.samples and outcome.reply_sample is None:
            return
        state, counts = self.sessions.state_of(session.id), self.services.counts
        state.calibration = self.sessions.calibration(session)
        for sample in outcome.samples:
            sample.teach(state.calibration, session.ledger())
        if outcome.reply_sample is not None:
            state.calibration.replied(*outcome.reply_sample)
        counts.was_learned()
        plain = counts.tokenizers(self.workspace.settings).for_model(session.model)
        if any(sample.kind for sample in outcome.samples) and plain.method != "exact":
            self.services.publish(Event("endpoint"))  # all roots' documents count otherwise

    async def _run_effects(self, effects: Effects) -> Conversation:
        """Publish, ask an endpoint, warn and keep, as a change calls for. Returns the conversation,
        with an endpoint's count if it was asked for."""
        made = effects.conversation
        if self._is_stale(made.session):  # settings have changed: what follows them is told again
            self.services.publish(Event("document", self.workspace))
        if effects.asks_chat or effects.usage is not None:
            try:
                made = await or_meanwhile(self._ask(effects), self.sessions.publish)
            finally:
                self.sessions.publish()
        usage = self.sessions.latest(made) if effects.warnings else None
        for kind, message in effects.warnings:
            self.sessions.warn(kind, message, usage)
        await self._warn_of_threshold(made)
        await self._keep()
        return made

    async def _warn_of_threshold(self, conversation: Conversation) -> None:
        """Warn where a change has crossed a threshold, and say what could be done."""
        session, usage = conversation.session, self.sessions.latest(conversation)
        state = self.sessions.state_of(session.id)
        warn_at, before = self.workspace.settings.context.warn_at, state.warned_level
        state.warned_level, is_crossed = crossed(before, usage, warn_at)
        if not is_crossed:
            return
        message = budget_message(usage)
        if usage.over and usage.tokens is not None:
            message = await self._run(partial(self.alternatives(session).message, usage))
        self.sessions.warn("budget", message, usage)

    def is_being_made(self, session_id: str | None) -> bool:
        """Whether an earlier request is at a session: one that is not there yet will be."""
        lock = self._orders.get(session_id or self.sessions.id_to_change(None))
        return lock is not None and lock.locked()

    def _order(self, name: str) -> asyncio.Lock:
        lock = self._orders.get(name)
        if lock is None:
            lock = self._orders[name] = asyncio.Lock()
        return lock

    # -- drafts -----------------------------------------------------------------------------

    async def _draft(
        self, name: str, before: Conversation | None, model: str, *, ask: bool = False
    ) -> Draft:
        """Copy a conversation, or begin one, with its documents as they are and counted sections.

        `ask`: an endpoint is waited for where it counts them.
        """
        made = before.copy() if before else Conversation(Session(name, self.counter(model)))
        session = made.session
        if session.model != model or self._has_other_tokenizer(session):
            session.counter = self.counter(model)
        _follow_documents(session)
        draft = Draft(made, self.sessions.window(session), self._calibration_copy(session))
        await self._count_sections(session, ask=ask)
        return draft

    def _calibration_copy(self, session: Session) -> ConversationCalibration:
        return self.sessions.calibration(session).copy()

    async def _count_sections(self, session: Session, *, ask: bool = False) -> None:
        await self._sections.refresh(session, self.workspace.settings, ask=ask)

    def _has_other_tokenizer(self, session: Session) -> bool:
        """Whether the settings have another tokenizer than the session was counted by."""
        counter = session.counter
        return isinstance(counter, ModelCounter) and not counter.is_like(
            self.counter(session.model)
        )

    def _is_stale(self, session: Session, *, ask: bool = False) -> bool:
        """Whether settings or documents would give other counts. `ask`: or an endpoint could."""
        model, settings = session.model, self.workspace.settings
        if self._has_other_tokenizer(session):
            return True
        is_stale = partial(self._sections.is_stale, model=model, settings=settings, ask=ask)
        return any(is_stale(section) for section in session.sections)

    async def try_out(self, session_id: str | None, model: str | None) -> Draft:
        """Draft a change that nothing puts in force; of an empty conversation where there is none.

        Earlier changes of the conversation are in it. An agent's own session, of which only the
        size is known, is one prompt of that size.
        """
        await self.restore()
        async with self._order(session_id or self.sessions.id_to_change(None)):
            pass
        found = await self.look(session_id)
        if isinstance(found, CountedSession):
            wanted = model or found.model or self.workspace.model
            await self.look_up(wanted)
            return await self._draft_of_size(found, wanted)
        name = session_id or DEFAULT_ID if found is None else found.session.id
        wanted = model or self.model_of(name)
        await self.look_up(wanted)
        return await self._draft(name, found, wanted)

    async def _draft_of_size(self, agents: CountedSession, model: str) -> Draft:
        session = Session(agents.id, self.counter(model))
        session.limit = agents.limit if model == agents.model else None
        size = agents.tokens or 0
        usage = Usage(input_tokens=size, prompt_tokens=size)
        await self._run(partial(session.reply_reported, usage))
        calibration = self._calibration_copy(session)
        return Draft(Conversation(session), self.sessions.window(session), calibration)

    # -- asking -----------------------------------------------------------------------------

    async def look(self, session_id: str | None) -> Conversation | CountedSession | None:
        """The session that a question is about, counted for its model as its documents are now."""
        await self.restore()
        found = self.sessions.find(session_id)
        return found if not isinstance(found, Conversation) else await self._counted(found)

    async def _counted(self, found: Conversation, *, ask: bool = False) -> Conversation:
        """Return the conversation with nothing left to count; the same one if nothing was."""
        model = self.model_of(found.session.id)
        await self.services.look_up(model, self.workspace.settings)
        if found.session.model == model and not self._is_stale(found.session, ask=ask):
            return found
        draft = await self._draft(found.session.id, found, model, ask=ask)
        await self._run(draft.session.total)
        if self.sessions.store.get(found.session.id) is found:
            self.sessions.put(draft.conversation)  # the same one, with what was counted
            self.sessions.publish()
        return draft.conversation

    async def recount(self, session_id: str | None = None) -> None:
        """Count one conversation, or all of them, by the settings and documents of now."""
        await self.restore()
        for one in [*self.sessions.store]:
            if session_id in (None, one.session.id):
                await self._counted(one)

    async def refresh(self) -> None:
        """Bring what is shown up to date with documents, settings and models."""
        current = self.sessions.find(None)
        if isinstance(current, Conversation):
            if current.session.model != (model := self.model_of(current.session.id)):
                await self.look_up(model)
                await self.services.counts.endpoints(self.workspace.settings).replied(model, 0)
            current = await self._counted(current, ask=True)
            if self._is_probed_again(current.session):
                current = await self._ask_again(current)
        self.sessions.publish()
        if isinstance(current, Conversation):
            await self._warn_of_threshold(current)

    async def look_up(self, model: str) -> None:
        """Have a model's window and price looked up; an endpoint that serves it says its own."""
        await self.services.look_up(model, self.workspace.settings)
        endpoints = self.services.counts.endpoints(self.workspace.settings)
        if endpoints.reports_window(model) and endpoints.known_limit(model) is None:
            await endpoints.limit(model)

    def model_of(self, session_id: str) -> str:
        """The model that a session counts for."""
        return self.sessions.model_of(session_id)

    def counter(self, model: str) -> ModelCounter:
        """How a conversation with `model` is counted."""
        tokenizer = self.services.counts.tokenizers(self.workspace.settings).for_model(model)
        return ModelCounter(model, tokenizer)

    def id_with_text(self, session_id: str | None) -> str:
        """The id of a conversation that exists, or will when it is this request's turn.

        Raises:
            SidecarError: `badParams` where there is none, `noText` for one known by counts only.
        """
        found = self.sessions.find(session_id)
        if found is None and self.is_being_made(session_id):
            return session_id or self.sessions.id_to_change(None)
        if found is None:
            missing = "there is no such session in this workspace" if session_id else NO_CONTEXT
            raise BadParamsError(missing)
        if isinstance(found, CountedSession):
            raise RequestError("noText", "the session is an agent's own: known by its counts only")
        return found.session.id

    def alternatives(self, session: Session) -> Alternatives:
        """What else could hold the conversation, as a worker may work it out."""
        rows = self.services.counts.endpoints(self.workspace.settings).capabilities()
        return Alternatives(session.model, session.counter, session.tools, tuple(rows))

    # -- endpoints --------------------------------------------------------------------------

    async def _ask(self, effects: Effects) -> Conversation:
        """Ask an endpoint what a change calls for: the window, and the count of the chat."""
        made, before = effects.conversation, effects.before
        if not effects.asks_chat:
            await self._ask_window(made.session.model, before, effects.usage)
            return made
        with self._asking(made.session):
            await self._ask_window(made.session.model, before, effects.usage)
            return await self._ask_count(made, 0 if before is None else len(before.turns))

    async def _ask_window(self, model: str, before: Session | None, usage: Usage | None) -> None:
        """Have a window looked up; again where the server may have loaded the model anew."""
        if usage is not None or (before is not None and before.model != model):
            tokens = usage.prompt_tokens + usage.output_tokens if usage else 0
            await self.services.counts.endpoints(self.workspace.settings).replied(model, tokens)
        await self.look_up(model)

    async def _ask_count(self, made: Conversation, first: int) -> Conversation:
        """Have the endpoint count a conversation; its answer is applied if nothing has changed.

        `first`: the first turn of the change.
        """
        settings, session = self.workspace.settings, made.session
        name, model = session.id, session.model
        draft = await self._draft(name, made, model, ask=True)
        count = await _count_chat(self.services.counts, draft.session, settings)
        if count is not None and count.due:
            self._miss(session)
        elif count is not None and count.total is None and settings != self.workspace.settings:
            self._ask_later(session)  # the server's client may have been closed meanwhile
        async with self._order(name):
            known = self.sessions.store.get(name)
            current = known if known is not None and _is_same(known, made) else None
            draft = await self._draft(name, current or made, model)
            if count is not None and count.server:
                draft.session.counter = self.counter(model).served_by(count.server)
            await self._run(partial(_take_count, draft.session, count, first))
            if current is not None:
                self.sessions.put(draft.conversation).counted_layout = current.session.layout
            elif known is not None and self._is_uncounted(known.session):
                self._ask_later(known.session)  # a fit or an undo has changed it, and asks nobody
        return draft.conversation

    async def ask_missed(self, model: str) -> None:
        """Ask about what was missed for a model, one after another, until one is missed again."""
        for name in [*self._missed]:
            one = self.sessions.store.get(name)
            if one is None:
                self._missed.pop(name, None)
            elif one.session.model == model and name in self._missed:
                await self._ask_again(one)
                if name in self._missed:
                    break  # the last one now: the others come first the next time

    async def _ask_again(self, missed: Conversation) -> Conversation:
        made = await self._ask(Effects(missed, missed.session, asks_chat=True))
        self.sessions.publish()
        await self._warn_of_threshold(made)
        return made

    def _is_probed_again(self, session: Session) -> bool:
        """Whether the endpoint that missed a session was asked since what it can do."""
        if session.id not in self._missed:
            return False
        endpoints = self.services.counts.endpoints(self.workspace.settings)
        standing = endpoints.standing(session.model)
        return standing is not None and standing != self._missed[session.id]

    def _is_uncounted(self, session: Session) -> bool:
        """Whether this version of the conversation still needs an endpoint count."""
        state = self.sessions.state_of(session.id)
        return state.asking == 1 and state.counted_layout != session.layout

    @contextmanager
    def _asking(self, session: Session) -> Iterator[None]:
        """No other request asks again meanwhile; a count that is cancelled is missed."""
        state = self.sessions.state_of(session.id)
        self._missed.pop(session.id, None)
        state.asking += 1
        try:
            yield
        except BaseException:
            self._ask_later(session)
            raise
        finally:
            state.asking -= 1

    def _ask_later(self, session: Session) -> None:
        """Have what was missed, though its endpoint may be well, asked again soon."""
        self._miss(session)
        self.services.counts.missed(session.model, self.workspace.settings, "late")

    def _miss(self, session: Session) -> None:
        endpoints = self.services.counts.endpoints(self.workspace.settings)
        self._missed[session.id] = endpoints.standing(session.model)

    # -- outliving the process --------------------------------------------------------------

    async def restore(self) -> None:
        """Once: take in the sessions that a client asked to keep, by their counts."""
        if self._restored.is_set():  # those who still wait for their turn came later
            return
        uri = self.workspace.uri
        async with self._restoring:
            if self._restored.is_set():
                return
            await self.services.calibrations.load(self._run)
            found = await self._run(partial(self.services.state.sessions, uri)) if uri else []
            for saved in found:
                session = restore(saved, self.counter(saved.model))
                state = self.sessions.add(session)
                self._kept[saved.id] = -1
                if saved.model_named:
                    state.named_model = saved.model
            self._restored.set()

    async def _keep(self) -> None:
        """Write what is to outlive the server, where it changed, one state after the other. A full
        disk fails no request."""
        async with self._keeping:
            kept = [one.session for one in self.sessions.store if one.session.persist]
            layouts = {session.id: session.layout for session in kept}
            if self.workspace.uri is None or layouts == self._kept:
                return
            saved = [
                msgspec.structs.replace(
                    save(session),
                    model_named=self.sessions.state_of(session.id).named_model is not None,
                )
                for session in kept
            ]
            mine, write = {*self._kept, *layouts}, self.services.state.save_sessions
            try:
                if mine:
                    await self._run(partial(write, self.workspace.uri, saved, mine))
                self._kept = layouts
            except Exception as exc:
                logger.warning("sessions were not kept: %s", type(exc).__name__)


def _worked(draft: Draft, change: Change[T]) -> Outcome[T]:
    """Apply a change to a draft, and count all that a number of the session needs, but for new
    sections. Blocking."""
    outcome = change.apply(draft)
    if not draft.session.has_uncounted_sections:
        draft.session.total()
    return outcome


def _follow_documents(session: Session) -> None:
    """Have the sections of a copy be the documents that they follow as they are now."""
    session.sections = [
        msgspec.structs.replace(section, source=section.source.followed.text())
        if isinstance(section.source, FollowedText)
        else section
        for section in session.sections
    ]


def _is_same(one: Conversation, other: Conversation) -> bool:
    """Whether what was counted of one holds for the other: the same turns for the same model."""
    return (one.session.layout, one.session.model) == (other.session.layout, other.session.model)


class _ChatCount(NamedTuple):
    """An endpoint's count of a conversation: of the whole, or of single texts."""

    total: int | None = None
    texts: Mapping[int, int] = {}
    """Tokens by turn, where it counts texts only."""
    server: str = ""
    """What counted the texts."""
    due: bool = False
    """Whether it is to be asked again: something was not counted in its time."""


async def _count_chat(counts: Counts, session: Session, settings: Settings) -> _ChatCount | None:
    """Have the endpoint count the whole chat, in one request. Where it counts texts only, those of
    the new turns: one request each. `session` is a copy that nobody else works on."""
    endpoints = counts.endpoints(settings)
    if session.known_by_counts or not endpoints.serves(session.model):
        return None
    chat = await counts.workers.run(partial(_as_messages, session))
    tools = getattr(session.tools, "tools", None)
    counted = await endpoints.count_chat(session.model, chat, tools, counts.seconds)
    if isinstance(counted, EndpointCount):
        return _ChatCount(counted.tokens)
    due = counts.missed(session.model, settings, counted.kind)
    if not counts.asks(session.model, settings):
        return _ChatCount(due=due)
    count, missed = await _count_texts(counts, session, endpoints)
    if missed is not None:
        due = counts.missed(session.model, settings, missed.kind) or due
    return count._replace(due=due)


async def _count_texts(
    counts: Counts, session: Session, endpoints: Endpoints
) -> tuple[_ChatCount, Miss | None]:
    """The texts that it counts in its time, and why not the others."""
    counted: dict[int, int] = {}
    name, loop = "", asyncio.get_running_loop()
    until = loop.time() + counts.seconds
    for index, text in (await counts.workers.run(partial(uncounted, session))).items():
        left = max(0.0, until - loop.time())
        found = await endpoints.count_text(session.model, text, left)
        if isinstance(found, EndpointCount):
            counted[index], name = found.tokens, found.name
        elif found.kind == "late" or endpoints.standing(session.model) is None:
            return _ChatCount(None, counted, name), found
    return _ChatCount(None, counted, name), None


def _take_count(session: Session, count: _ChatCount | None, first: int) -> None:
    """Have a copy of a session take what was counted of it, and count the rest. Blocking.

    `first`: the first turn of the change, where no total is known from before it.
    """
    if count is not None and count.total is not None:
        session.chat_counted(count.total, _first_guess(session, first))
    elif count is not None and count.texts:
        texts_counted(session, count.texts)
    session.total()


def _first_guess(session: Session, first: int) -> int:
    """The first of the newest turns that only an estimate knows: those of an earlier change too,
    where this one came before the endpoint had counted it."""
    ledger, first = session.ledger(), min(first, len(session.turns))
    covered = ledger.anchor.covers if ledger.anchor else 0
    while first > covered and ledger.counts[first - 1].method in ("calibrated", "estimate"):
        first -= 1
    return first


def _as_messages(session: Session) -> list[dict[str, Any]]:
    """The conversation as messages: the system prompt first, then the turns."""
    system = getattr(session.system, "turn", None)
    turns = session.turns if system is None else [system, *session.turns]
    return [msgspec.to_builtins(turn) for turn in turns]
