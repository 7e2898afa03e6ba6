"""Matches paths with globs in `.gitignore` syntax, and model names with globs in fnmatch syntax.

pathspec compiles the globs for paths, and RE2 compares a path with all of them in linear time. On
platforms for which google-re2 has no wheel, Python's regular expressions are used. They may
backtrack exponentially, so patterns with many wildcards are rejected. This module does no I/O.
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

MAX_LENGTH = 1_000  # maximum number of characters in a pattern
MAX_WILDCARDS = 50  # maximum number of stars, question marks and brackets in a pattern
MAX_WILDCARDS_WITHOUT_RE2 = 3
"""Maximum number of wildcards in a pattern if RE2 is not available. For a name of 255 characters,
Python takes a quarter of a second with four wildcards, and 30 seconds with five.
"""
MAX_PATTERNS = 1_000  # maximum number of patterns in one setting
_COMPILED_TOGETHER = 10_000
"""Maximum number of characters in the patterns that are compiled into one set. The set then stays
far below RE2's memory limit.
"""

_BRACKET = re.compile(r"\\.|\[[!^]?\]?[^\]]*\]", re.DOTALL)
_UNLIKE_GIT = re.compile(r"\[[!^]|\[\]?[^\]]*?(?:[\\\[/]|--|&&|~~|\|\|)", re.DOTALL)
"""Brackets that pathspec interprets differently from git, such as negated brackets."""
_ENDINGS = (("(?:(?P<ps_d>/)|$)", "/?$"), ("(?P<ps_d>/)", "/$"))
"""Endings of pathspec's regular expressions, and their replacements. Each ending also matches a
folder's contents, but its replacement does not.
"""
_INSIDE = re.compile(r"(?:/\*\*+)+(/?) *$")
_ESCAPES: dict[int, int] = {
    ord("\n"): 0xFFFFF,
    **{0xD800 + number: 0xF0000 + number for number in range(0x800)},
}
"""Replacements for characters that the regular expressions do not support: line feeds and
surrogates. Surrogates represent bytes that are not UTF-8.
"""

_BYTES = {byte: 0xF0000 + byte for byte in range(256) if not 0x20 <= byte < 0x7F}


def glob_problem(pattern: str) -> str | None:
    """Return why a glob for names or paths is invalid, or None if it is valid."""
    if len(pattern) > MAX_LENGTH:
        return f"a pattern has more than {MAX_LENGTH:,} characters"
    if _count_wildcards(pattern) > MAX_WILDCARDS:
        return f"a pattern has more than {MAX_WILDCARDS} wildcards"
    return None


def path_glob_problem(pattern: str) -> str | None:
    """Return why a path glob or `.gitignore` pattern is invalid, or None."""
    if (problem := glob_problem(pattern)) is not None:
        return problem
    if _count_wildcards(pattern) > MAX_WILDCARDS_WITHOUT_RE2 and not _has_re2():
        most = MAX_WILDCARDS_WITHOUT_RE2
        return f"a pattern has more than {most} wildcards, the limit without google-re2"
    brackets = [match[0] for match in _BRACKET.finditer(pattern) if match[0][0] == "["]
    if any(map(_UNLIKE_GIT.match, brackets)):
        return "a pattern has brackets that contain !, ^, [, \\, / or --, which are not supported"
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    is_empty = "/" in pattern and not pattern.removeprefix("!").strip("/ ")
    try:
        GitIgnoreSpecPattern(pattern)
    except (ValueError, re.error):
        return "a pattern is not valid"
    return "a pattern is not valid" if is_empty else None


def matches_any(globs: Iterable[str], names: Iterable[str]) -> bool:
    """Return whether any of the globs matches any of the names. Case is ignored.

    `*` matches any text, including slashes. `?` matches one character, `[a-c]` matches one of these
    characters, and `[!a-c]` matches any other character. An unclosed bracket or a backslash matches
    itself.
    """
    lower = [name.lower() for name in names]
    return any(fnmatchcase(name, glob.lower()) for glob in globs for name in lower)


class PathGlobs:
    """Globs for paths. The last glob that matches a path decides whether the path is included.
    Globs that start with `!` exclude paths.
    """

    def __init__(self, globs: Iterable[str]) -> None:
        from pathspec import PathSpec
        from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

        def compiled(lines: Sequence[str]) -> PathSpec[Any]:
            return PathSpec.from_lines(GitIgnoreSpecPattern, lines, backend=_backend_name())

        self._specs = [compiled(lines) for lines in _last_first(map(_as_matched, globs))]

    def matches_file(self, path: str) -> bool:
        """Return whether a file or one of its parent folders matches."""
        return bool(_verdict_of(self._specs, _without_special(path)))


class IgnoreGlobs:
    """The lines of a `.gitignore` file, interpreted as in git. Paths are relative to its folder.

    git matches bytes: `?` does not match a character of two bytes. pathspec's `GitIgnoreSpec`
    differs from git. For the lines `node_modules/`, `/*` and `!/src/`, it does not ignore
    `src/node_modules/`.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        from pathspec import PathSpec

        def compiled(lines: Sequence[str]) -> PathSpec[Any]:
            return PathSpec(map(_own_pattern, lines), backend=_backend_name())

        rewritten = (_INSIDE.sub(r"/**/*\1", _as_bytes(line)) for line in lines)
        self._specs = [compiled(lines) for lines in _last_first(rewritten)]

    def verdict(self, path: str, *, folder: bool) -> bool | None:
        """Return whether a path is ignored, or None if no line matches the path.

        The result is valid only if no parent folder of the path is ignored.
        """
        return _verdict_of(self._specs, _as_bytes(f"{path}/" if folder else path))


def _own_pattern(line: str) -> RegexPattern:
    from pathspec import RegexPattern
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    regex, include = GitIgnoreSpecPattern.pattern_to_regex(line)
    if regex is None:
        return RegexPattern(None)
    for ending, replacement in _ENDINGS:
        if regex.endswith(ending):
            regex = regex.removesuffix(ending) + replacement
    return RegexPattern(re.compile(regex), include)


def _verdict_of(specs: Iterable[PathSpec[Any]], path: str) -> bool | None:
    verdicts = (spec.check_file(path, separators=()).include for spec in specs)
    return next((include for include in verdicts if include is not None), None)


def _last_first(lines: Iterable[str]) -> list[list[str]]:
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
    """Rewrite a line so that pathspec interprets it as git does.

    In pathspec, `a/**` also matches the folder `a`.
    """
    return _INSIDE.sub(r"/**/*\1", _without_special(line))


def _without_special(text: str) -> str:
    is_plain = text.isascii() and "\n" not in text
    return text if is_plain else text.translate(_ESCAPES)


def _as_bytes(text: str) -> str:
    """Return a character for each byte of a path or pattern.

    Only printable ASCII characters represent themselves, because pathspec strips other white space
    from the ends of patterns.
    """
    if text.isascii() and text.isprintable():
        return text
    return text.encode("utf-8", "surrogateescape").decode("latin-1").translate(_BYTES)


def _count_wildcards(pattern: str) -> int:
    return sum(pattern.count(wildcard) for wildcard in "*?[")


@cache
def _has_re2() -> bool:
    return find_spec("re2") is not None


def _backend_name() -> str:
    return "re2" if _has_re2() else "simple"
