"""Adds hooks that check the caps to the user's configuration of coding agents, and removes them."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from sidecar import typed
from sidecar.agents.folders import Places
from sidecar.config.edited_files import FileEdit, own_command, read_text
from sidecar.config.settings import Agents
from sidecar.errors import SidecarError
from sidecar.hooks.prompt_hook import AFTER_TURN, ANSWER
from sidecar.operating_system import IS_WINDOWS
from sidecar.text.json_objects import add_item, remove_items


class HookAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent whose hooks can stop a prompt."""

    files: tuple[str, ...]
    """The user's file to change, in the form of `known_agents.Agent.folders`."""
    form: str
    """What the file contains.

    `settings`: JSON whose `hooks` lists hooks by event. `toml`: a `[[hooks]]` table for each hook.
    `own-json`: a file of our own in Copilot's form. Else the name of a plugin in `plugins`, which
    is copied.
    """
    refusal: str
    """How a prompt is refused: the `decision` in the answer, or `exit-2`."""
    warning: Literal["systemMessage", "exit-2", "text"]
    """How the user is told about a soft cap: a field of the answer, `exit-2`, or plain text."""
    before: str = ""
    """The event before a prompt is sent."""
    after: str = ""
    """The event after a turn."""
    timeout: int = 0
    """How long the agent waits, in its own unit."""
    compaction: str = ""
    """A pattern that is found in what a compaction adds to a session's file."""
    asks_each_round: bool = False
    """Whether the agent also runs the hook after each round of tools, with an empty prompt."""
    note: str = ""
    """What the user has to do after installing."""


@cache
def hook_agents() -> dict[str, HookAgent]:
    """Return the agents by name."""
    return typed.read_table("sidecar.hooks", "agents.toml", dict[str, HookAgent])


def hook_command(agent: str) -> list[str]:
    """Return the command of an agent's hook."""
    return [*own_command(), "hooks", ANSWER, agent]


def hook_file(name: str) -> Path:
    """Return the user's file in which an agent's hooks are installed."""
    return Places.of(Agents()).in_use(hook_agents()[name].files)[0]


def is_installed(name: str) -> bool:
    """Return whether an agent's file contains our hooks. Raises SidecarError."""
    return _mark(name) in (read_text(hook_file(name)) or "")


class InstalledHooks(msgspec.Struct, frozen=True):
    """The hooks in an agent's file."""

    agent: str
    file: str
    problem: str
    """Why the agent does not run them, and what to do, or an empty string."""


def find_installed() -> list[InstalledHooks]:
    """Return the hooks of all agents that have them."""
    found = []
    for name in hook_agents():
        try:
            if is_installed(name):
                found.append(InstalledHooks(name, str(hook_file(name)), _problem_of(name)))
        except SidecarError as error:
            found.append(InstalledHooks(name, str(hook_file(name)), str(error)))
    return found


def _problem_of(name: str) -> str:
    if HookChange(name, installs=True).is_needed():
        return f"outdated; run `token-sidecar hooks --install {name}`"
    if name == "codex" and not _is_trusted_by_codex():
        return "not trusted; open `/hooks` in Codex"
    return ""


def _is_trusted_by_codex() -> bool:
    """Return whether Codex runs our hooks. It stores a hash of each hook that the user trusts."""
    path = hook_file("codex")
    try:
        settings = tomllib.loads(read_text(path.with_name("config.toml")) or "")
        states = settings.get("hooks", {}).get("state", {})
        groups = json.loads(read_text(path) or "{}").get("hooks", {})
        return _are_trusted(path, groups, states)
    except (ValueError, AttributeError, TypeError):  # Codex does not understand the files either
        return False


def _are_trusted(path: Path, groups: dict[str, Any], states: dict[str, Any]) -> bool:
    places = [
        (event, f"{number}:{place}", hook)
        for event in (hook_agents()["codex"].before, hook_agents()["codex"].after)
        for number, group in enumerate(groups.get(event, ()))
        for place, hook in enumerate(group.get("hooks", ()))
        if _mark("codex") in hook.get("command", "")
    ]
    return all(
        any(
            key.endswith(f"{path.name}:{_CODEX_EVENTS[event]}:{place}")
            and state.get("trusted_hash") == codex_hash(event, hook)
            for key, state in states.items()
        )
        for event, place, hook in places
    )


_CODEX_EVENTS = {"UserPromptSubmit": "user_prompt_submit", "Stop": "stop"}


def codex_hash(event: str, hook: dict[str, Any]) -> str:
    """Return the hash by which Codex 0.171 knows a hook."""
    known = {"event_name": _CODEX_EVENTS[event], "hooks": [{"async": False, **hook}]}
    text = json.dumps(known, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True)
class HookChange(FileEdit):
    """Installs or removes the hooks of an agent."""

    name: str
    installs: bool

    @property
    def path(self) -> Path:
        return Path(os.path.realpath(hook_file(self.name)))

    def describe(self) -> str:
        """Return the change as a unified diff."""
        before = read_text(self.path)
        after = self.changed(before)
        what = "edit" if before is not None and after is not None else "create"
        lines = difflib.unified_diff(
            (before or "").splitlines(), (after or "").splitlines(), lineterm="", n=2
        )
        diff = "\n".join(list(lines)[2:])
        return f"{what if after is not None else 'delete'} {self.path}:\n{diff}"

    def is_in(self, text: str) -> bool:
        return _mark(self.name) in text

    def add(self, text: str | None) -> Iterator[str]:
        return _with_hooks(self.name, text)

    def remove(self, text: str) -> str | None:
        return _remove_hooks(self.name, text)


def _mark(name: str) -> str:
    """Return a text that every file with our hooks contains, and no other file."""
    return (
        f'"{ANSWER}", "{name}"' if hook_agents()[name].before == "" else f" hooks {ANSWER} {name}"
    )


def _with_hooks(name: str, before: str | None) -> Iterator[str]:
    """Yield a file's text after each step of installing. Raises NotAnObjectError."""
    agent, command, text = hook_agents()[name], hook_command(name), before or ""
    if not agent.before:
        plugin = typed.read_text("sidecar.hooks", f"plugins/{agent.form}")
        yield plugin.replace('["COMMAND"]', json.dumps(command))
        return
    events = {
        agent.before: _shell_text(command),
        agent.after: _shell_text([*command, AFTER_TURN]),
    }
    if agent.form == "own-json":
        own = {
            event: [{"type": "command", "bash": run, "timeoutSec": agent.timeout}]
            for event, run in events.items()
        }
        yield json.dumps({"version": 1, "hooks": own}, indent=2) + "\n"
        return
    for event, run in events.items():
        if agent.form == "settings":
            hook = {"type": "command", "command": run, "timeout": agent.timeout}
            text = add_item(text, "hooks", event, {"hooks": [hook]})
        else:
            lines = ["[[hooks]]", f"event = {_toml(event)}", f"command = {_toml(run)}"]
            gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
            text = "\n".join([text + gap + lines[0], *lines[1:], f"timeout = {agent.timeout}\n"])
        yield text


def _remove_hooks(name: str, text: str) -> str | None:
    """Return a file's text without our hooks, after another program has changed the file."""
    agent = hook_agents()[name]
    if agent.form == "settings":
        for event in (agent.before, agent.after):
            text = remove_items(text, "hooks", event, _mark(name))
        return text
    if agent.form == "toml":
        mark = _mark(name)
        return _TOML_HOOK.sub(lambda found: "" if mark in found[0] else found[0], text)
    return None


_TOML_HOOK = re.compile(r"^[ \t]*\[\[hooks\]\].*\n(?:[ \t]*[^\s#\[].*\n?)*", re.MULTILINE)
"""Matches a `[[hooks]]` table, up to an empty line, a comment or the next table."""


def _shell_text(command: list[str]) -> str:
    return subprocess.list2cmdline(command) if IS_WINDOWS else shlex.join(command)


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
