"""What `.gitignore` files exclude, as git decides it.

They are a repository's, so they are read as any file that configures a project, and under caps; as
for git, one that is a symbolic link says nothing.
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
"""Both of a folder's file and those above it together: each file below is compared with them all.
Wildcards without the star of `*.end`, which is looked up as a name is."""


class IgnoreRules(NamedTuple):
    """The patterns of one `.gitignore`, for paths that begin with `prefix`.

    `problem`: what of it is left out, and why.
    """

    prefix: str
    globs: IgnoreGlobs
    problem: str | None = None
    lines: int = 0
    wildcards: int = 0


def rules_in(folder: str, above: Sequence[IgnoreRules] = ()) -> list[IgnoreRules]:
    """The folder's own rules, for as many as those `above` leave room; none without such a file."""
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
    return [_rules(prefix, _lines(data), above)]


def rules_above(folder: str) -> list[IgnoreRules]:
    """Rules of the parents up to the repository's root; none outside a repository.

    None as well for a folder that they exclude: who names it wants what is in it.
    """
    rules: list[IgnoreRules] = []
    for parent in parents(folder):
        rules += rules_in(parent, rules)
    return [] if ignored(folder, True, rules) else rules


def parents(folder: str) -> list[str]:
    """The folders above, from the top of the git work tree down; none outside of one."""
    found: list[str] = []
    at = os.path.abspath(folder)
    while not os.path.exists(os.path.join(at, ".git")):
        parent = os.path.dirname(at)
        if parent == at:
            return []
        found.append(parent)
        at = parent
    return found[::-1]


def ignored(path: str, folder: bool, rules: list[IgnoreRules]) -> bool:
    """As git decides: the deepest `.gitignore` that says anything about the path."""
    return bool(rules) and ignored_at(with_slashes(os.path.abspath(path)), folder, rules)


def ignored_at(absolute: str, folder: bool, rules: list[IgnoreRules]) -> bool:
    """The same for an absolute path with `/`."""
    for rule in reversed(rules):
        verdict = rule.globs.verdict(absolute[len(rule.prefix) :], folder=folder)
        if verdict is not None:
            return verdict
    return False


def _lines(data: bytes) -> list[str]:
    text = os.fsdecode(data).removeprefix("\ufeff")
    return [line.removesuffix("\r") for line in text.split("\n")]


def _rules(prefix: str, lines: list[str], above: Sequence[IgnoreRules]) -> IgnoreRules:
    most_lines = MAX_LINES - sum(rule.lines for rule in above)
    most_wildcards = MAX_WILDCARDS - sum(rule.wildcards for rule in above)
    problem = f"there are more than {MAX_LINES:,} lines" if len(lines) > most_lines else None
    kept, used = [], 0
    for line in lines[: max(0, most_lines)]:
        if line.startswith("#"):
            continue
        wrong, more = path_glob_problem(line), _wildcards(line)
        if used + more > most_wildcards:
            wrong = wrong or f"there are more than {MAX_WILDCARDS:,} wildcards"
        problem = problem or wrong
        if not wrong:
            kept.append(line)
            used += more
    cut = problem and f"not read in full: {problem}"
    return IgnoreRules(prefix, IgnoreGlobs(kept), cut, min(len(lines), max(0, most_lines)), used)


def _wildcards(line: str) -> int:
    pattern = line.removeprefix("!")
    known = "/" not in pattern[:-1] and pattern.startswith("*")
    return sum(pattern.count(wildcard) for wildcard in "*?[") - known


def with_slashes(path: str) -> str:
    """A path as patterns see it."""
    return path.replace(os.sep, "/")
