"""`token-sidecar hooks --answer AGENT`: agents run it before they send a prompt and after a turn.

Before a prompt, it compares the ledger's sums with the user's caps. After a turn, it starts
`token-sidecar hooks --record`, which records the turn's calls while the agent is idle.

A prompt waits for this module, so it imports only what it needs, and answers within
`_MAX_SECONDS`. If anything fails, it prints nothing, and the agent sends the prompt. The prompt is
part of the input, but is neither read, stored nor logged.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping
    from decimal import Decimal
    from pathlib import Path

    from sidecar.cost.caps import ExceededCap
    from sidecar.cost.context_costs import CapSpan

ANSWER, AFTER_TURN = "--answer", "--after-turn"
SWITCH_VARIABLE = "TOKEN_SIDECAR_CAPS"
"""The environment variable that turns the caps off in an agent if its value is `off`."""
PAUSE_FILE = "hooks-paused"
"""The file in the state folder whose modification time says when the caps were paused."""
CONTEXTS_FILE = "hooks-contexts.json"
"""The file in the state folder with the tokens and the usable window of sessions' contexts."""
PAUSE_MINUTES = 10
HOW_TO_GO_ON = (
    f"To go on, run `token-sidecar hooks --pause` ({PAUSE_MINUTES} minutes) and send it again."
)
_MAX_SECONDS = 0.5
_LONGEST_SECONDS = 3.0
_STEP_SECONDS = 0.1
_PREFIXES: dict[CapSpan, str] = {
    "day": "",
    "session": "session-",
    "workspace": "workspace-",
    "branch": "branch-",
}
_PICO = 10**12


class Caller(NamedTuple):
    """What the agent says about the prompt."""

    agent: str
    session: str
    folder: str
    transcript: str
    """The path of the session's file, or an empty string if the agent does not pass it."""
    is_new_prompt: bool
    """False if the prompt is empty: Qwen Code asks again after each round of tools."""


class Amount(NamedTuple):
    """The cost of some calls, in USD, or the share of the usable window that a context fills."""

    value: Decimal
    agents: tuple[str, ...] = ()
    """The agents that made the calls."""
    is_unpriced: bool = False
    """Whether any call, or any part of a call, has no price."""

    @property
    def is_partial(self) -> bool:
        """Whether the cost is a lower bound: calls have no price, or agents omit calls."""
        if self.is_unpriced or not self.agents:
            return self.is_unpriced
        # This import takes longer than everything else. It is needed only if a cap is exceeded.
        from sidecar.known_agents import lower_bound_agents

        return not lower_bound_agents().isdisjoint(self.agents)


def run(arguments: list[str]) -> None:
    """Answer an agent, and exit the process. The exit code is 0 unless the agent expects another.

    A thread does the work. If it is not done after `_MAX_SECONDS`, for example because a disk does
    not respond, the process exits without an answer. On a busy machine, the thread gets more time
    while it makes progress.
    """
    done = _thread.allocate_lock()
    done.acquire()
    codes = [0]

    def work() -> None:
        # Agents show any other output and exit code as an error of the hook.
        with suppress(BaseException):
            caller = _read_caller(arguments[0])
            if AFTER_TURN in arguments:
                _start_recording(caller)
            elif caller.is_new_prompt and os.environ.get(SWITCH_VARIABLE, "").lower() != "off":
                _check_caps(caller, codes)
        done.release()

    _thread.start_new_thread(work, ())
    waited, used = 0.0, 0.0
    while not done.acquire(timeout=_STEP_SECONDS):
        waited, before, used = waited + _STEP_SECONDS, used, time.process_time()
        is_stuck = used - before < _STEP_SECONDS / 50
        if waited > _LONGEST_SECONDS or (is_stuck and waited >= _MAX_SECONDS):
            break
    os._exit(codes[0])


def _read_caller(agent: str) -> Caller:
    import json

    sent = json.loads(sys.stdin.buffer.read() or b"{}")
    return Caller(
        agent,
        str(sent.get("session_id") or sent.get("sessionId") or ""),
        str(sent.get("cwd") or os.getcwd()),
        str(sent.get("transcript_path") or ""),
        sent.get("prompt") != "" or not _settings_of(agent).get("asks_each_round"),
    )


def _check_caps(caller: Caller, codes: list[int]) -> None:
    """Print the agent's answer if a cap is exceeded, and store the exit code in `codes`."""
    from sidecar.config.paths import own_config_files, state_dir

    state, caps = state_dir(), read_caps(*own_config_files())
    if not caps:
        return
    amounts, is_current = read_amounts(state, caller, caps)
    limits = [(amounts[span].value, cap) for span, both in caps.items() for cap in both]
    if any(cap is not None and value > cap for value, cap in limits):
        codes[0] = _answer(caller.agent, _exceeded_caps(caps, amounts), state)
        # The user may compact the context, which is no turn, and send the prompt again.
        is_current = is_current and "context" not in caps
    if not is_current:
        _start_recording(caller)


def read_amounts(
    state: Path, caller: Caller, spans: Iterable[CappedSpan]
) -> tuple[dict[CappedSpan, Amount], bool]:
    """Return the amounts to compare with caps, and whether the whole session has been recorded.

    Raises:
        OSError: A file cannot be read.
        sqlite3.Error: The ledger cannot be read.
        ValueError: A file is invalid.
    """
    import sqlite3
    from contextlib import closing

    from sidecar.config.paths import LEDGER_FILES

    ledger, log = (state / name for name in LEDGER_FILES)
    uri = f"{ledger.as_uri()}?mode=ro"
    if not log.exists() and not os.access(state, os.W_OK):
        uri += "&immutable=1"  # SQLite cannot create the files that it otherwise needs for reading
    with closing(sqlite3.connect(uri, uri=True, timeout=_MAX_SECONDS)) as connection:
        recorded = _recorded_bytes(connection, caller.transcript)
        amounts = {
            span: _read_context(state, caller, recorded)
            if span == "context"
            else read_amount(connection, span, caller)
            for span in spans
        }
    return amounts, (recorded or 0) == _file_size(caller.transcript)


def _read_context(state: Path, caller: Caller, recorded: int | None) -> Amount:
    """Return how full a session's context was after the last turn, or 0 if it is unknown.

    Args:
        state: The state folder.
        caller: The session.
        recorded: The size in bytes of the part of the session's file that has been recorded.
    """
    import json
    from decimal import Decimal

    sizes = {}
    with suppress(FileNotFoundError):
        sizes = json.loads((state / CONTEXTS_FILE).read_bytes())
    tokens, usable = sizes.get(caller.session, (0, 1))
    if tokens and _is_compacted_since(caller, recorded):
        tokens = 0
    return Amount(Decimal(tokens) / usable)


def _is_compacted_since(caller: Caller, recorded: int | None) -> bool:
    """Return whether the rest of a session's file contains a compaction.

    Most agents write the new prompt to the file before they run the hook.
    """
    if recorded is None or recorded == _file_size(caller.transcript):
        return recorded is None
    import re

    mark = _settings_of(caller.agent).get("compaction", "")
    with open(caller.transcript, "rb") as file:
        file.seek(recorded)
        return re.search(mark.encode(), file.read()) is not None


CappedSpan = Literal["day", "session", "workspace", "branch", "context"]
Caps = dict[CappedSpan, "tuple[Decimal | None, Decimal | None]"]


def read_caps(*paths: Path) -> Caps:
    """Return the soft and the hard cap of each span with a cap. Later files take precedence.

    Invalid values are ignored, as `config.load` does. Raises OSError and ValueError.
    """
    from decimal import Decimal

    layers = [_read_toml(path).get("cost", {}) for path in paths]

    def cap(key: str) -> Decimal | None:
        found = None
        for value in (layer.get(key) for layer in layers):
            if isinstance(value, int | float) and not isinstance(value, bool):
                found = Decimal(repr(value)) if 0 <= value < float("inf") else found
        return found

    def share(key: str) -> Decimal | None:
        found = cap(key)
        return found if found is not None and 0 < found <= 1 else None

    caps: Caps = {
        span: (cap(f"{prefix}soft-cap-usd"), cap(f"{prefix}hard-cap-usd"))
        for span, prefix in _PREFIXES.items()
    }
    caps["context"] = share("context-soft-cap"), share("context-hard-cap")
    return {span: both for span, both in caps.items() if both != (None, None)}


def _exceeded_caps(caps: Caps, amounts: Mapping[CappedSpan, Amount]) -> list[ExceededCap]:
    from sidecar.cost.caps import find_exceeded_cap

    found = (
        find_exceeded_cap(span, *both, amounts[span].value, is_partial=amounts[span].is_partial)
        for span, both in caps.items()
    )
    return [each for each in found if each is not None]


def _answer(agent: str, exceeded: list[ExceededCap], state: Path) -> int:
    """Print an agent's answer. Return the exit code."""
    answers = _settings_of(agent)
    message = " ".join(each.message for each in exceeded)
    is_refused = any(each.kind == "hardCap" for each in exceeded) and not paused_seconds(state)
    if is_refused:
        message += f" {HOW_TO_GO_ON}"
    form = answers["refusal" if is_refused else "warning"]
    text = f"token-sidecar: {message}"
    if form == "exit-2":
        os.write(2, f"{text}\n".encode())
        return 2
    if form != "text":
        import json

        text = json.dumps({"decision": form, "reason": text} if is_refused else {form: text})
    os.write(1, f"{text}\n".encode())
    return 0


def paused_seconds(state: Path) -> float:
    """Return how long caps do not stop prompts, or 0 if they do."""
    try:
        age = time.time() - os.stat(state / PAUSE_FILE).st_mtime
    except OSError:
        return 0
    return max(0.0, PAUSE_MINUTES * 60 - age) if age > -1 else 0


_SUMS = "session, day, calls, cost, priced_calls, partly_priced_calls"
# Readers add the calls that are not yet part of the daily sums; see `cost.ledger`.
_CALLS = (
    f"SELECT {_SUMS} FROM daily WHERE {{where}} UNION ALL "  # noqa: S608
    f"SELECT {_SUMS} FROM event_sums WHERE id > (SELECT upto FROM folded) AND {{where}}"
)


def read_amount(connection: sqlite3.Connection, span: CapSpan, caller: Caller) -> Amount:
    """Return what was spent today, in the caller's session, in its workspace or on its branch.

    The result equals that of `cost.book.CostBook.spend`.
    """
    from decimal import Decimal

    values: dict[str, Any]
    if span == "day":
        from datetime import date

        where = "day = :day"
        values = {"day": date.today().toordinal() - date(1970, 1, 1).toordinal()}  # noqa: DTZ011
    elif span == "session":
        where = "session IN (SELECT id FROM session WHERE name = :name)"
        values = {"name": caller.session}
    else:
        folders, others, branch = _workspace(connection, caller.folder, span)
        values = {f"uri{number}": uri for number, uri in enumerate([*folders, *others])}
        inside = [
            f"(workspace = :{name} OR substr(workspace, 1, length(:{name}) + 1) = :{name} || '/')"
            for name in values
        ]
        terms = [f"({' OR '.join(inside[: len(folders)])})"]
        terms += [f"NOT {term}" for term in inside[len(folders) :]]
        if span == "branch":
            terms.append("branch = :branch AND branch > ''")
            values["branch"] = branch
        where = f"session IN (SELECT id FROM session WHERE {' AND '.join(terms)})"  # noqa: S608
    rows = connection.execute(
        "SELECT agent, sum(cost), sum(priced_calls) < sum(calls) OR sum(partly_priced_calls) > 0 "  # noqa: S608
        f"FROM ({_CALLS.format(where=where)}) AS part JOIN session AS owner "
        "ON owner.id = part.session GROUP BY agent",
        values,
    ).fetchall()
    usd = Decimal(sum(cost for _, cost, _ in rows)) / _PICO
    return Amount(usd, tuple(agent for agent, *_ in rows), any(unpriced for *_, unpriced in rows))


def _workspace(
    connection: sqlite3.Connection, folder: str, span: CapSpan
) -> tuple[list[str], list[str], str]:
    """Return the workspace's folders, other repositories' folders inside, and its branch.

    The folders are URIs of the project folder at or above a folder, and of its git worktrees. The
    others and the branch are empty if `span` does not need them.
    """
    from pathlib import Path

    from sidecar.agents.branches import head_around, worktrees_beside
    from sidecar.config.paths import find_root
    from sidecar.cost.worktrees import folder_uri, nested_repositories, with_known_worktrees

    root = str(find_root(Path(os.path.realpath(folder))))
    known = with_known_worktrees(connection, worktrees_beside(root) or {root: ""})
    folders = [folder_uri(each) for each in known]
    if span != "branch":
        return folders, [], ""
    head = head_around(root)
    return folders, [*nested_repositories(connection, folders)], head.branch if head else ""


def _recorded_bytes(connection: sqlite3.Connection, transcript: str) -> int | None:
    """Return how many bytes of a session's file have been recorded, or None if none have."""
    if not transcript:
        return 0
    tables = "SELECT 1 FROM sqlite_master WHERE name = 'store'"
    if not connection.execute(tables).fetchone():  # no agent's files have been read
        return None
    row = connection.execute("SELECT size FROM store WHERE path = ?", (transcript,)).fetchone()
    return None if row is None else int(row[0])


def _file_size(path: str) -> int:
    """Return a file's size in bytes, or 0 if there is no such file."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _start_recording(caller: Caller) -> None:
    from sidecar.operating_system import start_detached

    options = ["--record", caller.session, "--workspace", caller.folder]
    start_detached([sys.executable, "-P", "-m", "sidecar", "hooks", *options])


def _read_toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    return tomllib.loads(content.decode("utf-8-sig"))


def _settings_of(agent: str) -> dict[str, Any]:
    """Return the agent's table in `agents.toml`, as `installer.HookAgent` describes it."""
    from pathlib import Path

    settings: dict[str, Any] = _read_toml(Path(__file__).with_name("agents.toml"))[agent]
    return settings
