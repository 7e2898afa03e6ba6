"""What a model's server counts of a conversation: asked of a copy, and taken by what is in force.

Asking changes nothing and is done without any lock; taking awaits nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sidecar.context.served import texts_counted, uncounted
from sidecar.endpoints.outcome import EndpointCount, Miss

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.config.settings import Settings
    from sidecar.context.session import Session
    from sidecar.endpoints.registry import Endpoints
    from sidecar.workspace.counts import Counts


class ChatCount(NamedTuple):
    """An endpoint's count of a conversation: of the whole, or of single texts."""

    total: int | None = None
    texts: Mapping[int, int] = {}
    """Tokens by turn, where it counts texts only."""
    server: str = ""
    """What counted the texts."""
    due: bool = False
    """Whether it is to be asked again: something was not counted in its time."""


async def ask(counts: Counts, session: Session, settings: Settings) -> ChatCount | None:
    """Have the endpoint count the whole chat: one request for a change. Where it counts texts only,
    the new turns': one request each. `session` is a copy that nobody else works on."""
    endpoints = counts.endpoints(settings)
    if session.known_by_counts or not endpoints.serves(session.model):
        return None
    chat = await counts.workers.run(partial(chat_of, session))
    tools = getattr(session.tools, "tools", None)
    counted = await endpoints.count_chat(session.model, chat, tools, counts.seconds)
    if isinstance(counted, EndpointCount):
        return ChatCount(counted.tokens)
    due = counts.missed(session.model, settings, counted.kind)
    if not counts.asks(session.model, settings):
        return ChatCount(due=due)
    count, missed = await _ask_texts(counts, session, endpoints)
    if missed is not None:
        due = counts.missed(session.model, settings, missed.kind) or due
    return count._replace(due=due)


async def _ask_texts(
    counts: Counts, session: Session, endpoints: Endpoints
) -> tuple[ChatCount, Miss | None]:
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
            return ChatCount(None, counted, name), found
    return ChatCount(None, counted, name), None


def take(session: Session, count: ChatCount | None, first: int) -> None:
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


def chat_of(session: Session) -> list[dict[str, Any]]:
    """The conversation as messages: the system prompt first, then the turns."""
    system = getattr(session.system, "turn", None)
    turns = session.turns if system is None else [system, *session.turns]
    return [msgspec.to_builtins(turn) for turn in turns]
