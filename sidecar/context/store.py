"""The conversations of one workspace. Their rooms are loaded with the first of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from sidecar.context.conversation import Conversation
    from sidecar.context.session import Session

DEFAULT_ID = "default"
"""The session that is made where a client names none and there is none."""
SESSIONS_KEPT = 256


class ConversationStore:
    """By session id; the least recently used go when there are too many."""

    def __init__(self) -> None:
        self._known: dict[str, Conversation] = {}
        self._used: dict[str, int] = {}
        """How many were put before each was; what was never put comes first."""
        self._puts = 0

    def __iter__(self) -> Iterator[Conversation]:
        return iter(tuple(self._known.values()))

    def get(self, session_id: str | None) -> Conversation | None:
        """The one named, or the current one; None where there is none."""
        return self.current() if session_id is None else self._known.get(session_id)

    def add(self, session: Session) -> Conversation:
        """Take in a session, such as one that was restored."""
        from sidecar.context.conversation import Conversation

        added = self._known[session.id] = Conversation(session)
        self._drop()
        return added

    def put(self, conversation: Conversation) -> str | None:
        """Replace the conversation with the same id, or add one. Returns the id that was dropped
        for it, if one was."""
        self._puts += 1
        self._used[conversation.session.id] = self._puts
        self._known[conversation.session.id] = conversation
        return self._drop()

    def _drop(self) -> str | None:
        if len(self._known) <= SESSIONS_KEPT:
            return None
        oldest = min(self._known.values(), key=self._use).session.id
        del self._known[oldest]
        self._used.pop(oldest, None)
        return oldest

    def _use(self, one: Conversation) -> tuple[int, datetime]:
        return self._used.get(one.session.id, 0), one.session.updated_at

    def current(self) -> Conversation | None:
        """The most recently updated one."""
        every = reversed(self._known.values())
        return max(every, key=lambda one: one.session.updated_at, default=None)
