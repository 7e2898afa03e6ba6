"""Decides which paths `.gitignore` files exclude, with git's rules.

Repositories may be hostile, so the number and length of the patterns are limited. As in git, a
`.gitignore` that is a symbolic link has no effect.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from sidecar.config.project_files import RefusedError, read_regular
from sidecar.text.globs import IgnoreGlobs, path_glob_problem

NAME = ".gitignore"
MAX_LINES = 10_000
MAX_WILDCARDS = 500
"""Most wildcards in a folder's `.gitignore` and those of its parents together.

The star of `*.end` does not count, because such patterns are looked up by name.
"""


class IgnoreRules(NamedTuple):
    """The patterns of one `.gitignore`, for paths that start with `prefix`.

    `problem` says why some patterns were not read.
    """

    prefix: str
    globs: IgnoreGlobs
    problem: str | None = None
    lines: int = 0
    wildcards: int = 0


def read_rules(folder: str, above: Sequence[IgnoreRules] = ()) -> list[IgnoreRules]:
    """Read a folder's own rules, within the limits that the rules of its parents leave."""
    path = os.path.join(folder, NAME)
    if os.path.islink(path):
        return []
    prefix = with_slashes(os.path.abspath(folder)).rstrip("/") + "/"
    try:
        data = read_regular(path)
    except RefusedError as error:
        return [IgnoreRules(prefix, IgnoreGlobs(()), error.strerror)]
    except OSError:
        return []
    return [_parse_rules(prefix, _split_lines(data), above)]


def read_parent_rules(folder: str) -> list[IgnoreRules]:
    """Read the rules of a folder's parents in its repository.

    Returns no rules if they exclude the folder itself: the user has named it.
    """
    rules: list[IgnoreRules] = []
    for parent in work_tree_parents(folder):
        rules += read_rules(parent, rules)
    return [] if is_ignored(folder, True, rules) else rules


def work_tree_parents(folder: str) -> list[str]:
    """Return the parent folders inside the git work tree, topmost first."""
    found: list[str] = []
    at = os.path.abspath(folder)
    while not os.path.exists(os.path.join(at, ".git")):
        parent = os.path.dirname(at)
        if parent == at:
            return []
        found.append(parent)
        at = parent
    return found[::-1]


def is_ignored(path: str, folder: bool, rules: list[IgnoreRules]) -> bool:
    """Return whether a path is ignored. The deepest `.gitignore` that matches decides."""
    return bool(rules) and is_ignored_at(with_slashes(os.path.abspath(path)), folder, rules)


def is_ignored_at(absolute: str, folder: bool, rules: list[IgnoreRules]) -> bool:
    """Return whether an absolute path, with `/` as separator, is ignored."""
    for rule in reversed(rules):
        verdict = rule.globs.verdict(absolute[len(rule.prefix) :], folder=folder)
        if verdict is not None:
            return verdict
    return False


def _split_lines(data: bytes) -> list[str]:
    text = os.fsdecode(data).removeprefix("\ufeff")
    return [line.removesuffix("\r") for line in text.split("\n")]


def _parse_rules(prefix: str, lines: list[str], above: Sequence[IgnoreRules]) -> IgnoreRules:
    most_lines = MAX_LINES - sum(rule.lines for rule in above)
    most_wildcards = MAX_WILDCARDS - sum(rule.wildcards for rule in above)
    problem = f"there are more than {MAX_LINES:,} lines" if len(lines) > most_lines else None
    kept, used = [], 0
    for line in lines[: max(0, most_lines)]:
        if line.startswith("#"):
            continue
        wrong, more = path_glob_problem(line), _count_wildcards(line)
        if used + more > most_wildcards:
            wrong = wrong or f"there are more than {MAX_WILDCARDS:,} wildcards"
        problem = problem or wrong
        if not wrong:
            kept.append(line)
            used += more
    cut = problem and f"not read in full: {problem}"
    return IgnoreRules(prefix, IgnoreGlobs(kept), cut, min(len(lines), max(0, most_lines)), used)


def _count_wildcards(line: str) -> int:
    pattern = line.removeprefix("!")
    known = "/" not in pattern[:-1] and pattern.startswith("*")
    return sum(pattern.count(wildcard) for wildcard in "*?[") - known


def with_slashes(path: str) -> str:
    return path.replace(os.sep, "/")
