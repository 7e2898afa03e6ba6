"""Globs on paths, as in `.gitignore`, and on names: the one matcher, linear in pattern x text.

A pattern is cut at its stars into runs of fixed length. The first run stands at the beginning of
the text, the last at its end, and each between them where it is found first after the one before:
whatever a later place allows, the first one allows too. So nothing is ever tried again, and no
pattern takes longer than its own length times that of the text. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from functools import lru_cache
from typing import TypeVar

from sidecar.text.glob_syntax import STAR, FixedRun, GlobReader, InvalidGlobError, Run, Segment

MAX_LENGTH = 1_000  # characters of a pattern
MAX_WILDCARDS = 50  # stars, question marks and brackets of a pattern
MAX_PATTERNS = 1_000  # patterns of one setting

_Run = TypeVar("_Run", bound="Sized")
_Key = tuple[str, str]
"""`name`, `end` or `path`, and what it must be."""


def problem_of(pattern: str) -> str | None:
    """What is wrong with a pattern for paths or names that someone wrote; None when nothing is."""
    if len(pattern) > MAX_LENGTH:
        return f"a pattern has more than {MAX_LENGTH:,} characters"
    if sum(pattern.count(wildcard) for wildcard in "*?[") > MAX_WILDCARDS:
        return f"a pattern has more than {MAX_WILDCARDS} wildcards"
    return None


def names_any(globs: Iterable[str], names: Iterable[str]) -> bool:
    """Whether one of the globs means one of the names; case makes no difference.

    `*` is any text, slashes included, `?` one character, `[a-c]` one of these, `[!a-c]` one of the
    others; a bracket that nothing closes and a backslash mean themselves.
    """
    lower = [name.lower() for name in names]
    return any(_in_name(_name(glob.lower()), name) for glob in globs for name in lower)


class PathGlob:
    """One line of a `.gitignore`, for paths relative to its folder, with `/` between the parts.

    `negated` for one that begins with `!`; `empty` for a comment, a blank line, and what git passes
    over, such as a bracket that nothing closes: it means no path.
    """

    def __init__(self, line: str) -> None:
        self.negated = line.startswith("!")
        self.empty = True
        self._runs: list[tuple[Segment, ...]] = []
        self._inside: list[tuple[Segment, ...]] = []
        self._name: Segment | None = None
        pattern = _without_blanks(line.removeprefix("!"))
        self.only_folders = pattern.endswith("/")
        pattern = pattern.removesuffix("/")
        if not pattern or line.startswith("#"):
            return
        try:
            self._runs = _path(pattern)
        except InvalidGlobError:
            return
        self.empty = False
        if len(self._runs) == 2 and not self._runs[0] and len(self._runs[1]) == 1:
            self._name = self._runs[1][0]
        self._inside = [*self._runs, (STAR,) if self.only_folders else ()]

    @property
    def plain(self) -> tuple[str, bool] | None:
        """The name, or (with True) the end of names, that it is about; None for other patterns."""
        first, last = (self._name[0], self._name[-1]) if self._name else (None, None)
        if self._name is None or not isinstance(first, str) or not isinstance(last, str):
            return None
        if len(self._name) == 1:
            return first, False
        return (last, True) if not first and len(self._name) == 2 else None

    @property
    def key(self) -> _Key | None:
        """What a path, its name or the end of its name must be; None where that is not all."""
        if self.plain is not None:
            name, is_end = self.plain
            return "end" if is_end else "name", name
        if len(self._runs) != 1 or any(len(segment) > 1 for segment in self._runs[0]):
            return None
        texts = [text for (text,) in self._runs[0] if isinstance(text, str)]
        return ("path", "/".join(texts)) if len(texts) == len(self._runs[0]) else None

    def means(self, parts: Sequence[str], *, folder: bool) -> bool:
        """Whether it means this very path, and not only a folder above it."""
        if self.empty or (self.only_folders and not folder):
            return False
        if self._name is not None:
            return _in_name(self._name, parts[-1])
        last = self._runs[-1]
        if last and not _in_name(last[-1], parts[-1]):  # so most paths are told apart
            return False
        return _matches(self._runs, parts, _segments_at)

    def means_file(self, parts: Sequence[str]) -> bool:
        """Whether it means a file, or a folder that the file is in."""
        if self._name is not None:
            among = parts[:-1] if self.only_folders else parts
            return any(_in_name(self._name, part) for part in among)
        return not self.empty and _matches(self._inside, parts, _segments_at)


class PathGlobs:
    """The lines of a `.gitignore`, or a list of globs with its meaning: the last match decides."""

    def __init__(self, lines: Iterable[str]) -> None:
        globs = [PathGlob(line) for line in lines]
        self._globs = [glob for glob in reversed(globs) if not glob.empty]
        plain = [glob.plain for glob in self._globs]
        self.names = {name for name, suffix in filter(None, plain) if not suffix}
        """Names that patterns are about, and ends of names."""
        self.ends = tuple(name for name, suffix in filter(None, plain) if suffix)
        others = [glob for glob, known in zip(self._globs, plain, strict=True) if not known]
        self._wild: list[tuple[int, PathGlob]] = []
        self._ranks: dict[bool, dict[_Key, int]] = {True: {}, False: {}}
        for rank, glob in enumerate(self._globs):
            self._index(rank, glob)
        self._lengths = {len(text) for kind, text in self._ranks[True] if kind == "end"}
        self.others = {True: bool(others), False: any(not one.only_folders for one in others)}
        """Whether a pattern is about more of a path than its name: of a folder's, of a file's."""

    def _index(self, rank: int, glob: PathGlob) -> None:
        """Names, ends and paths without wildcards are looked up, however many there are."""
        key = glob.key
        if key is None:
            self._wild.append((rank, glob))
            return
        self._ranks[True].setdefault(key, rank)
        if not glob.only_folders:
            self._ranks[False].setdefault(key, rank)

    def verdict(self, path: str, *, folder: bool) -> bool | None:
        """Whether this very path is meant; None where no pattern says anything about it."""
        if not self.others[folder]:  # most patterns are names and ends, and most paths not meant
            name = path.rpartition("/")[2]
            if name not in self.names and not name.endswith(self.ends):
                return None
        best = self._best(path, folder)
        parts = path.split("/")
        for rank, glob in self._wild:
            if rank > best:
                break
            if glob.means(parts, folder=folder):
                return not glob.negated
        return not self._globs[best].negated if best < len(self._globs) else None

    def _best(self, path: str, folder: bool) -> int:
        """The rank of the first pattern that is looked up and means the path; else their number."""
        known, name = self._ranks[folder], path.rpartition("/")[2]
        keys: list[_Key] = [("name", name), ("path", path)]
        keys += [("end", name[len(name) - n :]) for n in self._lengths if n <= len(name)]
        return min((known[key] for key in keys if key in known), default=len(self._globs))

    def has_file(self, path: str) -> bool:
        """Whether a file is meant, by itself or by a folder that it is in."""
        parts = path.split("/")
        found = next((glob for glob in self._globs if glob.means_file(parts)), None)
        return found is not None and not found.negated


def _matches(
    runs: Sequence[_Run],
    items: Sequence[str],
    fits: Callable[[_Run, Sequence[str], int], bool],
) -> bool:
    """Whether `runs`, with anything between them, are the whole of `items`.

    `_Run` is a sequence of as many elements as it takes of the items.
    """
    first, last = runs[0], runs[-1]
    end = len(items) - len(last)
    if len(runs) == 1:
        return end == 0 and fits(first, items, 0)
    at = len(first)
    if at > end or not fits(first, items, 0) or not fits(last, items, end):
        return False
    for run in runs[1:-1]:
        found = _find(run, items, at, end, fits)
        if found is None:
            return False
        at = found + len(run)
    return True


def _find(
    run: _Run,
    items: Sequence[str],
    start: int,
    end: int,
    fits: Callable[[_Run, Sequence[str], int], bool],
) -> int | None:
    if isinstance(run, str) and isinstance(items, str):
        found = items.find(run, start, end)
        return None if found < 0 else found
    if isinstance(run, FixedRun) and isinstance(items, str):
        match = run.pattern.search(items, start, end)
        return match and match.start()
    places = range(start, end - len(run) + 1)
    return next((at for at in places if fits(run, items, at)), None)


def _segments_at(run: tuple[Segment, ...], parts: Sequence[str], at: int) -> bool:
    return all(
        _in_name(segment, part)
        for segment, part in zip(run, parts[at : at + len(run)], strict=True)
    )


def _in_name(segment: Segment, name: str) -> bool:
    first, last = segment[0], segment[-1]
    if isinstance(first, str) and isinstance(last, str):  # most are `name` or `*.end`
        if len(segment) == 1:
            return first == name
        if not first and len(segment) == 2:
            return name.endswith(last)
    return _matches(segment, name, _characters_at)


def _characters_at(run: Run, text: Sequence[str], at: int) -> bool:
    if isinstance(run, str):
        return text[at : at + len(run)] == run
    return isinstance(text, str) and run.pattern.match(text, at) is not None


@lru_cache(maxsize=1024)
def _name(glob: str) -> Segment:
    return GlobReader(glob, git=False).segment()


def _path(pattern: str) -> list[tuple[Segment, ...]]:
    """The segments of a path, in runs between `**`. Raises `InvalidGlobError`."""
    reader = GlobReader(pattern.removeprefix("/"), git=True)
    runs: list[list[Segment]] = [[]] if "/" in pattern else [[], []]
    while True:
        begin = reader.at
        segment = reader.segment()
        text, last = reader.text[begin : reader.at], reader.ended
        stars = text.removesuffix("\\")
        if len(stars) < 2 or stars.strip("*") or "/" not in pattern:
            runs[-1].append(segment)
        else:  # git lets `**` be no folder at all only before a slash without a backslash
            runs.append([STAR] if last or text != stars else [])
        if last:
            return [tuple(run) for run in runs]
        reader.at += 1


def _without_blanks(line: str) -> str:
    """A line of a `.gitignore` without the blanks at its end, but for one that is escaped."""
    bare = line.rstrip(" ")
    slashes = len(bare) - len(bare.rstrip("\\"))
    return line[: len(bare) + 1] if slashes % 2 else bare
