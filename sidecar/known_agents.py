"""Lists the coding agents whose session files can be read.

To add an agent, add a table to `known_agents.toml`, whose head says which agents need a reader.
Settings, costs and agents all use this module.
"""

from __future__ import annotations

from functools import cache

import msgspec

from sidecar import typed


class FolderSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting of an agent that names the folder of its sessions."""

    key: str
    """The setting's name, with a dot between the levels."""
    files: tuple[str, ...]
    """The settings files, in the form of `Agent.folders`. A relative path is in each project."""
    inner: str = ""
    """The folder of the sessions inside the named folder."""


class WindowSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting of an agent that contains the context window of a model."""

    file: str
    """The settings file, relative to the agent's folder."""
    window: str
    """The setting's name, with a dot between the levels. `{model}` stands for the model's name."""
    model: str = ""
    """The name of the setting that contains the model's name, if `window` does not."""


Names = str | tuple[str, ...]
"""The place of a value in a record, with a dot between the levels; the first of several counts.

A list on the way stands for its last item that has the value. In a table, the first name is a
column; if it contains JSON, the others are in this JSON.
"""


class CallFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Where an agent's files have a record of each call, or of the totals of a session."""

    files: tuple[str, ...]
    """The files in the agent's folders.

    `*` is any part of a name, and `{id}` the part that is the session's id.

    Each line of a `.jsonl` file (or `.zst`) is a record. A `.json` file is written as a whole, and
    is a record or has a list of them. Any other file is a SQLite database.
    """
    input: Names
    """The number of prompt tokens. All numbers may be missing."""
    output: Names
    """The number of output tokens. A record without any tokens is not a call."""
    rows: str = ""
    """The place of the list in a `.json` file, or the table of a database."""
    cache_read: Names = ()
    cache_write: Names = ()
    reasoning: Names = ()
    input_includes_cache: bool = False
    output_includes_reasoning: bool = True
    id: Names = ()
    """What identifies a call, or the total in a session. All names count.

    Defaults to the call's time and numbers, which copies share.
    """
    at: Names = ()
    """The time, in ISO 8601 or in seconds or milliseconds since 1970.

    Defaults to the time of the file.
    """
    has_local_times: bool = False
    """Whether times without a time zone are local, instead of UTC."""
    model: Names = ()
    provider: Names = ()
    session: Names = ()
    """The session's id. Defaults to `{id}` in `files`."""
    beside: Names = ()
    """Not empty for calls beside the conversation, such as those that make titles."""
    window: Names = ()
    """The context window in tokens."""
    cost: Names = ()
    """The billed amount in USD."""
    agent_cost: Names = ()
    """The amount in USD according to the agent's own price list."""
    has_totals: bool = False
    """Whether the numbers are totals of a session that grow with each call.

    What is added between two reads is recorded as one call.
    """
    count: Names = ()
    """The number of calls in a total. If it grows by one, the size of the context is known."""


class SessionFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Where an agent's files describe a session. All values may be missing."""

    file: str = ""
    """A file in the same folder, in which `{id}` is the session's id, or the table of a database.

    It may be in JSON, JSON Lines or TOML. By default, the values are in the lines of a `.jsonl`
    file, in a `.json` file outside of its list, or in a database's table of records.
    """
    id: str = "id"
    """The column of the table that `file` names."""
    folder: Names = ()
    title: Names = ()
    """A title that the agent or the user gave, not the first prompt."""
    model: Names = ()
    branch: Names = ()
    subagent_of: Names = ()
    """The session that started this one as a sub-agent, in the same database."""
    began: Names = ()
    ended: Names = ()
    """Not empty after the end of the session."""


class Compaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When an agent compacts a conversation by default: at the smaller of two sizes."""

    share: tuple[int, int] = (1, 1)
    """The numerator and the denominator of a share of the window."""
    room: int = 0
    """The number of tokens that stay free in the window."""

    def size(self, window: int) -> int:
        """Return the size in tokens."""
        return min(window * self.share[0] // self.share[1], window - self.room)


class Agent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A coding agent."""

    reader: str | None = None
    """The agent whose reader reads this agent's files, because they have the same format."""
    calls: CallFields | None = None
    """Where the records of calls are, for agents without a reader of their own."""
    sessions: SessionFields = SessionFields()
    """Where the sessions of these calls are described."""
    folders: tuple[str, ...] = ()
    """The folders that may contain the agent's files.

    `~` is the home folder, and `{data}` is a property of `agents.folders.Places`. A path may start
    with an environment variable (`$NAME`). If the variable is set, no other path is used. If it is
    not set, the path is ignored. `*` stands for any part of a name.
    """
    session_folders: tuple[str, ...] = ()
    """Variables that name a folder which contains nothing but sessions, in the same form."""
    settings: tuple[FolderSetting, ...] = ()
    """The settings that name such a folder. Earlier sessions may still be in `folders`."""
    windows: tuple[WindowSetting, ...] = ()
    """Where the settings contain context windows, for agents without a reader of their own."""
    database_variable: str | None = None
    """The environment variable that names an additional database.

    A relative path is in the agent's folder.
    """
    project_file: str | None = None
    """The name of the agent's file in each project."""
    project_file_variable: str | None = None
    """The environment variable that names a different file."""
    extension: str | None = None
    """The id of the agent's extension, which keeps files in the user data folders of editors."""
    omits_calls: bool = False
    """Whether the agent's files omit some calls, so that its costs are a lower bound.

    This is not set for agents that omit only the calls that generate titles.
    """
    compacts_at: Compaction = Compaction()
    """Forks compact like the agent whose reader they use. Some readers have a rule of their own."""
    has_credits: bool = False
    """Whether the agent reports its costs in subscription credits."""
    mcp_client: str | None = None
    """The first words of `clientInfo.name` if the agent's MCP client does not report its name."""
    session_variable: str | None = None
    """The environment variable in which the agent passes its session's id to MCP servers."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    editors: tuple[str, ...]
    editor_servers: tuple[str, ...]
    agents: dict[str, Agent]


@cache
def _file() -> _File:
    return typed.read_table("sidecar", "known_agents.toml", _File)


def all_agents() -> dict[str, Agent]:
    """Return the agents by name."""
    return _file().agents


def editors() -> tuple[str, ...]:
    """Return the names of the folders in which VS Code and its forks keep the user's data."""
    return _file().editors


def editor_servers() -> tuple[str, ...]:
    """Return the names of the folders of these editors' servers, in the home folder."""
    return _file().editor_servers


@cache
def lower_bound_agents() -> frozenset[str]:
    """Return the agents whose costs are a lower bound."""
    return frozenset(name for name, agent in all_agents().items() if agent.omits_calls)


@cache
def credit_agents() -> frozenset[str]:
    """Return the agents that report their costs in subscription credits."""
    return frozenset(name for name, agent in all_agents().items() if agent.has_credits)
