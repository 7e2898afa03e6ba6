"""How sessions are changed: on a copy, which then takes the session's place in one step.

A worker counts what is new in the copy, and nothing that others see has changed by then. The step
that puts it in force awaits nothing. Changes of one session come in their order; questions, and
other sessions, wait for nobody. A change that is given up before it is in force has not happened.

Endpoints are asked when it is: by an estimate it counts at once, and its answer waits for the
server's number while the session goes on. What they say is taken in a step of its own, unless the
session has changed by then: whoever changed it asks for all of it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import msgspec

from sidecar.context.conversation import Conversation
from sidecar.context.persist import restore, save
from sidecar.context.session import Session
from sidecar.context.store import DEFAULT_ID
from sidecar.context.thresholds import budget_message, crossed
from sidecar.errors import RequestError
from sidecar.messages.usage import Usage
from sidecar.workspace.chat_asking import Asked, ChatAsking, Draft
from sidecar.workspace.counted_session import LONG_AGO, CountedSession
from sidecar.workspace.events import Event
from sidecar.workspace.followed import FollowedText
from sidecar.workspace.model_counter import ModelCounter
from sidecar.workspace.models import Alternatives
from sidecar.workspace.sections import SectionCounts
from sidecar.workspace.wording import NO_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sidecar.workspace.conversations import Sessions
    from sidecar.workspace.shared import Shared
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS = 0.3
"""How long nothing is shown for an endpoint that is asked: then the estimate is."""


class Changes:
    """Changes and answers about one workspace's sessions. For the event loop."""

    def __init__(self, services: Shared, workspace: Workspace, sessions: Sessions) -> None:
        self.services, self.workspace, self.sessions = services, workspace, sessions
        self._orders: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._restoring = asyncio.Lock()
        self._restored = asyncio.Event()
        self._run = services.workers.run
        self._sections = SectionCounts(services.counts)
        self._keeping = asyncio.Lock()
        self._kept: dict[str, int] = {}
        """Layouts of the sessions that were written, by id."""
        self.asking = ChatAsking(self)

    # -- changing ---------------------------------------------------------------------------

    async def change(
        self,
        session_id: str | None,
        work: Callable[[Draft], T],
        *,
        model: str | None = None,
        settle: Callable[[Session, T], None] = lambda *_: None,
        ask: bool = False,
        usage: Usage | None = None,
        read: Callable[[], Awaitable[Usage | None]] | None = None,
        unnoticed: bool = False,
        answered: Callable[[], str | None] = lambda: None,
        window: bool = False,
    ) -> tuple[Conversation, T]:
        """Change the session named, or the one that a client means that names none.

        Args:
            session_id: of the session; made where there is none.
            work: changes the copy that it is given, on a worker.
            model: that the client names for the session.
            settle: what the event loop does with the outcome, in the step that puts it in force.
            ask: whether the endpoint is to count the whole chat, once the change is in force.
            usage: what was reported with this change.
            read: finds that out on a worker; what is asked meanwhile comes after this change.
            unnoticed: a session does not become the current one by this.
            answered: the model that a reply named, once it was read.
            window: whether the work goes by the window: a new model's is asked for before.

        Raises:
            RequestError: for what cannot be done; then nothing was changed.
        """
        await self.restore()
        name = self.sessions.writing(session_id)
        if window:
            await self.know(model or self.model_of(name))
        async with self.order(name):
            usage = usage if read is None else await read()
            wanted = model or self.sessions.models.get(name) or answered() or self.model_of(name)
            await self.services.look_up(wanted, self.workspace.settings)
            before = self.sessions.store.get(name)
            draft = await self._settled(self.draft(name, before, wanted))
            outcome = await self._changed(draft, work)
            if model is not None:
                self.sessions.models[name] = model
            if unnoticed:
                draft.session.updated_at = before.session.updated_at if before else LONG_AGO
            self.put(made := draft.conversation)
            settle(draft.session, outcome)
            asks = self.workspace.settings.endpoints and (ask or usage is not None)
            if not asks:
                self.sessions.publish()
        if self._is_behind(made.session, ask=False):  # once more: what follows is told again
            self.services.publish(Event("document", self.workspace))
        if asks:
            asked = Asked(ask, before.session if before else None, usage)
            made = await self._shown_soon(self.asking.surer(made, asked))
        await self._warn_of(made)
        await self.keep()
        return made, outcome

    async def _changed(self, draft: Draft, work: Callable[[Draft], T]) -> T:
        """Have a worker change a draft; a document that was edited meanwhile is in it too."""
        outcome = await self._run(partial(_worked, draft, work))
        if self._is_behind(draft.session, ask=False):
            _follow(draft.session)
            await self.settle(draft)
            await self._run(draft.session.total)
        return outcome

    async def _shown_soon(self, surer: Awaitable[Conversation]) -> Conversation:
        """What is in force with what endpoints say of it; shown without, where they are slow."""
        asking = asyncio.ensure_future(surer)
        try:
            await asyncio.wait({asking}, timeout=PATIENCE_SECONDS)
            self.sessions.publish()
            return await asking
        finally:
            asking.cancel()
            self.sessions.publish()

    async def ask_again(self, missed: Conversation) -> Conversation:
        """A conversation that the endpoint is asked about once more, and what is shown by it."""
        made = await self.asking.surer(missed, Asked(True, missed.session, None))
        self.sessions.publish()
        await self._warn_of(made)
        return made

    def _has_other_tokenizer(self, session: Session) -> bool:
        """Whether the settings have another tokenizer than the session was counted by."""
        counter = session.counter
        return isinstance(counter, ModelCounter) and not counter.is_like(
            self.counter(session.model)
        )

    def _is_behind(self, session: Session, *, ask: bool) -> bool:
        model, settings = session.model, self.workspace.settings
        if self._has_other_tokenizer(session):
            return True
        behind = partial(self._sections.is_behind, model=model, settings=settings, ask=ask)
        return any(behind(section) for section in session.sections)

    async def _settled(self, draft: Draft) -> Draft:
        await self.settle(draft)
        return draft

    async def settle(self, draft: Draft, *, ask: bool = False) -> None:
        await self._sections.settle(draft.session, self.workspace.settings, ask=ask)

    def put(self, made: Conversation) -> None:
        """Put a conversation in force: the only place that does."""
        self.sessions.store.put(made)

    def is_being_made(self, session_id: str | None) -> bool:
        """Whether an earlier request is at a session: one that is not there yet will be."""
        lock = self._orders.get(session_id or self.sessions.writing(None))
        return lock is not None and lock.locked()

    def order(self, name: str) -> asyncio.Lock:
        lock = self._orders.get(name)
        if lock is None:
            lock = self._orders[name] = asyncio.Lock()
        return lock

    def draft(self, name: str, before: Conversation | None, model: str) -> Draft:
        """A copy that counts for `model`, its followed documents as they are now."""
        made = before.copy() if before else Conversation(Session(name, self.counter(model)))
        session = made.session
        if session.model != model or self._has_other_tokenizer(session):
            session.counter = self.counter(model)
        _follow(session)
        learned = self.sessions.calibration(session)
        return Draft(made, self.sessions.window(session), learned.copy())

    async def _warn_of(self, conversation: Conversation) -> None:
        """A warning where the change has crossed a threshold; it says what could be done."""
        session, usage = conversation.session, self.sessions.latest(conversation)
        if not crossed(session, usage, self.workspace.settings.context.warn_at):
            return
        message = budget_message(usage)
        if usage.over and usage.tokens is not None:
            message = await self._run(partial(self.alternatives(session).message, usage))
        self.sessions.warn("budget", message, usage)

    # -- asking -----------------------------------------------------------------------------

    async def look(self, session_id: str | None) -> Conversation | CountedSession | None:
        """The session that a question is about, counted for its model as its documents are now."""
        await self.restore()
        found = self.sessions.reading(session_id)
        return found if not isinstance(found, Conversation) else await self.counted(found)

    async def counted(self, found: Conversation, *, ask: bool = False) -> Conversation:
        """A conversation with nothing left to count; itself where that is so already."""
        model = self.model_of(found.session.id)
        await self.services.look_up(model, self.workspace.settings)
        if found.session.model == model and not self._is_behind(found.session, ask=ask):
            return found
        draft = self.draft(found.session.id, found, model)
        await self.settle(draft, ask=ask)
        await self._run(draft.session.total)
        if self.sessions.store.get(found.session.id) is found:
            self.put(draft.conversation)  # the same one, with what was counted
            self.sessions.publish()
        return draft.conversation

    async def bring_up(self, session_id: str | None = None) -> None:
        """Have the session named, or all of them, counted by what holds now, shown or not."""
        await self.restore()
        for one in [*self.sessions.store]:
            if session_id in (None, one.session.id):
                await self.counted(one)

    async def refresh(self) -> None:
        """Bring what is shown up to date with documents, settings and models."""
        current = self.sessions.reading(None)
        if isinstance(current, Conversation):
            if current.session.model != (model := self.model_of(current.session.id)):
                await self.know(model)
                await self.replied(model)
            current = await self.counted(current, ask=True)
            if self.asking.is_probed_again(current.session):
                current = await self.ask_again(current)
        self.sessions.publish()
        if isinstance(current, Conversation):
            await self._warn_of(current)

    async def know(self, model: str) -> None:
        """Have a model's window and price looked up; an endpoint that serves it says its own."""
        await self.services.look_up(model, self.workspace.settings)
        endpoints = self.services.counts.endpoints(self.workspace.settings)
        if endpoints.reports_window(model) and endpoints.known_limit(model) is None:
            await endpoints.limit(model)

    async def replied(self, model: str, tokens: int = 0) -> None:
        """A reply came, whose prompt and output took so many tokens, or another model was chosen:
        a server may have loaded the model since it reported its window."""
        await self.services.counts.endpoints(self.workspace.settings).replied(model, tokens)

    def model_of(self, session_id: str) -> str:
        """The model that a session counts for."""
        return self.sessions.model_of(session_id)

    def counter(self, model: str) -> ModelCounter:
        """How a conversation with `model` is counted."""
        tokenizer = self.services.counts.tokenizers(self.workspace.settings).for_model(model)
        return ModelCounter(model, tokenizer)

    def existing(self, session_id: str | None) -> str:
        """The id of a session that there is, or will be when it is this request's turn.

        Raises:
            RequestError: `badParams` where there is none, `noText` for one known by counts only.
        """
        found = self.sessions.reading(session_id)
        if found is None and self.is_being_made(session_id):
            return session_id or self.sessions.writing(None)
        if found is None:
            missing = "there is no such session in this workspace" if session_id else NO_CONTEXT
            raise RequestError("badParams", missing)
        if isinstance(found, CountedSession):
            raise RequestError("noText", "the session is an agent's own: known by its counts only")
        return found.session.id

    async def throwaway(self, session_id: str | None, model: str | None) -> Draft:
        """Return a copy of the session, empty for an unknown one, with all earlier changes made."""
        await self.restore()
        async with self.order(session_id or self.sessions.writing(None)):
            pass
        found = await self.look(session_id)
        if isinstance(found, CountedSession):
            return await self._stand_in(found, model or found.model or self.workspace.model)
        name = session_id or DEFAULT_ID if found is None else found.session.id
        wanted = model or self.model_of(name)
        await self.know(wanted)
        draft = self.draft(name, found, wanted)
        await self.settle(draft, ask=False)
        return draft

    async def _stand_in(self, agents: CountedSession, model: str) -> Draft:
        """A conversation of the size of an agent's own session, of which nothing else is known."""
        await self.know(model)
        session = Session(agents.id, self.counter(model))
        session.limit = agents.limit if model == agents.model else None
        size = agents.tokens or 0
        await self._run(
            partial(session.reply_reported, Usage(input_tokens=size, prompt_tokens=size))
        )
        learned = self.sessions.calibration(session)
        return Draft(Conversation(session), self.sessions.window(session), learned.copy())

    def alternatives(self, session: Session) -> Alternatives:
        """What else could hold the conversation, as a worker may work it out."""
        rows = self.services.counts.endpoints(self.workspace.settings).capabilities()
        return Alternatives(session.model, session.counter, session.tools, tuple(rows))

    # -- outliving the process --------------------------------------------------------------

    async def restore(self) -> None:
        """Once: take in the sessions that a client asked to keep, by their counts."""
        if self._restored.is_set():  # those who still wait for their turn came later
            return
        uri = self.workspace.uri
        async with self._restoring:
            if self._restored.is_set():
                return
            await self._run(self.services.state.calibrations)
            found = await self._run(partial(self.services.state.sessions, uri)) if uri else []
            for saved in found:
                self.sessions.store.add(restore(saved, self.counter(saved.model)))
                self._kept[saved.id] = -1
                if saved.model_named:
                    self.sessions.models[saved.id] = saved.model
            self._restored.set()

    async def keep(self) -> None:
        """Write what is to outlive the server, where it changed, one state after the other. A full
        disk fails no request."""
        async with self._keeping:
            await self._keep()

    async def _keep(self) -> None:
        state, uri, named = self.services.state, self.workspace.uri, self.sessions.models
        kept = [one.session for one in self.sessions.store if one.session.persist]
        layouts = {session.id: session.layout for session in kept}
        if uri is None or layouts == self._kept:
            return
        saved = [
            msgspec.structs.replace(save(session), model_named=session.id in named)
            for session in kept
        ]
        mine = {*self._kept, *layouts}
        try:
            if mine:
                await self.services.workers.run(partial(state.save_sessions, uri, saved, mine))
            self._kept = layouts
        except Exception as exc:
            logger.warning("sessions were not kept: %s", type(exc).__name__)


def _worked(draft: Draft, work: Callable[[Draft], T]) -> T:
    """The outcome of some work, with all counted that a number of the session needs but for new
    sections. Blocking."""
    outcome = work(draft)
    if not draft.session.has_unsettled:
        draft.session.total()
    return outcome


def _follow(session: Session) -> None:
    """Have the sections of a copy be the documents that they follow as they are now."""
    session.sections = [
        msgspec.structs.replace(section, source=section.source.followed.text())
        if isinstance(section.source, FollowedText)
        else section
        for section in session.sections
    ]
