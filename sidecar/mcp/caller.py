"""Identifies the coding agent and the session that called an MCP tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.known_agents import all_agents
from sidecar.text.printable import shorten

if TYPE_CHECKING:
    from sidecar.conversations.context_protocol import SessionRow

_SDK_DEFAULT = "mcp"
"""The name of clients that keep the Python SDK's default. Vibe does, and so may any other."""
_TOOL_CALL_KEY = "claudecode/toolUseId"
_SESSION_KEYS = frozenset({"session_id", "sessionid", "thread_id", "threadid", "conversation_id"})
_DEPTH = 3
_LONGEST_NAME = 100


class Caller(NamedTuple):
    """The MCP client that called a tool."""

    name: str = ""
    """The name that the client reports (`clientInfo.name`), shortened."""
    session_ids: tuple[str, ...] = ()
    """Possible session ids in the call's `_meta` and in the environment, most specific first."""
    tool_call: str | None = None
    """The id of the model's tool call. The caller's session file contains it, perhaps later."""
    tool: str = ""

    @property
    def agent(self) -> str | None:
        """The agent's name, or None if the client is unknown."""
        name = self.name.lower()
        clients = {one.mcp_client or agent: agent for agent, one in all_agents().items()}
        names = clients | {agent: agent for agent in all_agents()}
        known = [
            start
            for start in names
            if name.startswith(start) and not name[len(start) : len(start) + 1].isalnum()
        ]
        return names[max(known, key=len)] if known else None

    @property
    def possible_agent(self) -> str | None:
        """The agent, or the only one that is known to keep the SDK's default name."""
        return "vibe" if self.name.lower() == _SDK_DEFAULT else self.agent


class FoundSession(NamedTuple):
    """The session that a call is attributed to.

    `others` is the number of other sessions that may have made the call.
    """

    row: SessionRow
    others: int = 0
    is_callers: bool = True
    """Whether the caller's agent wrote the session. False if the client is unknown."""


def identify(
    client: str, meta: Mapping[str, Any] | None, variables: Mapping[str, str], tool: str = ""
) -> Caller:
    """Return the caller of a tool.

    Args:
        client: The name that the client reports.
        meta: The call's `_meta`.
        variables: The server's environment variables.
        tool: The name of the called tool.
    """
    ids, tool_call = session_ids(meta), (meta or {}).get(_TOOL_CALL_KEY)
    agent = all_agents().get(Caller(client).agent or "")
    # Another agent may have started this one, which then inherits the variables of both.
    if agent and (own := variables.get(agent.session_variable or "")):
        ids = (*ids, own)
    named = tool_call if isinstance(tool_call, str) else None
    return Caller(shorten(client, _LONGEST_NAME), ids, named, tool)


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
    """Return the session that made a call, or None if there is none in the folder.

    If the call does not name its session, the agent's newest running session is used. If none is
    running, the agent's newest session is used, preferably one that has not ended. For an unknown
    client, the newest running session of any agent is used, if possible one of its possible agent.

    Args:
        rows: The sessions in the folder, newest first.
        caller: The client that made the call.
    """
    by_id = {row.id: row for row in rows if caller.agent in (None, row.source)}
    named = next((by_id[name] for name in caller.session_ids if name in by_id), None)
    if named is not None:
        return FoundSession(named)
    own = [row for row in rows if row.source == caller.possible_agent]
    running = [row for row in own if row.state == "running"]
    if caller.agent is not None:
        candidates = running or [row for row in own if row.state != "ended"][:1] or own[:1]
        return FoundSession(candidates[0], len(candidates) - 1) if candidates else None
    guesses = running or [row for row in rows if row.state == "running"]
    return FoundSession(guesses[0], len(guesses) - 1, is_callers=False) if guesses else None
