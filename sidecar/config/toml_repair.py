"""TOML with mistakes: each one is named by line and key, and the rest is still read. Pure."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import msgspec

MAX_ERRORS = 20
_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_KEY = re.compile(r"\s*\[*\s*([^=\]\n]*?)\s*(?:=|\]|$)")
_KEY_LENGTH = 60


class SyntaxProblem(msgspec.Struct, frozen=True):
    """A syntax error: 1-based line, the key or table that stands there, and what is wrong."""

    line: int
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
    most; a text with more mistakes is given up.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    problems: list[SyntaxProblem] = []
    while len(problems) < MAX_ERRORS:
        whole = "\n".join(lines)
        try:
            return Parsed(tomllib.loads(whole), whole, problems)
        except (ValueError, RecursionError) as error:
            problem = _problem(str(error), lines)
            problems.append(problem)
            _take_out(lines, problem.line - 1)
    return Parsed({}, "", problems)


def _problem(message: str, lines: list[str]) -> SyntaxProblem:
    place = _PLACE.search(message)
    if place is None:
        # Nesting or a number beyond Python's limits, of which no place is told.
        line = max(range(len(lines)), key=lambda index: len(lines[index])) + 1
        said = "A number or a nesting is too large"
    else:
        said = message[: place.start()]
        line = _statement(lines, int(place[1]) if place[1] else len(lines))
    found = _KEY.match(lines[line - 1])
    key = found[1][:_KEY_LENGTH] if found else ""
    return SyntaxProblem(line, key, f"is not valid TOML: {said[:1].lower()}{said[1:]}")


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
