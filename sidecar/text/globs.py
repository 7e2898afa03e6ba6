"""Globs: on paths those of `.gitignore`, matched by pathspec; on models' names those of fnmatch.

With RE2 a path is compared with all patterns of a list at once, in time linear in its length. Where
google-re2 has no wheel, Python's own expressions are used, which may try a wildcard again and
again; so patterns of many wildcards are refused there. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathspec import PathSpec, RegexPattern

MAX_LENGTH = 1_000  # characters of a pattern
MAX_WILDCARDS = 50  # stars, question marks and brackets of a pattern
MAX_WILDCARDS_WITHOUT_RE2 = 3
"""With four, Python compares a name of 255 characters for a quarter of a second; with five, for
half a minute."""
MAX_PATTERNS = 1_000  # patterns of one setting
_COMPILED_TOGETHER = 10_000
"""Characters of patterns, which is far below the memory that RE2 allows for a set."""

_BRACKET = re.compile(r"\\.|\[[!^]?\]?[^\]]*\]", re.DOTALL)
_UNLIKE_GIT = re.compile(r"\[[!^]|\[\]?[^\]]*?(?:[\\\[/]|--|&&|~~|\|\|)", re.DOTALL)
"""Brackets that pathspec takes for others than git does: negated ones match a slash, …"""
_ENDINGS = (("(?:(?P<ps_d>/)|$)", "/?$"), ("(?P<ps_d>/)", "/$"))
"""How the expressions of pathspec end that also match what is in a folder, and what they become."""
_INSIDE = re.compile(r"(?:/\*\*+)+(/?) *$")
_ESCAPES: dict[int, int] = {
    ord("\n"): 0xFFFFF,
    **{0xD800 + number: 0xF0000 + number for number in range(0x800)},
}
"""What expressions cannot take or treat unlike other characters: a line feed, and the surrogates
that stand for bytes that are no UTF-8."""


def problem_of(pattern: str) -> str | None:
    """What is wrong with a glob for names or paths that a user wrote; None when nothing is."""
    if len(pattern) > MAX_LENGTH:
        return f"a pattern has more than {MAX_LENGTH:,} characters"
    if _wildcards(pattern) > MAX_WILDCARDS:
        return f"a pattern has more than {MAX_WILDCARDS} wildcards"
    return None


def path_problem_of(pattern: str) -> str | None:
    """What is wrong with a line of a `.gitignore`, or a glob that is written like one."""
    if (problem := problem_of(pattern)) is not None:
        return problem
    if _wildcards(pattern) > MAX_WILDCARDS_WITHOUT_RE2 and not _has_re2():
        return f"a pattern has more than {MAX_WILDCARDS_WITHOUT_RE2} wildcards, without google-re2"
    brackets = [found[0] for found in _BRACKET.finditer(pattern) if found[0][0] == "["]
    if any(map(_UNLIKE_GIT.match, brackets)):
        return "a pattern has brackets with one of ! ^ [ \\ / -- in them, which are not supported"
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    is_empty = "/" in pattern and not pattern.removeprefix("!").strip("/ ")
    try:
        GitIgnoreSpecPattern(pattern)
    except (ValueError, re.error):
        return "a pattern is not valid"
    return "a pattern is not valid" if is_empty else None


def names_any(globs: Iterable[str], names: Iterable[str]) -> bool:
    """Whether one of the globs matches one of the names; case makes no difference.

    `*` is any text, slashes included, `?` one character, `[a-c]` one of these, `[!a-c]` one of the
    others; a bracket that nothing closes and a backslash mean themselves.
    """
    lower = [name.lower() for name in names]
    return any(fnmatchcase(name, glob.lower()) for glob in globs for name in lower)


class PathGlobs:
    """A list of globs on paths: the last one that matches decides, `!` takes out."""

    def __init__(self, globs: Iterable[str]) -> None:
        from pathspec import PathSpec
        from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

        def compiled(lines: Sequence[str]) -> PathSpec[Any]:
            return PathSpec.from_lines(GitIgnoreSpecPattern, lines, backend=_backend())

        self._specs = [compiled(lines) for lines in _last_first(map(_without_special, globs))]

    def has_file(self, path: str) -> bool:
        """Whether a file is meant, by itself or by a folder that it is in."""
        return bool(_verdict(self._specs, path))


class IgnoreGlobs:
    """The lines of a `.gitignore`, for paths relative to its folder, as git decides.

    `GitIgnoreSpec` is not used: there a line that is about a folder may outweigh one that is about
    what is in it (`node_modules/`, `/*`, `!/src/` leave `src/node_modules/` in).
    """

    def __init__(self, lines: Iterable[str]) -> None:
        from pathspec import PathSpec

        def compiled(lines: Sequence[str]) -> PathSpec[Any]:
            return PathSpec(map(_of_path_itself, lines), backend=_backend())

        self._specs = [compiled(lines) for lines in _last_first(map(_as_matched, lines))]

    def verdict(self, path: str, *, folder: bool) -> bool | None:
        """Whether a path is ignored whose folders are not; None where no line is about it."""
        return _verdict(self._specs, f"{path}/" if folder else path)


def _of_path_itself(line: str) -> RegexPattern:
    """The pattern of a line that matches a path itself, and not what is in a folder."""
    from pathspec import RegexPattern
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    regex, include = GitIgnoreSpecPattern.pattern_to_regex(line)
    if regex is None:
        return RegexPattern(None)
    for ending, itself in _ENDINGS:
        if regex.endswith(ending):
            regex = regex.removesuffix(ending) + itself
    return RegexPattern(re.compile(regex), include)


def _verdict(specs: Iterable[PathSpec[Any]], path: str) -> bool | None:
    safe = _without_special(path)
    found = (spec.check_file(safe, separators=()).include for spec in specs)
    return next((include for include in found if include is not None), None)


def _last_first(lines: Iterable[str]) -> list[list[str]]:
    """Lines in lists that are compiled together, the last list first."""
    lists: list[list[str]] = []
    left = 0
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            lists.append([])
            left = _COMPILED_TOGETHER
        lists[-1].append(line)
    return lists[::-1]


def _as_matched(line: str) -> str:
    """A line as git means it: for pathspec `a/**` matches the folder `a` too."""
    return _INSIDE.sub(r"/**/*\1", _without_special(line))


def _without_special(text: str) -> str:
    is_plain = text.isascii() and "\n" not in text
    return text if is_plain else text.translate(_ESCAPES)


def _wildcards(pattern: str) -> int:
    return sum(pattern.count(wildcard) for wildcard in "*?[")


@cache
def _has_re2() -> bool:
    return find_spec("re2") is not None


def _backend() -> str:
    return "re2" if _has_re2() else "simple"
