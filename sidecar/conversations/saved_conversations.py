"""Saves and restores conversations. Saves ids, token counts and times, but no text."""

from __future__ import annotations

from datetime import datetime

import msgspec

from sidecar import typed
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.sections import RestoredPart, Section, SectionCount
from sidecar.conversations.turn_counts import Anchor, Counter
from sidecar.counting.count_result import Measure
from sidecar.messages.turns import Turn


class SavedSection(msgspec.Struct, frozen=True):
    name: str
    measure: Measure
    is_document: bool = False
    """Whether the section was counted as a document. Documents are calibrated separately."""


class SavedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's saved data."""

    version: int = 1
    id: str
    model: str
    source: str
    updated_at: datetime
    limit: int | None
    reserve: int | None
    compacted: bool
    system: Measure | None
    tools: Measure | None
    sections: list[SavedSection]
    roles: list[str]
    turns: list[Measure]
    anchor: Anchor | None
    model_named: bool = True


def save(conversation: Conversation) -> SavedSession:
    """Return the data to save for a conversation."""
    counter, counts = conversation.counter, conversation.model_counts()
    return SavedSession(
        id=conversation.id,
        model=conversation.model,
        source=conversation.source,
        updated_at=conversation.updated_at,
        limit=conversation.limit,
        reserve=conversation.reserve,
        compacted=conversation.compacted,
        system=conversation.system.measure(counter) if conversation.system else None,
        tools=conversation.tools.measure(counter) if conversation.tools else None,
        sections=[
            SavedSection(
                section.name,
                section.measure(counter),
                section.document_count_for(conversation.model) is not None,
            )
            for section in conversation.sections
        ],
        roles=[turn.role for turn in conversation.turns],
        turns=list(counts.turns.measures),
        anchor=counts.anchor,
    )


def restore(saved: SavedSession, counter: Counter) -> Conversation:
    """Restore a conversation without its text. `counter` must count for `saved.model`."""
    conversation = Conversation(saved.id, counter, source=saved.source)
    conversation.limit, conversation.reserve, conversation.persist = (
        saved.limit,
        saved.reserve,
        True,
    )
    conversation.system = RestoredPart(saved.system) if saved.system else None
    conversation.tools = RestoredPart(saved.tools) if saved.tools else None
    conversation.sections = [_restore_section(section, saved.model) for section in saved.sections]
    conversation.restore_turn_counts(
        [Turn(role=role) for role in saved.roles], saved.turns, saved.anchor
    )
    conversation.updated_at = conversation.assembled_at = saved.updated_at
    conversation.compacted = saved.compacted
    return conversation


def _restore_section(section: SavedSection, model: str) -> Section:
    part = RestoredPart(section.measure)
    count = SectionCount(model, section.measure, part) if section.is_document else None
    return Section(name=section.name, source=part, document_count=count)


def to_json(saved: SavedSession) -> bytes:
    return msgspec.json.encode(saved)


def from_json(data: bytes) -> SavedSession | None:
    """Decode a saved conversation, or return None if it is damaged or has another version."""
    try:
        saved = typed.decode(data, SavedSession)
    except msgspec.DecodeError:
        return None
    return saved if saved.version == 1 and len(saved.roles) == len(saved.turns) else None
