"""Lists the coding agents whose session files can be read.

To add an agent, add a table to `known_agents.toml`, and a reader in `sidecar.agents.readers` unless
another agent's reader reads its files.
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


class Agent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A coding agent."""

    reader: str | None = None
    """The agent whose reader reads this agent's files, because they have the same format."""
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
    has_credits: bool = False
    """Whether the agent reports its costs in subscription credits."""
    mcp_client: str | None = None
    """The first words of `clientInfo.name` if the agent's MCP client does not report its name."""
    session_variable: str | None = None
    """The environment variable in which the agent passes its session's id to MCP servers."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    editors: tuple[str, ...]
    editor_servers: tuple[str, ...]
    without_sessions: tuple[str, ...]
    agents: dict[str, Agent]


@cache
def _file() -> _File:
    return typed.read_table("sidecar", "known_agents.toml", _File)


def all_agents() -> dict[str, Agent]:
    """Return the agents by name."""
    return _file().agents


def agent_names() -> tuple[str, ...]:
    """Return the names of all agents, including those whose sessions cannot be read."""
    return (*all_agents(), *_file().without_sessions)


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
