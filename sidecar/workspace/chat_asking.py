"""Endpoints are asked about a conversation that is in force, and again about what they missed.

What an endpoint did not count in its time, or what was given up while it was asked, is an estimate
until it is asked again: when `Retries` says so, or when the endpoint was probed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cachetools import LRUCache

from sidecar.workspace import chat_counts

if TYPE_CHECKING:
    import asyncio

    from sidecar.context.conversation import Conversation
    from sidecar.context.session import Session
    from sidecar.context.window import Window
    from sidecar.counting.calibration import ConversationCalibration
    from sidecar.messages.usage import Usage
    from sidecar.workspace.conversations import Sessions
    from sidecar.workspace.model_counter import ModelCounter
    from sidecar.workspace.shared import Shared
    from sidecar.workspace.workspace import Workspace


class Draft(NamedTuple):
    """A copy of a conversation to work on, and what holds for it."""

    conversation: Conversation
    window: Window
    calibration: ConversationCalibration
    """A copy too: what it learns is learned by the session's own when the draft is in force."""

    @property
    def session(self) -> Session:
        """The conversation's."""
        return self.conversation.session


class Asked(NamedTuple):
    """What endpoints are asked about a change that is in force."""

    chat: bool
    """Whether to count the whole chat."""
    before: Session | None
    """The session before it."""
    usage: Usage | None
    """What was reported with it."""


class Drafts(Protocol):
    """How a workspace's conversations are changed: what is used of it here."""

    @property
    def services(self) -> Shared: ...
    @property
    def workspace(self) -> Workspace: ...
    @property
    def sessions(self) -> Sessions: ...
    def draft(self, name: str, before: Conversation | None, model: str) -> Draft: ...
    async def settle(self, draft: Draft, *, ask: bool = False) -> None: ...
    def put(self, made: Conversation) -> None: ...
    def order(self, name: str) -> asyncio.Lock: ...
    def counter(self, model: str) -> ModelCounter: ...
    async def know(self, model: str) -> None: ...
    async def replied(self, model: str, tokens: int = 0) -> None: ...
    async def ask_again(self, missed: Conversation) -> Conversation: ...


class ChatAsking:
    """Asks about one workspace's conversations. For the event loop."""

    def __init__(self, changes: Drafts) -> None:
        self._changes = changes
        self._missed: dict[str, Hashable] = {}
        """What the endpoint of each session that is still to be counted was known by."""
        self._under_way: Counter[str] = Counter()
        """How often endpoints are being asked about a session."""
        self._told: LRUCache[str, int] = LRUCache(256)
        """The layout of each session that endpoints have told all of that they could."""

    async def surer(self, made: Conversation, asked: Asked) -> Conversation:
        """A conversation that is in force, with what endpoints say of it and of its window."""
        if not asked.chat:
            await self._tell(made.session, asked)
            return made
        with self._asking(made.session):
            await self._tell(made.session, asked)
            return await self._counted(made, asked.before)

    def is_probed_again(self, session: Session) -> bool:
        """Whether the endpoint that missed a session was asked since what it can do."""
        if session.id not in self._missed:
            return False
        endpoints = self._changes.services.counts.endpoints(self._changes.workspace.settings)
        standing = endpoints.standing(session.model)
        return standing is not None and standing != self._missed[session.id]

    async def again(self, model: str) -> None:
        """Ask about what was missed for a model, one after another, until one is missed again."""
        store = self._changes.sessions.store
        for name in [*self._missed]:
            one = store.get(name)
            if one is None:
                self._missed.pop(name, None)
            elif one.session.model == model and name in self._missed:
                await self._changes.ask_again(one)
                if name in self._missed:
                    break  # the last one now: the others come first the next time

    async def _tell(self, session: Session, asked: Asked) -> None:
        """Have a window asked for again that the change may have made another one."""
        model, before, used = session.model, asked.before, asked.usage
        if used is not None or (before is not None and before.model != model):
            tokens = used.prompt_tokens + used.output_tokens if used else 0
            await self._changes.replied(model, tokens)
        await self._changes.know(model)

    async def _counted(self, made: Conversation, before: Session | None) -> Conversation:
        changes, settings = self._changes, self._changes.workspace.settings
        name, model = made.session.id, made.session.model
        draft = changes.draft(name, made, model)
        await changes.settle(draft, ask=True)
        first = 0 if before is None else len(before.turns)
        count = await chat_counts.ask(changes.services.counts, draft.session, settings)
        if count is not None and count.due:
            self._miss(made.session)
        elif count is not None and count.total is None and settings != changes.workspace.settings:
            self._ask_later(made.session)  # the server's client may have been closed meanwhile
        async with changes.order(name):
            known = changes.sessions.store.get(name)
            current = known if known is not None and _is_same(known, made) else None
            draft = changes.draft(name, current or made, model)
            await changes.settle(draft)
            if count is not None and count.server:
                draft.session.counter = changes.counter(model).served_by(count.server)
            work = partial(chat_counts.take, draft.session, count, first)
            await changes.services.workers.run(work)
            if current is not None:
                changes.put(draft.conversation)
                self._told[name] = current.session.layout
            elif known is not None and self._is_left(known.session):
                self._ask_later(known.session)  # a fit or an undo has changed it, and asks nobody
        return draft.conversation

    def _is_left(self, session: Session) -> bool:
        """Whether nobody but who looks has asked about a session as it is now."""
        return self._under_way[session.id] == 1 and self._told.get(session.id) != session.layout

    @contextmanager
    def _asking(self, session: Session) -> Iterator[None]:
        """Nobody else asks again meanwhile; what is given up is missed."""
        self._missed.pop(session.id, None)
        self._under_way[session.id] += 1
        try:
            yield
        except BaseException:
            self._ask_later(session)
            raise
        finally:
            self._under_way -= Counter([session.id])  # without what is 0 by now

    def _ask_later(self, session: Session) -> None:
        """Have what was missed, though its endpoint may be well, asked again soon."""
        self._miss(session)
        settings, counts = self._changes.workspace.settings, self._changes.services.counts
        counts.missed(session.model, settings, "late")

    def _miss(self, session: Session) -> None:
        endpoints = self._changes.services.counts.endpoints(self._changes.workspace.settings)
        self._missed[session.id] = endpoints.standing(session.model)


def _is_same(one: Conversation, other: Conversation) -> bool:
    """Whether what was counted of one holds for the other: the same turns for the same model."""
    return (one.session.layout, one.session.model) == (other.session.layout, other.session.model)
