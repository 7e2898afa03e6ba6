"""Lists the coding agents whose session files can be read.

To add an agent, add a row here and a reader in `sidecar.agents.readers`. This module imports
no other module of this project, because settings, costs and agents all use it.
"""

from __future__ import annotations

from typing import NamedTuple


class FolderSetting(NamedTuple):
    """A setting of an agent that names the folder of its sessions."""

    key: str
    """The setting's name, with a dot between the levels."""
    files: tuple[str, ...]
    """The settings files, in the form of `Agent.folders`. A relative path is in each project."""
    inner: str = ""
    """The folder of the sessions inside the named folder."""


class Agent(NamedTuple):
    """A coding agent. Its name is used in the `agents` settings and as the `source` of sessions."""

    name: str
    folders: tuple[str, ...] = ()
    """The folders that may contain the agent's files.

    `~` is the home folder, and `{data}` is a property of `agents.places.Places`. A path may start
    with an environment variable (`$NAME`). If the variable is set, no other path is used. If it is
    not set, the path is ignored.
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
    is_in_editors: bool = False
    """Whether the agent is an extension that keeps files in the user data folders of editors."""
    omits_calls: bool = False
    """Whether the agent's files omit some calls, so that its costs are a lower bound.

    This is not set for agents that omit only the calls that generate titles.
    """
    has_credits: bool = False
    """Whether the agent reports its costs in subscription credits."""


AGENTS = {
    agent.name: agent
    for agent in (
        Agent("claude-code", ("$CLAUDE_CONFIG_DIR", "~/.claude", "{xdg_config}/claude")),
        Agent("codex", ("$CODEX_HOME", "~/.codex")),
        Agent("copilot-chat", is_in_editors=True, has_credits=True),
        Agent("copilot-cli", ("$COPILOT_HOME", "~/.copilot"), has_credits=True),
        Agent(
            "gemini-cli", ("$GEMINI_CLI_HOME/.gemini", "~/.gemini"),
            omits_calls=True,
        ),
        Agent("opencode", ("{data}/opencode",), database_variable="OPENCODE_DB", omits_calls=True),
        Agent(
            "cline",
            (
                "$CLINE_SESSION_DATA_DIR", "$CLINE_DATA_DIR/sessions", "$CLINE_DIR/data/sessions",
                "~/.cline/data/sessions",
            ),
            is_in_editors=True,
        ),
        Agent("roo-code", is_in_editors=True),
        Agent(
            "kilo-code", ("{data}/kilo",), database_variable="KILO_DB",
            is_in_editors=True, omits_calls=True,
        ),
        Agent("goose", ("$GOOSE_PATH_ROOT/data", "{data}/goose", "{config}/Block/goose/data")),
        Agent("crush", ("$CRUSH_GLOBAL_DATA", "{local_data}/crush")),
        Agent(
            "zed",
            (
                "$FLATPAK_XDG_DATA_HOME/zed", "{data}/zed", "{local_data}/Zed",
                "~/.var/app/dev.zed.Zed/data/zed",
            ),
        ),
        Agent("amp", ("{data}/amp",), omits_calls=True),
        Agent(
            "vibe", ("$VIBE_HOME", "~/.vibe"),
            settings=(
                FolderSetting(
                    "session_logging.save_dir",
                    ("$VIBE_HOME/config.toml", "~/.vibe/config.toml", ".vibe/config.toml"),
                ),
            ),
        ),
        Agent("continue", ("$CONTINUE_GLOBAL_DIR", "~/.continue")),
        Agent(
            "aider", project_file=".aider.chat.history.md",
            project_file_variable="AIDER_CHAT_HISTORY_FILE",
        ),
        Agent(
            "qwen-code", ("$QWEN_RUNTIME_DIR", "$QWEN_HOME", "~/.qwen"),
            settings=(
                FolderSetting(
                    "advanced.runtimeOutputDir",
                    (
                        "$QWEN_CODE_SYSTEM_DEFAULTS_PATH", "$QWEN_CODE_SYSTEM_SETTINGS_PATH",
                        "/etc/qwen-code/system-defaults.json", "/etc/qwen-code/settings.json",
                        "$QWEN_HOME/settings.json", "~/.qwen/settings.json", ".qwen/settings.json",
                    ),
                    inner="projects",
                ),
            ),
        ),
        Agent(
            "pi", ("$PI_CODING_AGENT_DIR", "~/.pi/agent"),
            session_folders=("$PI_CODING_AGENT_SESSION_DIR",),
            settings=(
                FolderSetting(
                    "sessionDir",
                    (
                        "$PI_CODING_AGENT_DIR/settings.json", "~/.pi/agent/settings.json",
                        ".pi/settings.json",
                    ),
                ),
            ),
        ),
        Agent("kimi-cli", ("$KIMI_SHARE_DIR", "~/.kimi")),
        Agent("kimi-code", ("$KIMI_CODE_HOME", "~/.kimi-code")),
    )
}  # fmt: skip

LOWER_BOUND_AGENTS = frozenset(agent.name for agent in AGENTS.values() if agent.omits_calls)
CREDIT_AGENTS = frozenset(agent.name for agent in AGENTS.values() if agent.has_credits)
