"""Writes the tables of docs/reference/agents.md from `known_agents.toml` and `agents_page.toml`.

Run `python -m tests.agents_page`.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from sidecar.known_agents import Agent, all_agents
from tests.e2e.agents.adapters import AGENTS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/agents.md"


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page says about an agent."""

    title: str
    numbers: str
    """How exact the numbers are."""
    where: str = ""
    """The places of the agent's files. Defaults to its folders, without what is in them."""
    overridden: str = ""
    """What changes the places. Defaults to the agent's variables."""
    tested: str = "from public sources"
    """Where the format is from. Not used for agents that `tests/e2e/agents` runs."""
    lacks: str = ""
    """What the agent's files do not contain."""


class Unread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent without token counts in local files."""

    title: str
    why: str


class Texts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `agents_page.toml`."""

    agents: dict[str, Description]
    unread: list[Unread]


def texts() -> Texts:
    """Read `agents_page.toml`."""
    return msgspec.toml.decode((ROOT / "tests/agents_page.toml").read_bytes(), type=Texts)


def tables() -> dict[str, list[list[str]]]:
    """Return the rows of each table by the start of its heading."""
    found = texts()
    if missing := all_agents().keys() - found.agents.keys():
        raise SystemExit(f"describe in tests/agents_page.toml: {', '.join(sorted(missing))}")
    agents = {name: (agent, found.agents[name]) for name, agent in all_agents().items()}
    return {
        "| agent | where |": [
            [
                f"`{name}` ({text.title})",
                text.where or _where(agent),
                text.overridden or _variables(agent),
                text.numbers,
            ]
            for name, (agent, text) in agents.items()
        ],
        "| agent | tested version |": [
            [f"`{name}`", _tested(name, text), text.lacks] for name, (_, text) in agents.items()
        ],
        "| agent | why it is not read |": [[one.title, one.why] for one in found.unread],
    }


def _where(agent: Agent) -> str:
    if agent.extension:
        return f"`globalStorage/{agent.extension}/tasks/` in the user data of VS Code and its forks"
    return ", ".join(f"`{_path(one)}/`" for one in agent.folders if one[0] != "$")


def _path(folder: str) -> str:
    places = {"{config}": "~/.config", "{xdg_config}": "~/.config", "{data}": "~/.local/share"}
    places["{local_data}"] = places["{data}"]
    return re.sub(r"\{\w+\}", lambda found: places[found[0]], folder)


def _variables(agent: Agent) -> str:
    paths = [path for path in (*agent.folders, *agent.session_folders) if path[0] == "$"]
    names = [f"`{path[1:].partition('/')[0]}`" for path in paths]
    names += [f"`{agent.database_variable}`"] if agent.database_variable else []
    if any(path.startswith("{data}") for path in agent.folders):
        names.append("`XDG_DATA_HOME`")
    return ", ".join(dict.fromkeys(names))


def _tested(name: str, text: Description) -> str:
    """Return the version that the tests run, with what `tested` adds to it."""
    version = AGENTS[name].package.version if name in AGENTS else ""
    return (
        f"{version} {text.tested}".strip()
        if version and text.tested[0] == "("
        else version or text.tested
    )


def page(text: str) -> str:
    """Return the page with its tables written again."""
    for heading, rows in tables().items():
        start = text.index("\n" + heading) + 1
        head = "\n".join(text[start:].splitlines()[:2])
        end = text.index("\n\n", start)
        body = "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)
        text = text[:start] + f"{head}\n{body}" + text[end:]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
