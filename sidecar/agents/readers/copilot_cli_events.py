"""The events of Copilot CLI's sessions."""

from __future__ import annotations

import msgspec

from sidecar import typed
from sidecar.agents.fields import CamelRecord, TokenCount, when
from sidecar.agents.line_files import Newest
from sidecar.models.catalogue import known_window

_MILLION, _USUAL = 1_000_000, 200_000


class Data(CamelRecord):
    message_id: str | None = None
    model: str | None = None
    selected_model: str | None = None
    new_model: str | None = None
    output_tokens: TokenCount = None
    token_limit: TokenCount = None
    context_tier: str | None = None
    parent_tool_call_id: str | None = None


class SessionEvent(CamelRecord):
    id: str | None = None
    type: str | None = None
    timestamp: str | None = None
    data: Data | None = None


event = typed.decoder(SessionEvent)
"""Raises msgspec.DecodeError."""


class NewestEvents(Newest[SessionEvent]):
    """What the newest events say; they know no call's size."""

    model: str | None = None
    compacted = False
    _limit: int | None = None
    _tier: str | None = None
    _answered = False

    @property
    def window(self) -> int | None:
        """By the agent's own word, else by the tier: models of a million tokens are held to less"""
        if self._limit or not self._tier or not self.model:
            return self._limit
        listed = known_window(self.model)
        if listed is None or listed < _MILLION:
            return None
        return _USUAL if self._tier == "default" else listed

    def begin(self, line: bytes) -> None:
        """Take one of the first events."""
        try:
            data = event(line).data or Data()
        except msgspec.DecodeError:
            return
        self.model = self.model or data.selected_model or data.model
        self._tier = self._tier or data.context_tier

    def take(self, entry: SessionEvent) -> bool:
        data = entry.data or Data()
        self.at = self.at or when(entry.timestamp)
        if self.active is None and entry.type in _TURN:
            self.active = _TURN[entry.type]
        self.model = self.model or data.new_model
        self._limit, self._tier = self._limit or data.token_limit, self._tier or data.context_tier
        self._answered = self._answered or entry.type == "assistant.message"
        if entry.type == "session.compaction_complete" and not self._answered:
            self.compacted = True
        return self._answered and self.active is not None and self._limit is not None


_TURN = {
    "user.message": True,
    "assistant.turn_start": True,
    "assistant.turn_end": False,
    "session.shutdown": False,
}
"""By kind of event, whether a turn is under way after it."""
