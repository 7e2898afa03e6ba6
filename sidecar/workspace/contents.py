"""What fills the context of an agent's session, read from its store when somebody asks."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sidecar.context.protocol import ContextPart
from sidecar.workspace.sessions import CountedSession

if TYPE_CHECKING:
    from sidecar.context.conversation import Conversation
    from sidecar.context.protocol import ContextUsage
    from sidecar.workspace.shared import Shared

TOOLS_NAMED = 4
"""How many tools are listed with their results; those of the others are added up."""
_LABELS = {
    "system": "System prompt and tools",
    "instructions": "Instructions",
    "user": "User messages",
    "assistant": "Assistant messages",
    "call": "Tool calls",
    "attachment": "Attachments",
}


async def add_contents(
    services: Shared, session: Conversation | CountedSession, usage: ContextUsage
) -> ContextUsage:
    """Add what fills the context of an agent's session, if its store shows it."""
    if not isinstance(session, CountedSession) or session.path is None or usage.tokens is None:
        return usage
    found = await services.workers.run(
        partial(read_contents, session.source, session.path, session.id, usage.tokens)
    )
    return msgspec.structs.replace(usage, contents=found)


def read_contents(agent: str, path: str, session: str, tokens: int) -> list[ContextPart]:
    """Return the estimated parts of a context, largest first. They add up to `tokens`. Blocking.

    The result is empty if the store cannot be read or does not show the parts.
    """
    from sidecar.agents.contents import ContextContents
    from sidecar.agents.registry import reader_of

    try:
        contents = ContextContents(reader_of(agent).contents(path, session))
    except OSError:
        return []
    parts: Counter[str] = Counter()
    named = 0
    for share in contents.split(tokens):
        label = _LABELS.get(share.kind)
        if label is None:
            named += 1
            is_named = share.tool and named <= TOOLS_NAMED
            label = f"Results of {share.tool}" if is_named else "Other tool results"
        parts[label] += share.tokens
    return [ContextPart(label=label, tokens=number) for label, number in parts.most_common()]
