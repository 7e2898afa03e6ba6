"""Lists the coding agents whose session files can be read.

To add an agent, add a row here and a reader in `sidecar.agents.readers`. This module imports
no other module of this project, because settings, costs and agents all use it.
"""

from __future__ import annotations

from typing import NamedTuple


class Agent(NamedTuple):
    """A coding agent. Its name is used in the `agents` settings and as the `source` of sessions."""

    name: str
    folders: tuple[str, ...] = ()
    """The folders that may contain the agent's files.

    `~` is the home folder, and `{data}` is a property of `agents.places.Places`. A path may start
    with an environment variable (`$NAME`). If the variable is set, no other path is used. If it is
    not set, the path is ignored.
    """
    database_variable: str | None = None
    """The environment variable that names an additional database."""
    project_file: str | None = None
    """The name of the agent's file in each project."""
    is_in_editors: bool = False
    """Whether the agent is an extension that keeps files in the user data folders of editors."""
    omits_calls: bool = False
    """Whether the agent's files omit some calls, so that its costs are a lower bound.

    This is not set for agents that omit only the calls that generate titles.
    """
    has_credits: bool = False
    """Whether the agent reports its costs in subscription credits."""
    deletes_records: bool = False
    """Whether the agent deletes old records. If so, its records must be read soon."""


AGENTS = {
    agent.name: agent
    for agent in (
        Agent("claude-code", ("$CLAUDE_CONFIG_DIR", "~/.claude", "{xdg_config}/claude")),
        Agent("codex", ("$CODEX_HOME", "~/.codex")),
        Agent("copilot-chat", is_in_editors=True, has_credits=True),
        Agent("copilot-cli", ("$COPILOT_HOME", "~/.copilot"), has_credits=True),
        Agent("gemini-cli", ("~/.gemini",), omits_calls=True, deletes_records=True),
        Agent(
            "opencode", ("$OPENCODE_DATA_DIR", "{data}/opencode"), "OPENCODE_DB",
            omits_calls=True,
        ),
        Agent(
            "cline",
            (
                "$CLINE_SESSION_DATA_DIR", "$CLINE_DATA_DIR/sessions", "$CLINE_DIR/data/sessions",
                "~/.cline/data/sessions",
            ),
            is_in_editors=True,
        ),
        Agent("roo-code", is_in_editors=True),
        Agent("kilo-code", ("{data}/kilo",), "KILO_DB", is_in_editors=True, omits_calls=True),
        Agent("goose", ("$GOOSE_PATH_ROOT/data", "{data}/goose", "{config}/Block/goose/data")),
        Agent("crush", ("$CRUSH_GLOBAL_DATA", "{local_data}/crush")),
        Agent("zed", ("{data}/zed", "{local_data}/Zed")),
        Agent("amp", ("$AMP_DATA_DIR", "{data}/amp"), omits_calls=True),
        Agent("vibe", ("$VIBE_HOME", "~/.vibe"), deletes_records=True),
        Agent("continue", ("$CONTINUE_GLOBAL_DIR", "~/.continue")),
        Agent("aider", project_file=".aider.chat.history.md"),
        Agent("qwen-code", ("$QWEN_DATA_DIR", "~/.qwen")),
        Agent("pi", ("$PI_CODING_AGENT_DIR", "~/.pi/agent"), omits_calls=True),
        Agent("kimi-cli", ("$KIMI_SHARE_DIR", "~/.kimi")),
        Agent("kimi-code", ("$KIMI_CODE_HOME", "~/.kimi-code")),
    )
}  # fmt: skip

LOWER_BOUND_AGENTS = frozenset(agent.name for agent in AGENTS.values() if agent.omits_calls)
CREDIT_AGENTS = frozenset(agent.name for agent in AGENTS.values() if agent.has_credits)
DELETING_AGENTS = frozenset(agent.name for agent in AGENTS.values() if agent.deletes_records)
