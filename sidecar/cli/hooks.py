"""`token-sidecar hooks`: installs the hooks that check the caps before an agent sends a prompt."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from sidecar.cli.group import workspace_option
from sidecar.cli.output import confirm_change, print_json, print_lines, warn
from sidecar.config.paths import LEDGER_FILES, own_config_files, state_dir
from sidecar.hooks.installer import (
    HookChange,
    find_installed,
    hook_agents,
    hook_command,
    hook_file,
)
from sidecar.hooks.prompt_hook import (
    CONTEXTS_FILE,
    PAUSE_FILE,
    PAUSE_MINUTES,
    Caller,
    paused_seconds,
    read_amounts,
    read_caps,
)

_AGENTS = click.Choice([*hook_agents()])
_TRIES = 3
_KEPT_CONTEXTS = 100


@click.command()
@click.option("--install", "agent", type=_AGENTS, help="Add the hooks to an agent.")
@click.option("--uninstall", "former", type=_AGENTS, help="Remove the hooks from an agent.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--pause", is_flag=True, help=f"Let prompts over a hard cap pass for {PAUSE_MINUTES} minutes."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--record", "session", hidden=True, help="Record new calls, after a turn of a session."
)
@workspace_option("Workspace whose calls to record", hidden=True)
def hooks(
    agent: str | None,
    former: str | None,
    yes: bool,
    pause: bool,
    as_json: bool,
    session: str | None,
    root: Path,
) -> None:
    """Let coding agents check your spending caps before they send a prompt.

    Over a soft cap, the agent shows a line. Over a hard cap, the prompt is not sent. Without
    options, show where the hooks are installed and whether they work.

    Exit codes: 0; 1 if the configuration was not changed or a hook does not work; 2 if the
    arguments are invalid.
    """
    if agent and former:
        raise click.UsageError("use either --install or --uninstall")
    if session is not None:
        _record_calls(root, session)
    elif pause:
        sys.exit(_pause())
    elif changed := agent or former:
        sys.exit(_change_agent(changed, installs=agent is not None, has_consent=yes))
    else:
        sys.exit(_show(as_json=as_json))


def _change_agent(name: str, *, installs: bool, has_consent: bool) -> int:
    state = "are installed already" if installs else "are not installed"
    nothing = f"the hooks {state} in {name}"
    code = confirm_change(HookChange(name, installs), nothing, has_consent=has_consent)
    if code is not None:
        return code
    undo = f"Restart {name}; undo with `token-sidecar hooks --uninstall {name}`."
    print_lines(f"Done. {undo}" if installs else "Done.")
    if installs and (note := hook_agents()[name].note):
        print_lines(note)
    if installs and (problem := _settings_problem()):
        print_lines(f"{_UNCHECKED}: {problem}")
    elif installs and not _caps():
        print_lines(_NO_CAPS)
    return 0


_NO_CAPS = "No caps are set, so no prompt is stopped. Set them under [cost] in your own settings."
_UNCHECKED = "The caps cannot be checked, so prompts pass"


def _caps() -> dict[Any, Any]:
    with contextlib.suppress(OSError, ValueError):
        return {**read_caps(*own_config_files())}
    return {}


def _pause() -> int:
    from sidecar.config.safe_files import make_folder, write

    try:
        make_folder(state_dir())
        write(state_dir() / PAUSE_FILE, b"")
    except OSError as error:
        warn(f"cannot write {state_dir()}: {error.strerror}; set TOKEN_SIDECAR_CAPS=off instead")
        return 1
    print_lines(f"Caps do not stop prompts for {PAUSE_MINUTES} minutes.")
    return 0


def _record_calls(root: Path, session: str) -> None:
    """Record new calls in a workspace, and store how full a session's context is if it is capped.

    This runs in the background while the agent is idle.
    """
    from sidecar.cli.ledger_updates import update_ledger
    from sidecar.config.load import load
    from sidecar.cost.book import CostBook
    from sidecar.operating_system import lower_priority

    lower_priority()
    settings = load(root).settings
    with contextlib.closing(CostBook(state_dir(), settings.prices)) as book:
        update_ledger(book, settings, root)
    if settings.cost.context_soft_cap is not None or settings.cost.context_hard_cap is not None:
        _store_context(root, session)


def _store_context(root: Path, session: str) -> None:
    from sidecar.cli.sessions_view import SessionsView
    from sidecar.config.safe_files import lock_state, write

    with SessionsView(root) as view:
        usage = view.usage(session)
    usable = usage.agent_usable or usage.usable
    path = state_dir() / CONTEXTS_FILE
    with lock_state(state_dir()):
        known: dict[str, tuple[int, int]] = {}
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(path.read_bytes())
        known.pop(session, None)
        if usage.tokens is not None and usable:
            known[session] = usage.tokens, usable
        newest = dict([*known.items()][-_KEPT_CONTEXTS:])
        write(path, json.dumps(newest).encode())


def _show(*, as_json: bool) -> int:
    found = {each.agent: each for each in find_installed()}
    unchecked = _settings_problem() or _ledger_problem() if found else ""
    rows, states = [], []
    for name in hook_agents():
        installed = found.get(name)
        row = {"agent": name, "file": str(hook_file(name)), "installed": installed is not None}
        state = "not installed"
        if installed:
            milliseconds = _measure_hook(name)
            problem = installed.problem or ("" if milliseconds else "the hook cannot be run")
            state = f"installed, {problem or f'answers in {milliseconds} ms'}: {row['file']}"
            problem = problem or (unchecked and f"{_UNCHECKED}: {unchecked}")
            row |= {"problem": problem, "milliseconds": milliseconds}
        rows.append(row)
        states.append((name, state))
    code = int(any(row.get("problem") for row in rows))
    paused = paused_seconds(state_dir())
    if as_json:
        print_json({"agents": rows, "hasCaps": bool(_caps()), "pausedSeconds": round(paused)})
        return code
    width = max(map(len, hook_agents()))
    print_lines(*(f"{name:<{width}}  {state}" for name, state in states))
    if unchecked:
        print_lines(f"{_UNCHECKED}: {unchecked}")
    elif found and not _caps():
        print_lines(_NO_CAPS)
    if paused:
        until = datetime.fromtimestamp(time.time() + paused).astimezone()
        print_lines(f"Paused until {until:%H:%M}: caps do not stop prompts.")
    return code


def _settings_problem() -> str:
    """Return why the caps cannot be read, or an empty string. Hooks do not say it."""
    for path in own_config_files():
        try:
            read_caps(path)
        except (OSError, ValueError) as error:
            return f"{path}: {error}"
    return ""


def _ledger_problem() -> str:
    """Return why the ledger cannot be compared with the caps, or an empty string.

    Hooks do not say it.
    """
    ledger = state_dir() / LEDGER_FILES[0]
    caps = _caps()
    if caps and not ledger.exists():
        return "no calls have been recorded yet; `token-sidecar cost` records them"
    try:
        if caps:
            read_amounts(state_dir(), Caller("", "", os.getcwd(), "", is_new_prompt=True), caps)
    except (OSError, ValueError, sqlite3.Error) as error:
        return f"{ledger}: {error}"
    return ""


def _measure_hook(name: str) -> int | None:
    """Return how long a hook takes, in ms, or None if it cannot be run."""
    taken = list[float]()
    text = json.dumps({"session_id": "", "cwd": os.getcwd(), "prompt": "none"})
    for _ in range(_TRIES):
        began = time.perf_counter()
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                hook_command(name), input=text.encode(), capture_output=True, timeout=5, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode not in (0, 2):
            return None
        taken.append(time.perf_counter() - began)
    return round(sorted(taken)[_TRIES // 2] * 1000)
