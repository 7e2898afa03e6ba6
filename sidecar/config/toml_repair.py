"""TOML with mistakes: each one is named by line and key, and the rest is still read. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sidecar.config.settings import setting_names
from sidecar.config.toml_limits import TooMuchError, check_limits

MAX_ERRORS = 20
MAX_PARSED = 2_000_000  # characters, all attempts together
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_KEY = re.compile(r"[ \t]*\[{0,2}[ \t]*([A-Za-z-]+)")
_QUOTING = {
    "Cannot declare": "a table is declared twice",
    "Duplicate inline table key": "a key is given twice",
    "Illegal character": "an illegal character",
    "Found invalid character": "an illegal character",
    "Invalid hex value": "an invalid escape sequence",
}
"""Messages of `tomllib` that quote from the text, by how they begin, and their replacements."""


class SyntaxProblem(msgspec.Struct, frozen=True):
    """A syntax error: 1-based line and column (None for a whole line), the key or table that stands
    there where it is one of ours, and what is wrong. Nothing else is quoted: it may be no TOML."""

    line: int
    column: int | None
    key: str
    message: str


class Parsed(msgspec.Struct, frozen=True):
    """What could be read: values, the text that they stand in (lines as they were), mistakes."""

    values: dict[str, Any]
    text: str
    problems: list[SyntaxProblem]


def parse(text: str) -> Parsed:
    """Everything that can be read of a TOML text, and one problem for each statement that cannot.

    The line with the mistake is taken out (a broken table header with all that stands under it,
    which would else fall to the table before) and the text is read again, `MAX_ERRORS` times at
    most; a text with more mistakes is given up, and one that is over a limit is not read at all.
    """
    from tomllib import loads  # where nothing is configured no start waits for it

    lines = text.replace("\r\n", "\n").split("\n")
    problems: list[SyntaxProblem] = []
    left = MAX_PARSED
    while len(problems) < MAX_ERRORS and left > 0:
        whole = "\n".join(lines)
        left -= len(whole)
        try:
            check_limits(whole)
            return Parsed(loads(whole), whole, problems)
        except TooMuchError as error:
            line = whole.count("\n", 0, error.at) + 1
            column = error.at - whole.rfind("\n", 0, error.at)
            return Parsed({}, "", [*problems, SyntaxProblem(line, column, "", str(error))])
        except (ValueError, RecursionError) as error:
            problem = _problem(str(error), lines)
            problems.append(problem)
            _take_out(lines, problem.line - 1)
    return Parsed({}, "", problems)


def _problem(message: str, lines: list[str]) -> SyntaxProblem:
    place = _PLACE.search(message)
    column = None
    if place is None:
        # A number beyond Python's limits, for which it names no place.
        line = max(range(len(lines)), key=lambda index: len(lines[index])) + 1
        reason = "a number is too large"
    else:
        reason = _unquoted(message[: place.start()])
        at = int(place[1]) if place[1] else len(lines)
        line = _statement(lines, at)
        column = int(place[2]) if place[2] and line == at else None
    return SyntaxProblem(line, column, _key(lines[line - 1]), f"is not valid TOML: {reason}")


def _unquoted(message: str) -> str:
    """What the parser says, without what it quotes."""
    for beginning, instead in _QUOTING.items():
        if message.startswith(beginning):
            return instead
    return message[:1].lower() + message[1:]


def _key(line: str) -> str:
    """The key or table that a line begins with, if it is a setting's name."""
    found = _KEY.match(line)
    return found[1] if found and found[1] in setting_names() else ""


def _statement(lines: list[str], line: int) -> int:
    """The line that the mistake is on, or the nearest one before that still has text."""
    while line > 1 and not lines[line - 1].strip():
        line -= 1
    return line


def _take_out(lines: list[str], index: int) -> None:
    header = lines[index].lstrip().startswith("[")
    lines[index] = ""
    if not header:
        return
    for below in range(index + 1, len(lines)):
        if lines[below].lstrip().startswith("["):
            return
        lines[below] = ""
