"""Finds the agent and the session that called a tool, and provides their project: its settings,
files, sessions and costs.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.agents.branches import DETACHED
from sidecar.agents.reader_registry import reader_of
from sidecar.agents.session_events import McpToolCall, StoredSession
from sidecar.budgets.budget_rules import Rules
from sidecar.config.load import load
from sidecar.config.paths import find_root
from sidecar.conversations.context_protocol import ContextUsage, SessionRow
from sidecar.cost.context_costs import BranchCost, SpendingSums
from sidecar.cost.repricing import price_calls
from sidecar.errors import BadParamsError, SidecarError
from sidecar.known_agents import all_agents
from sidecar.tasks import SharedTasks, backoff
from sidecar.text.printable import shorten
from sidecar.workspace.footprint_report import AgentFootprint, FootprintParams
from sidecar.workspace.footprints import MOST_READ, footprints_of
from sidecar.workspace.services import Services
from sidecar.workspace.usage_details import add_details
from sidecar.workspace.workspace import Workspace

BEING_READ = "Some calls have not been read yet, so costs may be too low. Ask again later."
HISTORY_SECONDS = 3.0
"""Maximum number of seconds that an answer waits while an agent's past calls are read. After that,
reading continues in the background.
"""
LINE_SECONDS = 0.3
"""Maximum number of seconds to wait until the agent has written the tool call to its file."""
_FIRST_POLL_SECONDS = 0.02
_END_BYTES = 1 << 20
_MOST_CALLERS = 20
"""How many of the agent's newest sessions may have made a call that names no session."""
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


class Project:
    """The project of the agent that started this MCP server. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.services = Services()
        self.root = find_root(folder)
        self.workspace: Workspace = self.services.roots.add(self.root.as_uri())
        self._history: SharedTasks[str, bool] = SharedTasks("mcp history", outlives_waiters=True)
        self._stop = threading.Event()
        self._has_read_all = False
        """Whether past calls are in the ledger, with the current prices. New calls are recorded
        when sessions are read.
        """

    async def aclose(self) -> None:
        """Stop the threads and close all files."""
        self._stop.set()
        await self._history.aclose()
        await self.services.aclose()
        self.services.workers.close()

    async def load_settings(self) -> None:
        """Reload the settings if they have changed."""
        previous = self.workspace.loaded
        loaded = await self.services.workers.run(partial(load, self.root, previous=previous))
        if loaded.settings != previous.settings or not self.services.configured.is_set():
            self.workspace.apply_settings(loaded, Rules(loaded.settings))
            self.services.configured.set()
        if loaded.settings.prices != previous.settings.prices:
            self._has_read_all = False

    def resolve(self, path: str, roots: Sequence[Path]) -> Path:
        """Return the absolute path to a file or folder in the project. This call blocks.

        Links to the root folder are resolved. Links inside it are not, because budgets name files
        by their paths in the project.

        Args:
            path: A path, either absolute or relative to the project.
            roots: The client's root folders. Paths inside them are also allowed.

        Raises:
            BadParamsError: The path does not exist, is not a file or folder, or is outside of all
                root folders.
        """
        allowed = [Path(os.path.realpath(root)) for root in (self.root, *roots)]
        try:
            real = Path(os.path.realpath(self.root / os.path.expanduser(path)))
            if not any(real.is_relative_to(root) for root in allowed):
                raise BadParamsError(f"{path} is outside the project {self.root}")
            mode = os.stat(real).st_mode
        except BadParamsError:
            raise
        except (OSError, ValueError) as error:  # ValueError means that the path contains a NUL
            reason = getattr(error, "strerror", None) or "invalid path"
            raise BadParamsError(f"cannot read {path}: {reason}") from None
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise BadParamsError(f"{path} is not a regular file")
        named = Path(os.path.abspath(self.root / os.path.expanduser(path)))
        for root in (self.root, *roots, *allowed):
            if named.is_relative_to(root):
                inside = Path(os.path.realpath(root)) / named.relative_to(root)
                return inside if os.path.realpath(inside) == str(real) else real
        return real

    def display_path(self, path: str | Path) -> str:
        """Format a path for display. Paths inside the project are relative to its root."""
        real_root = Path(os.path.realpath(self.root))
        absolute = Path(path)
        inside = absolute.is_relative_to(real_root)
        return (absolute.relative_to(real_root) if inside else absolute).as_posix()

    async def find_session(self, caller: Caller) -> FoundSession | None:
        """Read the sessions, and return the caller's session, or None if it is not found.

        If the call does not name its session, the agent's files may show which session made it.
        Claude Code names it, but may write the call to its session file only after it has called
        the tool. Wait for the files briefly, because they then also contain the newest usage.
        """
        await self._read_sessions()
        found = find_session(self.services.sessions(self.workspace).rows(), caller)
        is_named = found is not None and found.row.id in caller.session_ids
        is_certain = is_named or caller.possible_agent is None
        is_certain = is_certain or (found is None and caller.agent is not None)
        if is_certain and caller.tool_call is None:
            return found
        waits = caller.tool_call is not None or (found is not None and found.others > 0)
        named, ends, polls = None, dict[str, int](), 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINE_SECONDS):
                while (named := await self._find_call(caller, ends)) is None and waits:
                    polls += 1
                    await asyncio.sleep(backoff(polls, _FIRST_POLL_SECONDS, LINE_SECONDS))
                    await self._read_sessions()
        if named is not None:
            caller = caller._replace(session_ids=(named, *caller.session_ids))
        await self._read_sessions()
        return find_session(self.services.sessions(self.workspace).rows(), caller)

    async def _read_sessions(self) -> None:
        await self.services.agents.find_sessions(self.workspace)

    async def _find_call(self, caller: Caller, ends: dict[str, int]) -> str | None:
        """Return the id of the only session that has the call in its files, or None."""
        sessions = self.services.sessions(self.workspace)
        found = (
            sessions.find(row.id) for row in sessions.rows() if row.source == caller.possible_agent
        )
        stored = [session for session in found if isinstance(session, StoredSession)]
        if caller.tool_call is not None:
            paths = {session.id: session.path for session in stored if session.path}
            text = caller.tool_call.encode("utf-8", "replace")
            return await self.services.workers.run(partial(find_in_ends, paths, text, ends))
        call = McpToolCall(caller.tool, os.getppid())
        return await self.services.workers.run(partial(_only_caller, stored, call))

    async def context_usage(self, found: FoundSession) -> tuple[ContextUsage, str | None]:
        """Return a session's context usage, including a forecast.

        The second value says why the session's cost is unknown or incomplete. It is None if the
        cost is complete.
        """
        services, workspace = self.services, self.workspace
        is_complete = await self._read_calls()
        sessions = services.sessions(workspace)
        session = sessions.find(found.row.id)
        if session is None:
            raise SidecarError("the session has just been deleted")
        await services.load_prices()
        await services.counts.load_window_and_price(
            sessions.usage(session).model or workspace.model, workspace.settings
        )
        spending = services.spending(workspace)
        try:
            spent = await services.workers.run(partial(spending.spent, session.id))
        except SidecarError as error:
            workspace.costs.set_history(read=False)
            workspace.costs.stop_reading()
            return sessions.usage(session), f"The cost is unknown: {error}."
        services.update_costs(workspace, spent)
        usage = await add_details(services, workspace, session, sessions.usage(session))
        return usage, None if is_complete else BEING_READ

    async def spent(self, found: FoundSession) -> tuple[SpendingSums, str | None]:
        """Return the sums from the ledger, and why they are incomplete, or None if they are not.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        services = self.services
        is_complete = await self._read_calls()
        await services.load_prices()
        spending = services.spending(self.workspace)
        spent = await services.workers.run(partial(spending.spent, found.row.id))
        return spent, None if is_complete else BEING_READ

    async def recorded_branch_cost(self, found: FoundSession) -> BranchCost | None:
        """Return the cost of the branch that the session's agent recorded last.

        Returns None if it recorded none, or if the project is in a git repository. `spent` returns
        the cost of the branch that is checked out there.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        services = self.services
        spending = services.spending(self.workspace)
        own = services.sessions(self.workspace).find(found.row.id)
        recorded = own.branch if isinstance(own, StoredSession) else None
        has_git = await services.workers.run(spending.branch_at) is not None
        if has_git or recorded in (None, DETACHED):
            return None
        return await services.workers.run(partial(spending.branch_cost, recorded))

    async def footprint(self, caller: Caller) -> AgentFootprint | None:
        """Return what the caller sends before the first word, or None if it is unknown."""
        found = None if caller.agent else await self.find_session(caller)
        agent = caller.agent or (found.row.source if found else None)
        if agent is None:
            return None
        await self.services.agents.find_all_sessions(self.workspace, MOST_READ)
        params = FootprintParams(agent=agent)
        report = await footprints_of(self.services, self.workspace, params)
        return report.agents[0]

    async def _read_calls(self) -> bool:
        """Read past calls, and price calls again whose prices have changed.

        Returns whether the ledger has all past calls.
        """
        if not self._has_read_all:
            with suppress(TimeoutError, SidecarError):  # the next read of the ledger also fails
                self._has_read_all = await self._history.run("all", self._read_all, HISTORY_SECONDS)
        return self._has_read_all

    async def _read_all(self) -> bool:
        services, workspace = self.services, self.workspace
        await services.agents.read_calls(workspace, self._stop)
        spending = services.spending(workspace)
        await services.workers.run(lambda: price_calls(spending.book.ledger, self._stop))
        return services.agents.known(workspace).is_read

    async def caller_usage(
        self, caller: Caller
    ) -> tuple[ContextUsage, FoundSession] | tuple[None, None]:
        """Return the usage of the caller's session, or None if the session is unknown."""
        found = await self.find_session(caller)
        if found is None or not found.is_callers:
            return None, None
        sessions = self.services.sessions(self.workspace)
        session = sessions.find(found.row.id)
        return (None, None) if session is None else (sessions.usage(session), found)


def find_in_ends(paths: Mapping[str, str], text: bytes, ends: dict[str, int]) -> str | None:
    """Return the key of the first file with this text in its last part, or None.

    Args:
        paths: The files' paths.
        text: The text.
        ends: How far each file has been searched. It is updated, so the next search reads only
            what was appended.
    """
    for name, path in paths.items():
        with suppress(OSError), open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _END_BYTES, min(size, ends.get(path, 0)) - len(text)))
            data = file.read(_END_BYTES)
            ends[path] = file.tell()
            if text in data:
                return name
    return None


def _only_caller(sessions: Sequence[StoredSession], call: McpToolCall) -> str | None:
    """Return the id of the only session that made a call, or None if several or none did."""
    callers = list[str]()
    for session in sessions[:_MOST_CALLERS]:
        with suppress(OSError):
            if reader_of(session.source).made_call(session.path, session.id, call):
                callers.append(session.id)
    return callers[0] if len(callers) == 1 else None
