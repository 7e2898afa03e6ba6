"""Turns what coding agents lose of a file into findings with positions and severities."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from sidecar.agents.folders import Places, agent_folders, project_files
from sidecar.budgets.budget_rules import FindingSeverity
from sidecar.budgets.findings import DEFAULT_SEVERITIES
from sidecar.budgets.quick_fixes import Fix, TextEdit
from sidecar.config.settings import FootprintSettings, InstructionCode, Settings
from sidecar.known_agents import all_agents
from sidecar.project.files import encoding_of
from sidecar.project.footprint import ByteRange, Footprint, Problem, ProblemFix, find_all_footprints
from sidecar.project.loading_rules import loading_rules
from sidecar.project.source_files import SourceFiles
from sidecar.text.printable import first_names, printable

_WHOLE_FILE = ("instructions-hidden", "rule-always-loaded")
"""The codes of findings about a whole file. Its first line is underlined."""
MAX_FINDINGS = 100
"""Maximum number of findings in a file."""
_MARK_BYTES = {"utf-8": 0, "utf-8-sig": 3, "utf-16": 2, "utf-32": 4}
"""The length of the byte order mark that each encoding skips."""


def check_instructions(
    root: Path,
    settings: Settings,
    files: SourceFiles,
    *,
    windows: Mapping[str, int] | None = None,
) -> dict[str, list[FileProblem]]:
    """Return the problems to show in a root, by the path of their file. This function blocks.

    Args:
        root: The root folder, which is where the agents start.
        settings: The root's settings.
        files: Reads the files.
        windows: The context windows of agents in tokens, as far as they are known.
    """
    if not settings.footprint.diagnostics:
        return {}
    places = Places.of(settings.agents, projects=[root])
    agents = choose_agents(root, settings, places)
    footprints = find_all_footprints(root, places, files, agents=agents, windows=windows)
    return problems_by_path(footprints, settings.footprint)


def choose_agents(root: Path, settings: Settings, places: Places) -> tuple[str, ...]:
    """Return the agents to check: those of `find_used_agents`, or all if there are none.

    In CI, where folders show nothing about the users, all are checked unless settings name some.
    """
    used = find_used_agents(root, settings, places)
    is_ci = places.variable("CI").lower() not in ("", "0", "false")
    is_certain = settings.footprint.agents is not None or (used and not is_ci)
    return used if is_certain else tuple(loading_rules())


def find_used_agents(root: Path, settings: Settings, places: Places) -> tuple[str, ...]:
    """Return the agents that the settings name or, if they name none, that are used here."""
    known, named = loading_rules(), settings.footprint.agents
    if named is not None:
        return tuple(agent for agent in named if agent in known)
    readable = (settings.agents.sources or known) if settings.agents.enabled else ()
    return tuple(agent for agent in known if agent in readable and _is_used(agent, root, places))


def _is_used(agent: str, root: Path, places: Places) -> bool:
    """Return whether an agent has a folder of the user's, or its own file in the root.

    Folders of editors do not count: they do not show which extensions are installed.
    """
    paths = list(map(str, places.in_use(loading_rules()[agent].home)))
    if agent in all_agents():
        paths += map(str, agent_folders(places, agent))
        paths += project_files(places, agent, [str(root)])
    return any(map(os.path.exists, paths))


class FileProblem(NamedTuple):
    """A problem with its severity, and the agents that it applies to."""

    problem: Problem
    severity: FindingSeverity
    agents: tuple[str, ...]
    message: str


class InstructionFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something in a file that coding agents lose or load twice. Offsets are in characters."""

    severity: FindingSeverity
    code: InstructionCode
    message: str
    agents: tuple[str, ...]
    start: int
    end: int
    fix: Fix | None = None


def problems_by_path(
    footprints: Iterable[Footprint], settings: FootprintSettings
) -> dict[str, list[FileProblem]]:
    """Return the problems to show, by the path of their file.

    The same problem of several agents is returned once, and its message names all of them.
    """
    same: dict[tuple[object, ...], list[Problem]] = {}
    for problem in (one for footprint in footprints for one in footprint.problems):
        fact = problem.message.removeprefix(_name_of(problem.agent))
        span = None if problem.code in _WHOLE_FILE else problem.range
        key = (problem.path, problem.code, span, problem.fix, fact)
        same.setdefault(key, []).append(problem)
    found: dict[str, list[FileProblem]] = {}
    for problems in same.values():
        first = problems[0]
        severity = settings.severity.get(first.code, DEFAULT_SEVERITIES[first.code])
        in_file = found.setdefault(first.path, [])
        if severity != "off" and len(in_file) < MAX_FINDINGS:
            agents = tuple(dict.fromkeys(problem.agent for problem in problems))
            in_file.append(FileProblem(first, severity, agents, _message(first, agents[1:])))
    return found


def _message(problem: Problem, others: Sequence[str]) -> str:
    if not others:
        return printable(problem.message)
    names = first_names([_name_of(agent) for agent in others])
    return printable(f"{problem.message} The same applies to {names}.")


def _name_of(agent: str) -> str:
    rules = loading_rules()[agent]
    return f"{rules.title} {rules.version}".strip()


def _underlined(problem: Problem, data: bytes) -> ByteRange:
    """Return the range to underline. It is the first line if the problem is the whole file."""
    if problem.code not in _WHOLE_FILE:
        return problem.range
    return ByteRange(0, len(re.split(rb"[\r\n]", data, maxsplit=1)[0]))


def locate(problems: Sequence[FileProblem], data: bytes) -> list[InstructionFinding]:
    """Return findings for the problems of a file, with ranges in characters.

    Args:
        problems: The problems.
        data: What the file contained when the problems were found.
    """
    ranges = [_underlined(row.problem, data) for row in problems]
    blanks = [at for row in problems if row.problem.fix for at in row.problem.fix.blanks]
    bounds = [bound for one in ranges for bound in (one.start, one.end)]
    offsets = character_offsets(data, [*bounds, *blanks])
    return [
        InstructionFinding(
            severity=row.severity,
            code=row.problem.code,
            message=row.message,
            agents=row.agents,
            start=offsets[underlined.start].start,
            end=offsets[underlined.end].end,
            fix=None if row.problem.fix is None else _make_fix(row.problem.fix, offsets),
        )
        for row, underlined in zip(problems, ranges, strict=True)
    ]


def _make_fix(fix: ProblemFix, offsets: Mapping[int, CharacterBounds]) -> Fix:
    if fix.deletes:
        return Fix(kind="delete", title=fix.title, edits=(), deleted_uri=Path(fix.deletes).as_uri())
    places = [offsets[at].start for at in fix.blanks]
    edits = tuple(TextEdit(place, place, " ") for place in places)
    return Fix(kind="import", title=fix.title, edits=edits, preferred=True)


class CharacterBounds(NamedTuple):
    """The characters around a byte. They are equal unless the byte is inside a character."""

    start: int
    end: int


def character_offsets(data: bytes, offsets: Iterable[int]) -> dict[int, CharacterBounds]:
    """Convert byte offsets in a file to offsets in its text, as editors decode it.

    A byte order mark is not part of the text. All offsets in a binary file are 0.
    """
    encoding = encoding_of(data)
    if encoding is None:
        return dict.fromkeys(offsets, CharacterBounds(0, 0))
    return dict(_convert_offsets(data, sorted(set(offsets)), encoding))


def _convert_offsets(
    data: bytes, offsets: Sequence[int], encoding: str
) -> Iterator[tuple[int, CharacterBounds]]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    at, characters = 0, 0
    for offset in offsets:
        characters += len(decoder.decode(data[at:offset]))
        at = offset
        is_inside = offset > _MARK_BYTES[encoding] and bool(decoder.getstate()[0])
        yield offset, CharacterBounds(characters, characters + is_inside)
