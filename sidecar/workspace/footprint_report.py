"""What coding agents send before the first word: the values of `context/footprint`.

They are shown as text and as a page. `sidecar.workspace.footprints` reads and counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from sidecar.counting.count_result import (
    Measure,
    Method,
    method_mark,
    number_text,
    tokens_text,
    weakest_method,
)
from sidecar.project.footprint import ByteRange, Footprint, Problem
from sidecar.project.loading_rules import AgentRules, Constant, Kind, State, loading_rules
from sidecar.project.mcp_servers import Sends, ServerTools
from sidecar.text.pages import STYLE, Page, escape, parts_bar, table_html
from sidecar.text.printable import counted, first_names, local_time_text, printable
from sidecar.text.tables import GAP, align_cells, columns, wrap_line

NOT_MEASURED = "not measured; `token-sidecar footprint --measure-mcp` counts its tools"
_LISTED = "`token-sidecar footprint --json` lists them"
SYSTEM = "System prompt and built-in tools"
MESSAGE = "First message"
MOST_ROWS = 40
"""Maximum number of rows in an agent's table. The smallest parts share one row."""
MOST_NOTES = 6
"""Maximum number of notes below an agent's table."""
_STATE_COLUMNS = 30
"""The least width of states. Longer names of parts are shortened."""
ELSEWHERE = "The newest session started in another worktree, whose files differ"
_TITLE = "What your agent loads"
_MOST_COLORS = 7
"""Maximum number of parts with a color of their own."""
TABLE_STYLE = ".states :is(td,th){white-space:normal;vertical-align:top}\n"
_LOSSES = frozenset(("instructions-cut", "instructions-hidden", "import-skipped", "skill-lost"))
NAME_AND_DESCRIPTION = "name and description"
STATE_TEXTS = {state: state.replace("-", " ") for state in get_args(State)}


class FootprintParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Asks what coding agents send before the first word."""

    workspace: str | None = None
    """The URI of a root folder, of a path inside it, or of an open document."""
    folder: str | None = None
    """The folder in which agents start, as a URI or a path. Defaults to the root folder."""
    agent: str | None = None
    """Only this agent, even if it is not installed. By default, all agents that are installed or
    were used here, or if there are none, all that would send files of the folder.
    """
    width: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The width of `text` in columns. By default, lines are as long as necessary."""


class FootprintPart(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A part of the first request, or a file that could be one."""

    kind: Kind | Literal["system", "mcp-server", "message"]
    """`system`: the system prompt and the built-in tools. `mcp-server`: the tools of an MCP server.
    `message`: the first message.
    """
    label: str
    """The path, relative to the folder or to `~`, or what the part is if it is not a file."""
    uri: str | None = None
    state: State
    state_text: str
    """The state and its reason, such as `hidden by CLAUDE.md`."""
    tokens: int | None = 0
    """What is sent now. Null if it is sent, but its size is unknown."""
    method: Method = "exact"
    error_percent: float | None = 0.0
    is_own: bool = False
    """Whether the file is the user's, and not the project's."""
    hidden_by: str | None = None
    """The URI of the file that stands before this one."""
    lost: list[ByteRange] = []
    """The bytes of the file that the agent never sees."""


class MeasuredRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The newest first request of a session that started in the folder, or in another worktree with
    the same files.
    """

    session: str
    model: str
    at: datetime
    tokens: int
    """The size of the prompt as the provider billed it, including the first message."""


class KeptPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a system prompt that was measured in a folder. It contains no text."""

    session: str
    files: str
    """The digest of the files that the request contained, from `digest_files`."""
    model: str
    tokens: int
    at_ms: int
    """The time of the request, in milliseconds since 1970."""


class AgentFootprint(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What one agent sends before the first word."""

    agent: str
    title: str
    """The agent's name, as its maker writes it."""
    version: str
    """The version in which the rules were measured. Empty if they are from documentation."""
    model: str
    """The model that the parts were counted for."""
    tokens: int
    """All that is sent before the first message."""
    method: Method
    error_percent: float | None
    is_lower_bound: bool = False
    """Whether the size of a part is unknown, and not included, or not all files were looked at."""
    parts: list[FootprintPart]
    """In the order of the request."""
    measured: MeasuredRequest | None = None
    notes: list[str] = []
    """What is lost, and what is doubtful: contradictions to the measured request, and later changes
    of files.
    """
    has_losses: bool = False
    """Whether a file is cut or hidden, or something else in it is lost."""
    text: str = ""
    """A plain-text table."""


class FootprintReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What coding agents send before the first word."""

    folder: str
    """The URI of the folder in which the agents start."""
    agents: list[AgentFootprint]
    others: list[str] = []
    """Agents that would send files of the folder, but are not installed."""
    next_step: str = ""
    """What to do next."""
    text: str = ""
    """The tables of all agents, and what to do next, as plain text."""


def agent_footprint(
    footprint: Footprint,
    model: str,
    files: Sequence[FootprintPart],
    *,
    measured: MeasuredRequest | None = None,
    message_tokens: int | None = None,
    change: str = "",
    kept: KeptPrompt | None = None,
    losses: Sequence[str] = (),
) -> AgentFootprint:
    """Put the parts of a request together.

    Args:
        footprint: The agent's files.
        model: The model that the files were counted for.
        files: The files as parts of the request.
        measured: The newest measured request.
        message_tokens: An estimate of the first message in it, or None if that is unknown.
        change: Why the files are not those of the newest session, if they may not be.
        kept: The system prompt that was last measured with the model.
        losses: What of the files is lost, from `loss_notes`.
    """
    static, notes = add_up(files), list[str]()
    if measured is not None and static.tokens > measured.tokens:
        notes.append(_contradiction(measured, static))
    if change:
        notes.append(_stale_note(measured, change))
    rules = loading_rules()[footprint.agent]
    if measured is not None and (is_measured := fits(measured, files, change)):
        left, rest = measured.tokens - static.tokens, ", with the first message"
        if message_tokens is not None:
            message_tokens, rest = min(message_tokens, left), ""
        text = f"measured {local_time_text(measured.at)}{rest}"
        system = _estimated_part("system", SYSTEM, text, left - (message_tokens or 0))
    else:
        is_measured, message_tokens = False, None
        system = _usual_system_part(footprint.version, rules.constant(model), kept)
    message = [_estimated_part("message", MESSAGE, "yours", message_tokens)]
    before = add_up([system, *files])
    found = AgentFootprint(
        agent=footprint.agent,
        title=rules.title,
        version=footprint.version,
        model=model,
        tokens=before.tokens,
        method=before.method,
        error_percent=before.error_percent,
        is_lower_bound=bool(footprint.limits)
        or (not is_measured and None in [part.tokens for part in (system, *files)]),
        parts=[system, *files, *(message if message_tokens else ())],
        measured=measured,
        notes=[*notes, *footprint.limits, *losses, *_second_call_notes(rules, model)],
        has_losses=bool(losses),
    )
    return msgspec.structs.replace(found, text="\n".join(agent_lines(found)))


def _second_call_notes(rules: AgentRules, model: str) -> Iterator[str]:
    """Yield a note about the call that follows each answer, if there is one."""
    constant = rules.constant(model)
    if constant is not None and constant.second_call:
        tokens = tokens_text(constant.second_call, "estimate")
        again = " and the instructions again" if rules.second_call_repeats else ""
        yield f"After each answer, a second call sends {tokens}{again}."


def fits(measured: MeasuredRequest | None, files: Sequence[FootprintPart], change: str) -> bool:
    """Return whether files are those of a request, so that they leave the system prompt of it."""
    return measured is not None and not change and add_up(files).tokens <= measured.tokens


def _usual_system_part(
    version: str, constant: Constant | None, kept: KeptPrompt | None
) -> FootprintPart:
    """Return the part that is in no file, with the size that was last measured here or elsewhere.

    The size is unknown if there is none.
    """
    if kept is not None:
        text, tokens = f"as it was {local_time_text(time_of(kept.at_ms))}", kept.tokens
    elif constant is not None:
        text = f"usual for {version} with {constant.model or 'other models'}"
        tokens = constant.tokens
    else:
        return FootprintPart(
            kind="system", label=SYSTEM, state="sent", state_text="not measured yet", tokens=None
        )
    return _estimated_part("system", SYSTEM, text, tokens)


def _estimated_part(
    kind: Literal["system", "mcp-server", "message"], label: str, text: str, tokens: int | None
) -> FootprintPart:
    """Return a part that is in no file. The margin of error of its size is unknown."""
    return FootprintPart(
        kind=kind,
        label=label,
        state="sent",
        state_text=text,
        tokens=tokens,
        method="estimate",
        error_percent=None,
    )


_SENT_TOOLS: dict[Sends, tuple[State, str]] = {
    "schemas": ("sent", ""),
    "lines": ("name-only", ", a line per tool"),
    "server": ("name-only", ", one line for all"),
    "nothing": ("later", ", when the agent searches for them"),
}


def mcp_parts(
    tools: Sequence[ServerTools],
    in_session: Mapping[str, Measure],
    measured: MeasuredRequest | None,
) -> list[FootprintPart]:
    """Return the parts for the tools of MCP servers.

    Args:
        tools: The servers that the agent's configuration names.
        in_session: The size of what the newest session has of servers that were not measured, by
            the server's name in the names of tools. A plugin may have added a server.
        measured: The first request of this session.
    """
    left = dict(in_session)
    at = local_time_text(measured.at) if measured else ""
    parts = []
    for sent in tools:
        part, size = _mcp_part(sent), left.pop(name_in_tools(sent.server.name), None)
        parts.append(part if size is None else _with_session_size(part, size, at))
    for name, size in left.items():
        part = FootprintPart(kind="mcp-server", label=_mcp_label(name), state="sent", state_text="")
        parts.append(_with_session_size(part, size, at))
    if once := max((sent.once for sent in tools), default=0):
        label, text = "Tools and headings for MCP servers", "sent once for any number of servers"
        parts.append(_estimated_part("mcp-server", label, text, once))
    return parts


def name_in_tools(server: str) -> str:
    """Return a server's name as it is part of the names of tools."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", server)


def _mcp_label(server: str) -> str:
    return f"MCP server {server}"


def _with_session_size(part: FootprintPart, size: Measure, at: str) -> FootprintPart:
    return msgspec.structs.replace(
        part,
        state_text=f"{STATE_TEXTS[part.state]}, as in the request of {at}",
        tokens=size.tokens,
        method=size.method,
        error_percent=size.error_percent,
    )


def _mcp_part(sent: ServerTools) -> FootprintPart:
    """Return the part for the tools of an MCP server."""
    state, how = _SENT_TOOLS[sent.sends]
    reason = NOT_MEASURED
    if sent.tools is not None:
        reason = counted(sent.tools, "tool") + how
    elif sent.sends == "nothing":
        reason = f"its tools{how}"
    condition = f", {sent.server.condition}" if sent.server.condition else ""
    return FootprintPart(
        kind="mcp-server",
        label=_mcp_label(sent.server.name),
        uri=Path(sent.server.path).as_uri(),
        state=state,
        state_text=state_text(state, reason + condition, "", 0),
        tokens=sent.tokens,
        method=sent.method,
        error_percent=0.0 if sent.method == "exact" else None,
        is_own=sent.server.is_own,
    )


def add_up(parts: Sequence[FootprintPart]) -> Measure:
    """Return the sum of parts, with the weakest method and the sum of the error bands."""
    known = [part for part in parts if part.tokens is not None]
    tokens = sum(part.tokens or 0 for part in known)
    method = weakest_method(part.method for part in known)
    band: float | None = None
    if all(part.error_percent is not None for part in known):
        errors = sum((part.tokens or 0) * (part.error_percent or 0.0) for part in known)
        band = errors / tokens if tokens else 0.0
    return Measure(tokens, method, "", band)


def _contradiction(measured: MeasuredRequest, static: Measure) -> str:
    return (
        f"The files add up to {tokens_text(static.tokens, static.method)}, but the whole first "
        f"request of {local_time_text(measured.at)} had only {measured.tokens:,}: some of them "
        "were not sent then. Start a new session to measure again."
    )


def _stale_note(measured: MeasuredRequest | None, change: str) -> str:
    since = f" since the request of {local_time_text(measured.at)}" if measured else ""
    return (
        f"{change}{since}, so the size of the system prompt is not of this state. Start a new "
        "session here to measure again."
    )


def loss_notes(problems: Sequence[Problem], folders: Sequence[tuple[str, str]]) -> list[str]:
    """Return what is lost and what to do, each with the names of the files.

    Args:
        problems: The problems of an agent's footprint.
        folders: How paths are shortened, from `short_forms`.
    """
    by_message: dict[str, dict[str, None]] = {}
    for problem in problems:
        if problem.code in _LOSSES:
            path = short_path(problem.path, folders)
            by_message.setdefault(printable(problem.message), {})[path] = None
    return [f"{first_names(list(paths))}: {message}" for message, paths in by_message.items()]


def state_text(state: State, reason: str, hidden_by: str, lost: int) -> str:
    """Return a part's state as text, such as `cut: 12,232 bytes never arrive`.

    Args:
        state: The state.
        reason: Why, in plain words.
        hidden_by: The label of the file that stands before it.
        lost: How many bytes the agent never sees.
    """
    is_described = state == "name-only" and not lost and not reason
    text = NAME_AND_DESCRIPTION if is_described else STATE_TEXTS[state]
    if state == "hidden" and hidden_by:
        return f"{text} by {hidden_by}"
    if state == "cut" and lost:
        text += f": {counted(lost, 'byte')} never arrive{'s' if lost == 1 else ''}"
        return f"{text}, {reason}" if reason else text
    return f"{text}: {reason}" if reason else text


def report_lines(found: FootprintReport, width: int = 0) -> list[str]:
    """Return a table per agent, and what to do next.

    The tables have at most `width` columns, if that is not 0.
    """
    lines = list[str]()
    for agent in found.agents:
        lines += [*agent_lines(agent, width), ""]
    return [*lines, *filter(None, [_others_text(found)]), found.next_step]


def _others_text(found: FootprintReport) -> str:
    """Return which agents are not shown because they are not installed."""
    if not found.others:
        return ""
    names = first_names(found.others)
    return f"Not installed, but also send files of this folder: {names}."


def agent_lines(found: AgentFootprint, width: int = 0) -> list[str]:
    """Return an agent's table, in at most `width` columns if that is not 0."""
    head = f"{agent_name(found)}: {size_text(found)} before the first word, for {found.model}"
    notes = [f"{GAP}{note}" for note in agent_notes(found)]
    if width:
        notes = [line for note in notes for line in wrap_line(note, width).split("\n")]
    return [head, *_table_lines(_agent_rows(found), width), *notes]


def agent_notes(found: AgentFootprint) -> list[str]:
    """Return the notes to show below an agent's table. If there are many, the last ones are not."""
    if len(found.notes) <= MOST_NOTES:
        return found.notes
    left_out = len(found.notes) - MOST_NOTES + 1
    return [*found.notes[: MOST_NOTES - 1], f"{left_out:,} more notes; {_LISTED}"]


def _table_lines(rows: Sequence[tuple[str, str, str]], width: int) -> list[str]:
    """Return an indented line for each part. States that are too long are wrapped."""
    rest = max(1, width - len(GAP) - _STATE_COLUMNS) if width else 0
    names = align_cells([(printable(row[0]), row[1], "") for row in rows], width=rest)
    lines = list[str]()
    for cells, row in zip(names, rows, strict=True):
        start, state = GAP + GAP.join(cells), printable(row[2])
        room = max(_STATE_COLUMNS, width - columns(start)) if width else columns(state)
        first, *more = wrap_line(state, room).split("\n")
        lines += [(start + first).rstrip(), *(" " * columns(start) + line for line in more)]
    return lines


def agent_name(found: AgentFootprint) -> str:
    """Return an agent's name and version."""
    return f"{found.title} {found.version}".rstrip()


def size_text(found: AgentFootprint) -> str:
    """Return the size of all that an agent sends before the first message."""
    at_least = "≥" if found.is_lower_bound else ""
    return f"{at_least}{tokens_text(found.tokens, found.method)}"


def _agent_rows(found: AgentFootprint) -> list[tuple[str, str, str]]:
    """Return the name, size and state of each part, in order. Small parts may share a row."""
    rows = [_row(part) for part in _largest(found.parts)]
    left_out = len(found.parts) - len(rows)
    if left_out:
        shown = {id(part) for part in _largest(found.parts)}
        rest = add_up([part for part in found.parts if id(part) not in shown])
        label = f"{left_out:,} smaller parts"
        rows.append((label, number_text(rest.tokens, rest.method), _LISTED))
    return rows


def _row(part: FootprintPart) -> tuple[str, str, str]:
    has_size = part.tokens or part.state in ("sent", "cut")
    number = number_text(part.tokens or 0, part.method) if has_size else ""
    return part.label, "?" if part.tokens is None else number, part.state_text


def _largest(parts: Sequence[FootprintPart]) -> list[FootprintPart]:
    """Return the parts to show, in order. Parts that lose something come before larger ones."""
    if len(parts) <= MOST_ROWS:
        return list(parts)
    ranked = sorted(
        range(len(parts)),
        key=lambda index: (not parts[index].lost, -(parts[index].tokens or 0)),
    )
    return [parts[index] for index in sorted(ranked[: MOST_ROWS - 1])]


def next_step(agents: Sequence[AgentFootprint]) -> str:
    """Return what to do next."""
    if not agents:
        return "No agent sends files of this folder. Add an AGENTS.md, which most agents read."
    if losing := [found.title for found in agents if found.has_losses]:
        return f"Something is lost: the notes below {first_names(losing)} say what, and what to do."
    unmeasured = [found.title for found in agents if found.measured is None]
    if unmeasured:
        return f"Start {first_names(unmeasured)} here once to measure the whole request."
    return "`token-sidecar cost files` says what these files cost."


def time_of(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def short_forms(root: Path, start: Path, home: Path) -> list[tuple[str, str]]:
    """Return folders, and how paths in them begin: relative to the start, or with `~`."""
    above = os.path.relpath(root, start).replace(os.sep, "/")
    forms = [(start, ""), (root, f"{above}/"), (home, "~/")]
    return [(os.path.join(folder, ""), short) for folder, short in forms]


def short_path(path: str, folders: Sequence[tuple[str, str]]) -> str:
    """Return a path with the first of the folders that contains it replaced by its short form."""
    for folder, short in folders:
        if path.startswith(folder):
            return printable((short + path[len(folder) :]).replace(os.sep, "/"))
    return printable(path)


def footprint_page(report: FootprintReport) -> Page:
    """Return the page of a report."""
    html = f"<h1>{_TITLE}</h1>{footprint_html(report)}"
    return Page(title=_TITLE, html=html, style=f"{STYLE}\n{TABLE_STYLE}")


def add_footprint(page: Page, report: FootprintReport) -> Page:
    """Return a page with a report at its end."""
    html = f"{page.html}<h1>{_TITLE}</h1>{footprint_html(report)}" if report.agents else page.html
    return msgspec.structs.replace(page, html=html, style=f"{page.style}\n{TABLE_STYLE}")


def footprint_html(report: FootprintReport) -> str:
    """Return a section for each agent, and what to do next."""
    ends = filter(None, (_others_text(report), report.next_step))
    sections = "".join(map(_agent_html, report.agents))
    return sections + "".join(f"<p>{escape(text)}</p>" for text in ends)


def _agent_html(found: AgentFootprint) -> str:
    name = agent_name(found)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in agent_notes(found))
    rows = [(label, number, state) for label, number, state in _agent_rows(found)]
    table = table_html(f"Parts of {name}", ("Part", "Tokens", "State"), rows, kind="states")
    return (
        f"<section><h2>{escape(name)}</h2>"
        f"<p>{escape(f'{size_text(found)} before the first word, for {found.model}')}</p>"
        f"{_bar_html(found, name)}{notes}{table}</section>"
    )


def _bar_html(found: AgentFootprint, name: str) -> str:
    """Return a bar of the parts that are sent. Small parts share a color."""
    sizes = [(part.label, part.tokens) for part in found.parts if part.tokens]
    sizes.sort(key=lambda part: -part[1])
    rest = sum(tokens for _, tokens in sizes[_MOST_COLORS:])
    parts = [*sizes[:_MOST_COLORS], *([("Smaller parts", rest)] if rest else [])]
    marks = method_mark(found.method), ""
    return parts_bar(parts, f"What {name} sends", marks=marks) if parts else ""
