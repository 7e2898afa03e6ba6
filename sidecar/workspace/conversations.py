"""Applies changes to a workspace's conversations: the only module that does.

A worker applies a change to a copy and counts its new parts; the conversation itself does not
change meanwhile. One step on the event loop, which awaits nothing, replaces the conversation by the
copy, and the effects follow: publish, ask an endpoint, warn, save. Changes of one conversation are
applied in their order; questions and other conversations do not wait for them. A change that is
cancelled before its step has not happened.

A conversation shows an estimate while an endpoint is asked. The endpoint's late answer is another
change. It is dropped if the conversation has changed since, because every change asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from sidecar.context.conversation import Conversation
from sidecar.context.counter import ModelCounter
from sidecar.context.persist import restore, save
from sidecar.context.sections import RestoredPart, Section, SectionCount, SectionSource
from sidecar.context.session import Session, texts_counted, uncounted
from sidecar.context.thresholds import budget_message, crossed
from sidecar.endpoints.outcome import EndpointCount, Miss
from sidecar.errors import BadParamsError, RequestError
from sidecar.messages.usage import Usage
from sidecar.waiting import wait_or_fall_back
from sidecar.workspace.changes import Change, Draft, Outcome
from sidecar.workspace.documents import Documents, FollowedText, Snapshot
from sidecar.workspace.models import Alternatives
from sidecar.workspace.sessions import DEFAULT_ID, LONG_AGO, CountedSession
from sidecar.workspace.wording import NO_CONTEXT
from sidecar.workspace.workspace import Event

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.context.response import WarningKind
    from sidecar.counting.calibration import ConversationCalibration
    from sidecar.endpoints.registry import Endpoints
    from sidecar.workspace.counter_choice import CounterChoice
    from sidecar.workspace.counts import Counts
    from sidecar.workspace.sessions import Sessions
    from sidecar.workspace.shared import Shared
    from sidecar.workspace.workspace import Workspace


logger = logging.getLogger(__name__)

T = TypeVar("T")


class Effects(NamedTuple):
    """What follows from a change that was just committed."""

    conversation: Conversation
    before: Session | None
    asks_chat: bool
    """Whether to ask the endpoint for a count of the whole chat."""
    usage: Usage | None = None
    """Usage reported with the change, if an endpoint is declared."""
    warnings: Sequence[tuple[WarningKind, str]] = ()


class Conversations:
    """Changes and answers about one workspace's conversations. For the event loop."""

    def __init__(self, services: Shared, workspace: Workspace, sessions: Sessions) -> None:
        self.services, self.workspace, self.sessions = services, workspace, sessions
        self._orders: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._restoring = asyncio.Lock()
        self._restored = asyncio.Event()
        self._run = services.workers.run
        self._sections = SectionCounts(services.counts, services.documents)
        self._keeping = asyncio.Lock()
        self._kept: dict[str, int] = {}
        """The layout of each saved conversation, by id."""
        self._missed: dict[str, Hashable] = {}
        """Endpoint fingerprints at the miss, by conversation that still needs a count."""

    # -- changing ---------------------------------------------------------------------------

    async def apply(self, change: Change[T]) -> tuple[Conversation, T]:
        """Apply a change, and return the new conversation with the change's result.

        Raises:
            RequestError: The change is not possible; nothing was changed.
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
        """Change a draft on a worker, then bring its documents up to date."""
        outcome = await self._run(partial(_worked, draft, change))
        if self._is_stale(draft.session):
            self._follow_documents(draft.session)
            await self._count_sections(draft.session)
            await self._run(draft.session.total)
        return outcome

    def _commit(
        self, change: Change[T], draft: Draft, outcome: Outcome[T], before: Conversation | None
    ) -> Effects:
        """Replace the conversation by its draft, in one step."""
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
            state.calibration.add_reply(*outcome.reply_sample)
        counts.was_learned()
        plain = counts.tokenizers(self.workspace.settings).for_model(session.model)
        if any(sample.kind for sample in outcome.samples) and plain.method != "exact":
            self.services.publish(Event("endpoint"))  # all roots' documents count otherwise

    async def _run_effects(self, effects: Effects) -> Conversation:
        """Publish, ask an endpoint, warn and save. Returns the counted conversation."""
        made = effects.conversation
        if self._is_stale(made.session):  # settings have changed, and with them followed sections
            self.services.publish(Event("document", self.workspace))
        if effects.asks_chat or effects.usage is not None:
            try:
                made = await wait_or_fall_back(self._ask(effects), self.sessions.publish)
            finally:
                self.sessions.publish()
        usage = self.sessions.latest(made) if effects.warnings else None
        for kind, message in effects.warnings:
            self.sessions.warn(kind, message, usage)
        await self._warn_of_threshold(made)
        await self._keep()
        return made

    async def _warn_of_threshold(self, conversation: Conversation) -> None:
        """Warn if a change has crossed a threshold, with a list of what could be done."""
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
        """Whether an earlier request is changing a session, which may create it."""
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
        """Copy or begin a conversation, with current documents and counted sections.

        `ask`: await the endpoint's counts of sections.
        """
        made = before.copy() if before else Conversation(Session(name, self.counter(model)))
        session = made.session
        if session.model != model or self._has_other_tokenizer(session):
            session.counter = self.counter(model)
        self._follow_documents(session)
        draft = Draft(made, self.sessions.window(session), self._calibration_copy(session))
        await self._count_sections(session, ask=ask)
        return draft

    def _follow_documents(self, session: Session) -> None:
        """Give the sections of a copy the current text of the documents that they follow."""
        latest = self.services.documents.latest
        session.sections = [
            msgspec.structs.replace(section, source=latest(section.source))
            if isinstance(section.source, FollowedText)
            else section
            for section in session.sections
        ]

    def _calibration_copy(self, session: Session) -> ConversationCalibration:
        return self.sessions.calibration(session).copy()

    async def _count_sections(self, session: Session, *, ask: bool = False) -> None:
        await self._sections.refresh(session, self.workspace.settings, ask=ask)

    def _has_other_tokenizer(self, session: Session) -> bool:
        """Whether the settings now choose another tokenizer for the session's model."""
        counter = session.counter
        return isinstance(counter, ModelCounter) and not counter.is_like(
            self.counter(session.model)
        )

    def _is_stale(self, session: Session, *, ask: bool = False) -> bool:
        """Whether settings or documents have changed counts. `ask`: or an endpoint could."""
        model, settings = session.model, self.workspace.settings
        if self._has_other_tokenizer(session):
            return True
        is_stale = partial(self._sections.is_stale, model=model, settings=settings, ask=ask)
        return any(is_stale(section) for section in session.sections)

    async def try_out(self, session_id: str | None, model: str | None) -> Draft:
        """Return a draft that is never committed, of an empty conversation if there is none.

        It contains earlier changes of the conversation. An agent's session, whose texts are not
        known, becomes one prompt of its size.
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
        """Return a session, counted for its model and with current documents."""
        await self.restore()
        found = self.sessions.find(session_id)
        return found if not isinstance(found, Conversation) else await self._counted(found)

    async def _counted(self, found: Conversation, *, ask: bool = False) -> Conversation:
        """Return the conversation with everything counted; the same object if it was already."""
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
        """Count one conversation, or all, by current settings and documents."""
        await self.restore()
        for one in [*self.sessions.store]:
            if session_id in (None, one.session.id):
                await self._counted(one)

    async def refresh(self) -> None:
        """Bring the shown context up to date with documents, settings and models."""
        current = self.sessions.find(None)
        if isinstance(current, Conversation):
            if current.session.model != (model := self.model_of(current.session.id)):
                await self.look_up(model)
                await self.services.counts.endpoints(self.workspace.settings).refresh_window(
                    model, 0
                )
            current = await self._counted(current, ask=True)
            if self._is_probed_again(current.session):
                current = await self._ask_again(current)
        self.sessions.publish()
        if isinstance(current, Conversation):
            await self._warn_of_threshold(current)

    async def look_up(self, model: str) -> None:
        """Look up a model's window and price, and ask an endpoint that serves it for its window."""
        await self.services.look_up(model, self.workspace.settings)
        endpoints = self.services.counts.endpoints(self.workspace.settings)
        if endpoints.reports_window(model) and endpoints.known_limit(model) is None:
            await endpoints.limit(model)

    def model_of(self, session_id: str) -> str:
        """Return the model that a session counts for."""
        return self.sessions.model_of(session_id)

    def counter(self, model: str) -> ModelCounter:
        """Return the counter of a model."""
        tokenizer = self.services.counts.tokenizers(self.workspace.settings).for_model(model)
        return ModelCounter(model, tokenizer)

    def id_with_text(self, session_id: str | None) -> str:
        """Return the id of a conversation that exists, or is being created by an earlier request.

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
            raise RequestError(
                "noText", "this session belongs to a coding agent: only its token counts are known"
            )
        return found.session.id

    def alternatives(self, session: Session) -> Alternatives:
        """Return the models that could hold the conversation, for a worker to compute."""
        rows = self.services.counts.endpoints(self.workspace.settings).capabilities()
        return Alternatives(session.model, session.counter, session.tools, tuple(rows))

    # -- endpoints --------------------------------------------------------------------------

    async def _ask(self, effects: Effects) -> Conversation:
        """Ask an endpoint for the window and, if the change needs it, a count of the chat."""
        made, before = effects.conversation, effects.before
        if not effects.asks_chat:
            await self._ask_window(made.session.model, before, effects.usage)
            return made
        with self._asking(made.session):
            await self._ask_window(made.session.model, before, effects.usage)
            return await self._ask_count(made, 0 if before is None else len(before.turns))

    async def _ask_window(self, model: str, before: Session | None, usage: Usage | None) -> None:
        """Look up a window, again if the server may have reloaded the model."""
        if usage is not None or (before is not None and before.model != model):
            tokens = usage.prompt_tokens + usage.output_tokens if usage else 0
            await self.services.counts.endpoints(self.workspace.settings).refresh_window(
                model, tokens
            )
        await self.look_up(model)

    async def _ask_count(self, made: Conversation, first: int) -> Conversation:
        """Ask the endpoint to count a conversation, and apply its answer unless that has changed.

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
        """Ask again for a model's missed counts, one after another, until one is missed again."""
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
        """Whether the endpoint was probed again since it missed a session's count."""
        if session.id not in self._missed:
            return False
        endpoints = self.services.counts.endpoints(self.workspace.settings)
        standing = endpoints.fingerprint(session.model)
        return standing is not None and standing != self._missed[session.id]

    def _is_uncounted(self, session: Session) -> bool:
        """Whether this version of the conversation still needs an endpoint count."""
        state = self.sessions.state_of(session.id)
        return state.asking == 1 and state.counted_layout != session.layout

    @contextmanager
    def _asking(self, session: Session) -> Iterator[None]:
        """Mark the conversation as being counted; a count that is cancelled is missed."""
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
        """Ask again soon, although the endpoint may be available."""
        self._miss(session)
        self.services.counts.missed(session.model, self.workspace.settings, "late")

    def _miss(self, session: Session) -> None:
        endpoints = self.services.counts.endpoints(self.workspace.settings)
        self._missed[session.id] = endpoints.fingerprint(session.model)

    # -- outliving the process --------------------------------------------------------------

    async def restore(self) -> None:
        """Restore saved conversations, once."""
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
        """Save changed conversations that asked for it. A full disk fails no request."""
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
    """Apply a change to a draft, and count its new parts except for sections. Blocking."""
    outcome = change.apply(draft)
    if not draft.session.has_uncounted_sections:
        draft.session.total()
    return outcome


def _is_same(one: Conversation, other: Conversation) -> bool:
    """Whether both have the same turns for the same model, so that counts of one hold for both."""
    return (one.session.layout, one.session.model) == (other.session.layout, other.session.model)


class _ChatCount(NamedTuple):
    """An endpoint's count of a conversation: of the whole, or of single texts."""

    total: int | None = None
    texts: Mapping[int, int] = {}
    """Tokens by turn, where it counts texts only."""
    server: str = ""
    """The server that counted the texts."""
    due: bool = False
    """Whether to ask again, because a text was not counted in time."""


async def _count_chat(counts: Counts, session: Session, settings: Settings) -> _ChatCount | None:
    """Ask the endpoint to count the whole chat, or else the texts of new turns, one request each.

    `session` is a copy that only this call uses.
    """
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
    """Count texts while there is time. Returns the counts, and why the others are missing."""
    counted: dict[int, int] = {}
    name, loop = "", asyncio.get_running_loop()
    until = loop.time() + counts.seconds
    for index, text in (await counts.workers.run(partial(uncounted, session))).items():
        left = max(0.0, until - loop.time())
        found = await endpoints.count_text(session.model, text, left)
        if isinstance(found, EndpointCount):
            counted[index], name = found.tokens, found.name
        elif found.kind == "late" or endpoints.fingerprint(session.model) is None:
            return _ChatCount(None, counted, name), found
    return _ChatCount(None, counted, name), None


def _take_count(session: Session, count: _ChatCount | None, first: int) -> None:
    """Apply an endpoint's counts to a copy of a session, and count the rest. Blocking.

    `first`: the first turn of the change, where no total is known from before it.
    """
    if count is not None and count.total is not None:
        session.chat_counted(count.total, _first_guess(session, first))
    elif count is not None and count.texts:
        texts_counted(session, count.texts)
    session.total()


def _first_guess(session: Session, first: int) -> int:
    """Return the first of the newest turns that are estimates, also of changes before this one."""
    ledger, first = session.ledger(), min(first, len(session.turns))
    covered = ledger.anchor.covers if ledger.anchor else 0
    while first > covered and ledger.counts[first - 1].method in ("calibrated", "estimate"):
        first -= 1
    return first


def _as_messages(session: Session) -> list[dict[str, Any]]:
    """Return the conversation as messages: the system prompt, then the turns."""
    system = getattr(session.system, "turn", None)
    turns = session.turns if system is None else [system, *session.turns]
    return [msgspec.to_builtins(turn) for turn in turns]


class SectionCounts:
    """Counts sections of one workspace's sessions. For the event loop."""

    def __init__(self, counts: Counts, documents: Documents) -> None:
        self._counts, self._documents = counts, documents
        self._taken: WeakKeyDictionary[SectionSource, Snapshot] = WeakKeyDictionary()
        """Snapshots of sections given as texts, whose pieces remember their counts."""

    def is_stale(
        self, section: Section, model: str, settings: Settings, *, ask: bool = False
    ) -> bool:
        """Whether a section must be counted again. `ask`: or an endpoint could still count it."""
        known, source = section.document_count, section.source
        if isinstance(source, RestoredPart):
            return False
        if isinstance(source, FollowedText) and self._documents.is_stale(source):
            return True
        if known is None or known.source is not source or known.model != model:
            return True
        return known.basis != self._counts.count_cache_key(model, settings) or (
            ask and not known.final
        )

    async def refresh(self, session: Session, settings: Settings, *, ask: bool) -> None:
        """Count the stale sections of a session.

        `ask`: await the endpoint's counts; otherwise only known ones are used.
        """
        model, sections = session.model, session.sections
        behind = [
            index
            for index, section in enumerate(sections)
            if self.is_stale(section, model, settings, ask=ask)
        ]
        found = await asyncio.gather(
            *[self._count(sections[i], model, settings, ask) for i in behind]
        )
        for index, (now, then) in zip(behind, found, strict=True):
            session.update_section(index, now, then)

    async def _count(
        self, section: Section, model: str, settings: Settings, ask: bool
    ) -> tuple[SectionCount, SectionCount | None]:
        """Count a section, and the text it had at the last report, in the same way."""
        counts, source = self._counts, section.source
        taken = self._snapshot(source)
        if ask:
            choice = await counts.choose_counter(taken, model, settings)
        else:
            choice = counts.choose_counter_now(taken, model, settings)
        basis = counts.count_cache_key(model, settings)
        measure = await counts.measure(taken, choice)
        final = choice.whole is not None or not counts.asks(model, settings)
        now = SectionCount(model, measure, source, basis, final)
        then = section.reported
        if then is None or isinstance(then.source, RestoredPart):
            return now, None
        return now, await self._again(then, now, choice, settings)

    async def _again(
        self, then: SectionCount, now: SectionCount, choice: CounterChoice, settings: Settings
    ) -> SectionCount:
        """Count a reported text in the same way as the current one."""
        if then.source is now.source:
            return now
        if then.is_like(now):
            return then
        taken = self._snapshot(then.source)
        # The server's number for one text says how the other is estimated.
        one = choice._replace(whole=None) if choice.whole is not None else None
        choice = one or self._counts.choose_local_counter(taken, now.model, settings)
        measure = await self._counts.measure(taken, choice)
        return SectionCount(now.model, measure, then.source, now.basis, now.final)

    def _snapshot(self, source: SectionSource) -> Snapshot:
        if isinstance(source, FollowedText):
            return source.snapshot
        taken = self._taken.get(source)
        if taken is None:
            taken = self._taken[source] = Snapshot(text=source.text())
        return taken
