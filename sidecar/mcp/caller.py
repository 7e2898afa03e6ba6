"""Identifies the coding agent and the session that called an MCP tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.known_agents import AGENTS

if TYPE_CHECKING:
    from sidecar.context.protocol import SessionRow

_CLIENTS = {
    "codex-mcp-client": "codex",
    "gemini-cli-mcp-client": "gemini-cli",
    "qwen-cli-mcp-client": "qwen-code",
    "visual studio code": "copilot-chat",
    "github-copilot-developer": "copilot-cli",
    "kimi": "kimi-code",
    "mistral-vibe": "vibe",
}
"""Maps prefixes of `clientInfo.name` to agents, for clients that do not report the agent's name."""
_SESSION_KEYS = frozenset({"session_id", "sessionid", "thread_id", "threadid", "conversation_id"})
_DEPTH = 3


class Caller(NamedTuple):
    """The MCP client that called a tool."""

    name: str = ""
    """The name that the client reports (`clientInfo.name`)."""
    session_ids: tuple[str, ...] = ()
    """Possible session ids in the call's `_meta`."""

    @property
    def agent(self) -> str | None:
        """The agent's name, or None if the client is unknown."""
        name = self.name.lower()
        names = {**_CLIENTS, **{agent: agent for agent in AGENTS}}
        known = [start for start in names if name.startswith(start)]
        return names[max(known, key=len)] if known else None


class FoundSession(NamedTuple):
    """The session that a call is attributed to.

    `others` is the number of other sessions that may have made the call.
    """

    row: SessionRow
    others: int = 0


def session_ids(meta: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the session ids in a call's `_meta`. Some agents, such as Codex, send them."""
    return tuple(dict.fromkeys(_ids_in(meta or {}, _DEPTH)))


def _ids_in(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, member in value.items():
        if isinstance(member, str) and key.lower().replace("-", "_") in _SESSION_KEYS:
            yield member
        elif isinstance(member, Mapping) and depth:
            yield from _ids_in(member, depth - 1)


def find_session(rows: Sequence[SessionRow], caller: Caller) -> FoundSession | None:
    """Return the session that made a call, or None if the agent has no known session.

    If the call does not name its session, the agent's newest running session is used. If none is
    running, the agent's newest session is used, preferably one that has not ended.

    Args:
        rows: The sessions in the folder, newest first.
        caller: The client that made the call.
    """
    named = next((row for row in rows if row.id in caller.session_ids), None)
    if named is not None:
        return FoundSession(named)
    own = [row for row in rows if row.source == caller.agent]
    running = [row for row in own if row.state == "running"]
    candidates = running or [row for row in own if row.state != "ended"][:1] or own[:1]
    return FoundSession(candidates[0], len(candidates) - 1) if candidates else None
