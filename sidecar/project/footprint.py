"""Finds what a coding agent sends of a project's and the user's files before the first word.

The rules of each agent are in `loading_rules.toml`. This module reads files, but does not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from sidecar.agents.folders import Places
from sidecar.project.entry_lists import Entry, fit_descriptions, read_entry
from sidecar.project.loading_rules import (
    AgentRules,
    Entries,
    Files,
    Imports,
    Kind,
    Limit,
    Scope,
    State,
    loading_rules,
)
from sidecar.project.source_files import SourceFile, SourceFiles
from sidecar.text.globs import PathGlobs, path_glob_problem
from sidecar.text.prompt_markdown import (
    Mention,
    Span,
    Value,
    find_block_comments,
    find_mentions,
    front_matter_end,
    read_front_matter,
)

Code = Literal[
    "instructions-cut",
    "instructions-hidden",
    "import-skipped",
    "import-twice",
    "skill-lost",
    "rule-always-loaded",
]
MAX_PARTS = 5_000
"""Maximum number of parts of a footprint."""
MAX_IMPORTS = 1_000
"""Maximum number of `@path` mentions that are looked up in a file."""
MAX_MENTIONS = 20_000
"""Maximum number of mentions that are looked up for a footprint."""


NO_PLACES = Places(Path(os.devnull))
"""Stands for no user: nothing is in these folders."""


class ByteRange(msgspec.Struct, frozen=True):
    """A range of a file. Offsets are in bytes."""

    start: int
    end: int


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A file that an agent sends, or could send, before the first word.

    A file that is sent but was not read here, for example because it is a link to a file outside
    the project, has no text, and `reason` says why.
    """

    kind: Kind
    path: str
    """The absolute path as the agent names it. Links are not resolved."""
    state: State
    text: str = ""
    """What is sent of the file now. It is empty if the file is sent later or hidden."""
    is_own: bool = False
    """Whether the file is the user's, not the project's."""
    reason: str = ""
    """Why the file is cut, sent later, hidden or only named."""
    hidden_by: str = ""
    """The path of the file that stands before this one."""
    lost: tuple[ByteRange, ...] = ()
    """What the agent cuts off. Comments, which it removes, are not included."""
    is_repeated_by_sub_agents: bool = True


class ProblemFix(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the project's files that solves a problem."""

    title: str
    blanks: tuple[int, ...] = ()
    """Where blanks are inserted into the problem's file, in bytes."""
    deletes: str = ""
    """The path of a file to delete, if there are no blanks."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about an agent that the author of a file may not expect."""

    code: Code
    agent: str
    path: str
    range: ByteRange
    message: str
    fix: ProblemFix | None = None


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent sends of the files here, in the order of the request."""

    agent: str
    version: str
    """The version of the agent in which this was measured. Empty if it is from documentation."""
    parts: tuple[Part, ...]
    problems: tuple[Problem, ...] = ()


def find_footprint(
    agent: str,
    start: Path,
    places: Places,
    *,
    context_window: int | Callable[[], int | None] | None = None,
    model: str = "",
    files: SourceFiles | None = None,
) -> Footprint:
    """Return what an agent sends before the first word. This function blocks.

    Args:
        agent: The agent.
        start: The folder where the agent starts.
        places: The user's folders.
        context_window: The model's window in tokens, which limits lists of skills, or a function
            that is called if there is such a list.
        model: The model.
        files: Remembers files between the footprints of several agents.
    """
    del model  # no measured rule differs by model
    rules = loading_rules()[agent]
    finder = _Finder(agent, rules, str(start), places, files or SourceFiles())
    if rules.entries_first:
        finder.add_entries(context_window)
    for one in rules.files:
        finder.add_files(one)
    finder.add_named_by_settings()
    if not rules.entries_first:
        finder.add_entries(context_window)
    return finder.footprint()


def agents_with_files(
    start: Path,
    places: Places,
    files: SourceFiles | None = None,
    agents: Iterable[str] | None = None,
) -> tuple[str, ...]:
    """Return the agents that send, or could send, at least one file. This function blocks.

    Args:
        start: The folder where the agents start.
        places: The user's folders.
        files: Remembers files between calls.
        agents: The agents to look at. Defaults to all.
    """
    files, rules = files or SourceFiles(), loading_rules()
    finders = {
        agent: _Finder(agent, rules[agent], str(start), places, files)
        for agent in (rules if agents is None else agents)
    }
    return tuple(agent for agent, finder in finders.items() if finder.finds_any())


class SentFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that agents send before the first word."""

    path: str
    texts: Mapping[str, str]
    """What each agent sends of it."""
    is_import: bool = False
    """Whether agents find it only because other files import it."""
    note: str = ""
    """Why the file could not be read here."""
    is_own: bool = False
    """Whether the file is the user's, not the project's."""


def find_sent_files(
    start: Path, places: Places | None, replaced: Mapping[str, bytes] | None = None
) -> list[SentFile]:
    """Return the files that any agent sends before the first word. This function blocks.

    Args:
        start: The folder where the agents start.
        places: The user's folders. If None, the user's own files are skipped.
        replaced: Contents that stand in for those of files, by path.
    """
    return sent_files(find_all_footprints(start, places, replaced))


def find_all_footprints(
    start: Path,
    places: Places | None,
    replaced: Mapping[str, bytes] | None = None,
    below: Collection[str] = (),
) -> list[Footprint]:
    """Return the footprint of each agent. This function blocks.

    Args:
        start: The folder where the agents start.
        places: The user's folders. If None, the user's own files are skipped.
        replaced: Contents that stand in for those of files, by path.
        below: The files below the start to include, which are sent later.
    """
    files = SourceFiles(replaced, below=below)
    places = places or NO_PLACES
    return [find_footprint(agent, start, places, files=files) for agent in loading_rules()]


def sent_files(footprints: Iterable[Footprint]) -> list[SentFile]:
    """Return the files that any of some agents sends before the first word."""
    found: dict[str, SentFile] = {}
    for footprint in footprints:
        for part in footprint.parts:
            if part.state in ("sent", "cut"):
                earlier = found.get(part.path)
                found[part.path] = SentFile(
                    path=part.path,
                    texts={**(earlier.texts if earlier else {}), footprint.agent: part.text},
                    is_import=part.kind == "import" and (earlier is None or earlier.is_import),
                    note=part.reason if part.state == "sent" else "",
                    is_own=part.is_own or (earlier is not None and earlier.is_own),
                )
    return list(found.values())


class _Place(NamedTuple):
    """A folder in which an agent looks for files."""

    folder: str
    inside: tuple[str, ...]
    """The folders that may contain what links in this folder lead to."""
    is_own: bool = False
    is_main: bool = True
    """Whether files with paths of their own are looked for from here."""


class _File(NamedTuple):
    """A file that exists in a place."""

    path: str
    place: _Place
    name: str
    """The name or the pattern in the rules."""

    @property
    def is_rule(self) -> bool:
        """Whether a pattern found it."""
        return "*" in self.name


class _Hider(NamedTuple):
    """Why a file is hidden."""

    file: _File
    """The file that stands before it."""
    is_expected: bool
    """Whether the author expects this, so that it is no problem."""


class _Budget:
    """What is left of a limit."""

    def __init__(self, limit: Limit | None) -> None:
        self._limit = limit
        self._left = limit.bytes if limit is not None else None

    def apply(self, data: bytes) -> int:
        """Return how many bytes of a file are sent."""
        limit = self._limit
        if limit is None:
            return len(data)
        end = len(data)
        if limit.lines is not None:
            lines = list(islice(re.finditer(rb"\n", data), limit.lines))
            end = lines[-1].end() if len(lines) == limit.lines else end
        if self._left is not None and end > self._left:
            end = self._left
            if limit.keeps == "lines":
                end = data.rfind(b"\n", 0, end) + 1
            elif limit.keeps == "files":
                end = 0
        if limit.is_shared and self._left is not None:
            self._left -= end
        return end


class _Finder:
    """Collects the parts of one agent's footprint."""

    def __init__(
        self, agent: str, rules: AgentRules, start: str, places: Places, files: SourceFiles
    ) -> None:
        self._agent = agent
        self._rules = rules
        self._name = f"{rules.title} {rules.version}".strip()
        self._start = os.path.abspath(start)
        self._places = places
        self._files = files
        self._parts: list[Part] = []
        self._problems: list[Problem] = []
        self._sent: dict[str, str] = {}
        """The path of the part that sends a file or a text, by its real path or its text."""
        self._imported: set[str] = set()
        self._mentions = 0
        self._import_places: dict[str, tuple[str, ByteRange]] = {}
        """The first mention of each imported file, by its real path."""
        self._own: set[str] = set()
        """The user's files, which are not read again where the project lies below their folder."""

    def finds_any(self) -> bool:
        """Return whether there is any file. Nothing is looked for after the first."""
        for rules in self._rules.files:
            self.add_files(rules)
            if self._parts:
                return True
        self.add_named_by_settings()
        return bool(self._parts)

    def footprint(self) -> Footprint:
        """Return the footprint, without hidden files that are sent for another reason."""
        sent = {self._files.real(one.path) for one in self._parts if one.state in ("sent", "cut")}
        texts = {one.text for one in self._parts if one.state in ("sent", "cut") and one.text}
        parts, dropped = [], set[str]()
        for part in self._parts:
            if part.state == "hidden" and (
                self._files.real(part.path) in sent or part.text in texts
            ):
                dropped.add(part.path)
                continue
            parts.append(replace(part, text="") if part.state == "hidden" else part)
        self._report_imported_instructions(parts)
        problems = [
            one
            for one in self._problems
            if one.code != "instructions-hidden" or one.path not in dropped
        ]
        return Footprint(
            agent=self._agent,
            version=self._rules.version,
            parts=tuple(parts),
            problems=tuple(dict.fromkeys(problems)),
        )

    def _report_imported_instructions(self, parts: Sequence[Part]) -> None:
        """Report files that are sent as instructions, and again as imports."""
        if self._rules.imports is None or not self._rules.imports.repeats:
            return
        kinds = ("instructions", "rule")
        sent = {self._files.real(one.path) for one in parts if one.kind in kinds and one.text}
        for real, (path, span) in self._import_places.items():
            if real in sent:
                message = (
                    f"{self._name} sends this file twice, because it also sends "
                    f"{self._short(real)} by itself. Remove the import."
                )
                self._report("import-twice", path, span, message)

    # Places

    @cached_property
    def _root(self) -> str | None:
        folder = self._start
        while True:
            if os.path.lexists(os.path.join(folder, ".git")):
                return folder
            if os.path.dirname(folder) == folder:
                return None
            folder = os.path.dirname(folder)

    @property
    def _start_name(self) -> str:
        is_root = self._start == self._project[0]
        return "the project" if is_root else f"{self._short(self._start)}, where it starts"

    @cached_property
    def _project(self) -> tuple[str, ...]:
        return (self._root or self._start,)

    @cached_property
    def _own_folders(self) -> tuple[_Place, ...]:
        homes = (
            *self._places.from_settings(self._agent),
            *self._places.in_use(self._rules.home),
        )
        folders = [str(home) for home in dict.fromkeys(homes)] or [""]
        return tuple(
            _Place(one, (*filter(None, [one]), str(self._places.home)), True, one == folders[0])
            for one in folders
        )

    def _chain(self, above: str) -> list[_Place]:
        """Return the folders down to the start, outermost first."""
        root = self._root
        folders = [self._start]
        while folders[-1] != os.path.dirname(folders[-1]):
            folders.append(os.path.dirname(folders[-1]))
        folders.reverse()
        first = folders.index(root or self._start)
        outermost = first if above == "never" else 0
        if root is not None:
            outermost = {"always": 0, "one": max(first - 1, 0)}.get(above, first)
        if self._places is NO_PLACES:  # folders above the project are the user's
            outermost = first
        outer = [_Place(one, (one, str(self._places.home))) for one in folders[outermost:first]]
        return [*outer, *(_Place(one, self._project) for one in folders[first:])]

    def _folders(self, rules: Files) -> list[_Place]:
        found: list[_Place] = []
        for where in rules.where:
            if where == "user":
                found += self._own_folders
            elif where == "chain":
                found += self._chain(rules.above)
            elif where == "between":
                found += self._chain("never")[1:-1]
            else:
                folder = self._project[0] if where == "root" else self._start
                found.append(_Place(folder, self._project))
        places = list({one.folder: one for one in found}.values())
        return places[::-1] if rules.innermost_first else places

    def _paths(self, place: _Place, name: str) -> list[str]:
        """Return the files in a place that a name or a pattern stands for."""
        for mark in _PLACEHOLDERS:
            if mark in name:
                value = self._placeholders[mark]
                if not value or os.sep in value or value == "..":
                    return []
                name = name.replace(mark, value)
        if name[0] in "~${":
            is_main = place.is_own and place.is_main
            tops = [str(path) for path in self._places.named_paths(name)] if is_main else []
            paths = [("/", path.lstrip("/")) for path in tops]
        else:
            paths = [(place.folder, name)] if place.folder else []
        found: list[str] = []
        for folder, inner in paths:
            if "*" in inner:
                inside = (*place.inside, *self._project) if not place.is_own else place.inside
                found += self._files.find(folder, inner, inside)
            elif self._files.exists(path := os.path.join(folder, inner)):
                found.append(path)
        found = [path for path in found if not self._is_excluded(path)]
        if place.is_own:
            self._own.update(found)
            return found
        return [path for path in found if path not in self._own]

    @cached_property
    def _placeholders(self) -> dict[str, str]:
        styles = [text for text, _ in self._setting_texts(self._setting_key("output_style"))]
        names: Any = {}
        for path in self._places.named_paths(self._rules.names_file):
            inside = (str(self._places.home), str(path.parent))
            names = self._files.settings(str(path), inside).get(self._rules.names_key)
        name = names.get(self._start) if isinstance(names, Mapping) else None
        return {
            "{slug}": re.sub(r"[^A-Za-z0-9]", "-", self._project[0]),
            "{name}": name if isinstance(name, str) else "",
            "{style}": styles[-1] if styles else "",
        }

    # Settings

    def _setting_values(self, key: str) -> Iterator[tuple[Any, str]]:
        """Yield a setting's value in each settings file, and the file's folder."""
        settings = self._rules.settings
        for name in settings.files if settings is not None and key else ():
            if name[0] in "~${":
                paths = [str(path) for path in self._places.named_paths(name)]
                inside = (str(self._places.home), *map(os.path.dirname, paths))
            else:
                paths, inside = [os.path.join(self._start, name)], self._project
            for path in paths:
                value: Any = self._files.settings(path, inside)
                for inner in key.split("."):
                    value = value.get(inner) if isinstance(value, Mapping) else None
                if value is not None:
                    yield value, os.path.dirname(path)

    def _setting_texts(self, key: str) -> list[tuple[str, str]]:
        """Return the texts of a setting, and the folder of the file that has each."""
        found = []
        for value, folder in self._setting_values(key):
            values = [value] if isinstance(value, str) else value
            if isinstance(values, list | tuple):
                found += [(one, folder) for one in values[:1_000] if isinstance(one, str) and one]
        return found

    def _setting_key(self, field: str) -> str:
        return getattr(self._rules.settings, field, "") if self._rules.settings else ""

    @cached_property
    def _excluded(self) -> PathGlobs | None:
        texts = [text for text, _ in self._setting_texts(self._setting_key("excludes"))]
        globs = [one for one in texts if path_glob_problem(one) is None]
        return PathGlobs(globs) if globs else None

    def _is_excluded(self, path: str) -> bool:
        return self._excluded is not None and self._excluded.matches_file(path.lstrip("/"))

    def _names_of(self, rules: Files) -> list[tuple[str, ...]]:
        """Return the names that are looked for in each folder, with those of settings."""
        groups = [(one,) if isinstance(one, str) else one for one in rules.files]
        if not rules.has_settings:
            return groups
        names, also, more = map(self._setting_names, ("names", "also_names", "more_names"))
        if names:
            flagged = [one for one in self._rules.files if one.has_settings]
            at = flagged.index(rules)
            mine = names[at:] if rules is flagged[-1] else names[at : at + 1]
            groups = [(name,) for name in mine]
        groups += [(name,) for name in also if (name,) not in groups]
        return [(*group, *more) for group in groups]

    def _setting_names(self, field: str) -> list[str]:
        texts = self._setting_texts(self._setting_key(field))
        return [text for text, _ in texts if _is_plain_name(text)]

    def _limit_of(self, rules: Files) -> Limit | None:
        if rules.limit is None or not rules.limit.is_shared:
            return rules.limit
        values = [value for value, _ in self._setting_values(self._setting_key("bytes"))]
        numbers = [one for one in values if isinstance(one, int) and one >= 0]
        return replace(rules.limit, bytes=numbers[-1]) if numbers else rules.limit

    # Files

    def add_files(self, rules: Files) -> None:
        """Add the files that one entry of the rules describes."""
        places, groups = self._folders(rules), self._names_of(rules)
        found = [[self._find_group(place, group) for group in groups] for place in places]
        standing = self._standing(rules, found)
        budget = _Budget(self._limit_of(rules))
        names: dict[str, _File] = {}
        first = len(self._parts)
        for group in (one for per_place in found for one in per_place):
            chosen: _File | None = None
            for file in group:
                base = os.path.basename(file.path)
                if (hider := self._fallback_hider(rules, file, standing)) is not None:
                    self._hide(file, hider, rules)
                elif chosen is not None and not file.is_rule:
                    self._hide(
                        file, _Hider(chosen, is_expected=self._has_text(chosen, rules)), rules
                    )
                elif rules.hides_same_name and file.is_rule and base in names:
                    self._hide(file, _Hider(names[base], is_expected=False), rules)
                else:
                    chosen = names[base] = file
                    self._add_file(file, rules, budget)
        self._find_unscoped_rules(first, rules)
        if rules.below == "later":
            self._add_below(rules, groups, standing)

    def add_named_by_settings(self) -> None:
        """Add the files that the agent's settings name."""
        rules = Files(where=("start",), files=())
        for text, folder in self._setting_texts(self._setting_key("adds")):
            if "://" in text:
                continue
            path = str(self._places.expand(text))
            top = os.path.join(self._start if folder.startswith(self._start) else folder, "")
            is_own = not self._files.is_inside(top, self._project)
            top = os.path.join("/", "") if os.path.isabs(path) else top
            inside = (str(self._places.home),) if is_own else self._project
            place = _Place(top, inside, is_own)
            named = os.path.normpath(path.lstrip("/"))
            if "*" in named:
                paths = self._files.find(top, named, inside)
            else:
                paths = [one for one in [os.path.join(top, named)] if self._files.exists(one)]
            for one in paths:
                if one not in {part.path for part in self._parts}:
                    self._add_file(_File(one, place, named), rules, _Budget(None))

    def add_entries(self, window: int | Callable[[], int | None] | None) -> None:
        """Add the skills, commands and sub-agents, of which only a line each is sent."""
        listed: list[Entry] = []
        for rules in self._rules.entries:
            rules = self._with_settings(rules)
            files = Files(where=rules.where, files=(), innermost_first=rules.innermost_first)
            for place in self._folders(files):
                for name in rules.files:
                    for file in self._find_group(place, [name]):
                        if set(rules.without) & set(file.path.split(os.sep)):
                            continue
                        entry = self._read_entry(file, rules)
                        listed += [entry] if entry is not None else []
        limited = [entry for entry in listed if entry.rules.is_limited]
        limit, budget = self._rules.entry_limit, self._entry_budget(window) if limited else None
        sent = iter(fit_descriptions(limited, limit, budget, self._usage()))
        for entry in listed:
            description = next(sent) if entry.rules.is_limited else entry.cut
            self._append_entry(entry, description)

    def _with_settings(self, rules: Entries) -> Entries:
        values = [value for value, _ in self._setting_values(self._setting_key("max_description"))]
        numbers = [one for one in values if isinstance(one, int) and one > 0]
        is_changed = numbers and rules.max_description is not None
        return replace(rules, max_description=numbers[-1]) if is_changed else rules

    def _entry_budget(self, window: int | Callable[[], int | None] | None) -> float | None:
        limit = self._rules.entry_limit
        if limit is None:
            return None
        if (named := self._places.variable(limit.variable)).isdecimal():
            return float(named)
        if limit.window_share is None:
            return limit.characters
        window = window() if callable(window) else window
        if window is None:
            return limit.characters
        shares = [value for value, _ in self._setting_values(self._setting_key("window_share"))]
        numbers = [one for one in shares if isinstance(one, int | float) and 0 < one <= 1]
        per_token = next(
            (number for most, number in limit.per_token if window <= most), limit.per_token[-1][1]
        )
        return (numbers[-1] if numbers else limit.window_share) * window * per_token

    def _usage(self) -> dict[str, float]:
        """Return how often the user called each entry, as the agent keeps it."""
        limit = self._rules.entry_limit
        if limit is None or not limit.used_file:
            return {}
        found: dict[str, float] = {}
        for path in self._places.named_paths(limit.used_file):
            values = self._files.settings(str(path), (str(self._places.home),)).get(limit.used_key)
            for name, value in values.items() if isinstance(values, Mapping) else ():
                number = value.get("usageCount") if isinstance(value, Mapping) else value
                found[name] = float(number) if isinstance(number, int | float) else 0.0
        return found

    def _read_entry(self, file: _File, rules: Entries) -> Entry | None:
        """Read an entry, or add it as a part that is not in the list, and return None."""
        source = self._read(file)
        part = Part(kind=rules.kind, path=file.path, state="later", is_own=file.place.is_own)
        if source.note:
            self._append(replace(part, state="name-only", reason=source.note))
            return None
        text = source.text
        if file.path.endswith(".toml"):
            text = _as_front_matter(self._files.settings(file.path, file.place.inside))
        values = read_front_matter(text)
        level = "user" if file.place.is_own else "project"
        entry = read_entry(text, values, file.path, level, rules)
        if any(values.get(key) is True for key in rules.off):
            self._append(replace(part, reason="sent only when you call it"))
        elif any(_texts(values.get(key, ())) for key in rules.scopes):
            self._append(replace(part, reason="sent when a matching file is in the context"))
        elif not entry.description and rules.undescribed == "hidden":
            reason = f"{self._rules.title} leaves out entries without a description"
            self._append(replace(part, state="hidden", reason=reason))
        elif rules.drops_long and entry.cut != entry.description:
            most = f"{rules.max_description:,} characters"
            reason = f"{self._rules.title} leaves out entries with a description over {most}"
            self._append(replace(part, state="hidden", reason=reason))
            self._report_lost(entry, source, 0, f"over {most} makes the whole entry vanish")
        else:
            return entry
        return None

    def _append_entry(self, entry: Entry, description: str) -> None:
        source = self._files.read(entry.path, (*self._project, str(self._places.home)))
        is_own, state, reason = entry.level == "user", "name-only", ""
        lost: tuple[ByteRange, ...] = ()
        if (
            entry.description
            and description != entry.description
            and "{description}" in entry.rules.form
        ):
            state = "cut" if description else "name-only"
            kept = len(description.removesuffix(entry.rules.mark)) if description else 0
            reason = (
                "its description is cut" if description else "the list is full: its name is sent"
            )
            what = (
                f"is cut after {kept:,} characters" if description else "does not fit in the list"
            )
            lost = (self._report_lost(entry, source, kept, what),)
        self._append(
            Part(
                kind=entry.rules.kind,
                path=entry.path,
                state=cast("State", state),
                text=entry.line(description) + "\n",
                is_own=is_own,
                reason=reason,
                lost=lost,
                is_repeated_by_sub_agents=entry.rules.is_repeated,
            )
        )

    def _report_lost(self, entry: Entry, source: SourceFile, kept: int, what: str) -> ByteRange:
        """Report that a description is lost after some characters, and return its range."""
        text = source.text
        start, end = entry.span
        if text[start:end] == entry.description[: end - start]:
            start = min(end, start + kept)
        before = len(text[:start].encode("utf-8", "surrogateescape"))
        inner = len(text[start:end].encode("utf-8", "surrogateescape"))
        lost = ByteRange(before, before + inner)
        message = (
            f"{self._name}: the description of this {entry.rules.kind} {what}. "
            "Shorten descriptions, or remove entries."
        )
        self._report("skill-lost", entry.path, lost, message)
        return lost

    def _find_group(self, place: _Place, names: Sequence[str]) -> list[_File]:
        return [_File(path, place, name) for name in names for path in self._paths(place, name)]

    def _standing(self, rules: Files, found: list[list[list[_File]]]) -> list[_File]:
        """Return the files that stand before those in `Files.fallbacks` of a later list."""
        if not rules.fallbacks:
            return []
        levels: dict[int, list[_File]] = {}
        for file in (one for per_place in found for group in per_place for one in group):
            if not file.is_rule and (rules.empty_hides or self._has_text(file, rules)):
                levels.setdefault(_level(rules, file), []).append(file)
        return levels[min(levels)] if levels else []

    def _fallback_hider(
        self, rules: Files, file: _File, standing: Sequence[_File]
    ) -> _Hider | None:
        if not standing or file.is_rule or _level(rules, file) <= _level(rules, standing[0]):
            return None
        nearest = max(standing, key=lambda one: len(one.place.folder))
        by = next((one for one in standing if one.place.folder == file.place.folder), nearest)
        is_beside = by.place.folder == file.place.folder
        return _Hider(by, is_expected=is_beside and not rules.warns_beside)

    def _read(self, file: _File) -> SourceFile:
        return self._files.read(file.path, file.place.inside)

    def _has_text(self, file: _File, rules: Files) -> bool:
        source = self._read(file)
        return bool(source.note) or bool(_as_sent(source, len(source.data), rules).strip())

    def _hide(self, file: _File, hider: _Hider, rules: Files) -> None:
        source = self._read(file)
        by = hider.file.path
        self._append(
            Part(
                kind="instructions",
                path=file.path,
                state="hidden",
                text=_as_sent(source, len(source.data), rules),
                is_own=file.place.is_own,
                reason=f"{self._rules.title} reads {self._short(by)} instead",
                hidden_by=by,
            )
        )
        if not hider.is_expected and source.data.strip():
            empty = "" if self._read(hider.file).data.strip() else ", though it is empty"
            imports = ", or import this file there" if self._rules.imports is not None else ""
            message = (
                f"{self._name} does not read this file: {self._short(by)} stands before it{empty}. "
                f"Keep the text in one of them{imports}."
            )
            span = ByteRange(0, len(source.data))
            fix = None
            if empty and not hider.file.place.is_own and self._files.is_inside(by, self._project):
                fix = ProblemFix(title=f"Delete the empty {self._short(by)}", deletes=by)
            self._report("instructions-hidden", file.path, span, message, fix)

    def _add_file(self, file: _File, rules: Files, budget: _Budget) -> None:
        source = self._read(file)
        kind: Kind = rules.kind or ("rule" if file.is_rule else "instructions")
        part = Part(kind=kind, path=file.path, state="sent", is_own=file.place.is_own)
        if source.note:
            self._append(replace(part, reason=source.note))
            return
        if rules.scope is not None and file.is_rule:
            state, reason = _scope_state(rules.scope, source.text)
            if state != "sent":
                named = _description(source) if state == "name-only" else ""
                self._append(replace(part, state=state, reason=reason, text=named))
                return
        whole = _as_sent(source, len(source.data), rules)
        if not whole.strip():
            return
        key = {"file": source.real, "text": whole}.get(self._rules.once, "")
        if key and key in self._sent:
            by = self._sent[key]
            reason = f"{self._rules.title} sends the same text once"
            self._append(replace(part, state="hidden", reason=reason, hidden_by=by))
            return
        self._sent[key] = file.path
        end = budget.apply(source.data)
        text = whole
        if end < len(source.data):
            part, text = self._cut(part, source, end, rules), _as_sent(source, end, rules)
        self._append(replace(part, text=text))
        imports = None if file.name in rules.without_imports else self._rules.imports
        if imports is not None and kind in ("instructions", "rule"):
            self._add_imports(file, rules, imports, (source.real,))

    def _cut(self, part: Part, source: SourceFile, end: int, rules: Files) -> Part:
        size, lost = len(source.data), ByteRange(end, len(source.data))
        limit = self._limit_of(rules) or Limit()
        most = [f"{limit.lines:,} lines"] if limit.lines is not None else []
        most += [f"{limit.bytes:,} bytes"] if limit.bytes is not None else []
        shared = " of all these files together" if limit.is_shared else ""
        key = self._setting_key("bytes") if limit.is_shared else ""
        change = f", or raise `{key}`" if key else ""
        reason = f"{self._rules.title} sends at most {' and '.join(most)}{shared}"
        self._report(
            "instructions-cut",
            part.path,
            lost,
            f"{self._name} sends at most {' and '.join(most)}{shared}: the last {size - end:,} of "
            f"{size:,} bytes of this file are lost. Shorten it{change}.",
        )
        return replace(part, state="cut", reason=reason, lost=(lost,))

    def _add_below(
        self, rules: Files, groups: Sequence[Sequence[str]], standing: Sequence[_File]
    ) -> None:
        """Add the files in folders below the start, which are sent once a file there is read."""
        names = {name: index for index, group in enumerate(groups) for name in group}
        known = {part.path for part in self._parts}
        by_folder: dict[str, list[_File]] = {}
        for relative in self._files.below(self._start):
            matching = [name for name in names if f"/{relative}".endswith(f"/{name}")]
            name = max(matching, key=len, default="")
            folder = relative[: -len(name)].rstrip("/") if name else ""
            path = os.path.join(self._start, relative)
            if folder and path not in known and not self._is_excluded(path):
                place = _Place(os.path.join(self._start, folder), self._project)
                by_folder.setdefault(folder, []).append(_File(path, place, name))
        for found in by_folder.values():
            found.sort(key=lambda file: names[file.name])
            above = standing if rules.hides_below else ()
            beside = min((_level(rules, file) for file in found), default=0)
            for file in found:
                if (hider := self._fallback_hider(rules, file, above)) is not None:
                    self._hide(file, hider, rules)
                elif _level(rules, file) == beside:
                    where = self._short(file.place.folder)
                    reason = f"sent after {self._rules.title} reads a file in {where}"
                    self._append(
                        Part(kind="instructions", path=file.path, state="later", reason=reason)
                    )

    def _find_unscoped_rules(self, first: int, rules: Files) -> None:
        """Report rules that are always sent, in folders where others are not."""
        if rules.scope is None or not rules.scope.keys:
            return
        by_folder: dict[str, list[Part]] = {}
        for part in self._parts[first:]:
            if part.kind == "rule":
                by_folder.setdefault(os.path.dirname(part.path), []).append(part)
        for parts in by_folder.values():
            scoped = [part.path for part in parts if part.state in ("later", "name-only")]
            if scoped:
                values = read_front_matter(SourceFile("", self._files.data(scoped[0])).text)
                key = next((one for one in rules.scope.keys if one in values), rules.scope.keys[0])
                for part in parts:
                    if part.state == "sent" and not part.reason:
                        self._report(
                            "rule-always-loaded",
                            part.path,
                            ByteRange(0, len(part.text.partition("\n")[0].encode())),
                            f"{self._name} sends this rule with every request; others in its "
                            f"folder have `{key}`. Add `{key}` if it is for some files only.",
                        )

    # Imports

    def _add_imports(
        self, file: _File, rules: Files, imports: Imports, above: tuple[str, ...]
    ) -> None:
        """Add the files that a file imports, and those that they import.

        Args:
            file: The file.
            rules: The rules of the file at the start of the row.
            imports: The agent's rules of imports.
            above: The real paths of the files that import one another, up to this one.
        """
        text = self._read(file).text
        mentions = find_mentions(
            text, after=_ANY_BEFORE, trims=imports.trims, has_escapes=imports.has_escapes
        )
        for mention in islice(mentions, MAX_IMPORTS):
            self._mentions += 1
            if self._mentions > MAX_MENTIONS:
                return
            imported = self._resolve(file, mention.path, imports)
            reason = self._skip_reason(mention, imported, imports, len(above))
            if reason:
                span = _byte_range(text, mention)
                message = f"{self._name} does not import this file: {reason}."
                fix = self._separate_import(text, mention, imported, imports)
                self._report("import-skipped", file.path, span, message, fix)
            elif reason == "" and len(self._parts) < MAX_PARTS:
                if imports.repeats and self._files.real(imported.path) in self._imported:
                    message = (
                        f"{self._name} sends this file twice, because it is imported twice. "
                        "Remove one of the imports."
                    )
                    self._report("import-twice", file.path, _byte_range(text, mention), message)
                place = file.path, _byte_range(text, mention)
                self._import_places.setdefault(self._files.real(imported.path), place)
                self._add_import(imported, rules, imports, above)

    def _add_import(
        self, imported: _File, rules: Files, imports: Imports, above: tuple[str, ...]
    ) -> None:
        source = self._read(imported)
        is_known = source.real in self._imported and not imports.repeats
        if is_known or source.real in above or source.real in self._sent:
            return
        self._imported.add(source.real)
        if self._rules.once == "file":
            self._sent[source.real] = imported.path
        text = "" if source.note else _as_sent(source, len(source.data), rules)
        self._append(
            Part(
                kind="import",
                path=imported.path,
                state="sent",
                text=text,
                is_own=imported.place.is_own,
                reason=source.note,
            )
        )
        self._add_imports(imported, rules, imports, (*above, source.real))

    def _resolve(self, file: _File, name: str, imports: Imports) -> _File:
        named = str(self._places.expand(name)) if name.startswith("~") else name
        path = os.path.normpath(os.path.join(os.path.dirname(file.path), named))
        inside = file.place.inside
        if imports.within == "start" and not file.place.is_own:
            inside = (self._start,)
        return _File(path, file.place._replace(inside=inside), path)

    def _skip_reason(
        self, mention: Mention, file: _File, imports: Imports, hops: int
    ) -> str | None:
        """Return why a mention is not imported: "" if it is, or None if it is no import at all."""
        start = ("/", "~/", "./", "../")
        is_path = mention.path.startswith(start) or file.path.endswith(_TEXT_FILES)
        if not self._files.is_inside(file.path, file.place.inside):
            folder = {"root": "the project", "start": self._start_name}[imports.within]
            return f"it is outside {folder}, and {imports.outside}" if is_path else None
        is_block = mention.block == "text" or imports.in_html
        is_separate = not mention.before or mention.before in imports.after
        if not self._files.exists(file.path):
            trimmed = file.path.rstrip(_PUNCTUATION)
            if trimmed != file.path and is_block and self._files.exists(trimmed):
                mark = file.path[len(trimmed) :]
                return f"the path would end with `{mark}`. Put white space after the path"
            is_missing = is_block and is_separate and is_path
            return "the file does not exist. Correct the path" if is_missing else None
        if not is_block:
            return "it is in an HTML comment or block. Move it to a line of its own"
        if not is_separate:
            return f"`{mention.before}` stands before the `@`. Put white space there"
        if hops > imports.hops:
            return f"it is more than {imports.hops} imports deep. Import it in an earlier file"
        return ""

    def _separate_import(
        self, text: str, mention: Mention, file: _File, imports: Imports
    ) -> ProblemFix | None:
        """Return the fix that puts blanks around an import, or None if that is not enough."""
        path = text[mention.start : mention.end].rstrip(_PUNCTUATION)
        at = []
        if mention.before and mention.before not in imports.after:
            at.append(mention.start)
        if not self._files.exists(file.path):
            at.append(mention.start + len(path))
        separate = self._resolve(file, file.path.rstrip(_PUNCTUATION), imports) if at else file
        is_block = mention.block == "text" or imports.in_html
        is_inside = self._files.is_inside(separate.path, separate.place.inside)
        if not at or not is_block or not is_inside or not self._files.exists(separate.path):
            return None
        blanks = tuple(_byte_offset(text, one) for one in at)
        return ProblemFix(title=f"Insert white space around {path}", blanks=blanks)

    # Results

    def _append(self, part: Part) -> None:
        if len(self._parts) < MAX_PARTS:
            self._parts.append(part)

    def _report(
        self, code: Code, path: str, span: ByteRange, message: str, fix: ProblemFix | None = None
    ) -> None:
        self._problems.append(
            Problem(code=code, agent=self._agent, path=path, range=span, message=message, fix=fix)
        )

    def _short(self, path: str) -> str:
        """Return a path relative to the project, or to the home folder."""
        for top, sign in ((self._project[0], ""), (str(self._places.home), "~/")):
            prefix = top.rstrip("/") + "/"
            if path.startswith(prefix):
                return sign + path[len(prefix) :]
        return path


_PLACEHOLDERS = ("{slug}", "{name}", "{style}")
_ANY_BEFORE = "(\"'*_>["
_PUNCTUATION = ",.:;!?)\"'*"
_TEXT_FILES = (".md", ".mdc", ".txt", *(f".md{mark}" for mark in _PUNCTUATION))


def _is_plain_name(name: str) -> bool:
    return bool(name) and name[0] not in "/~${" and ".." not in name.split("/") and "*" not in name


def _level(rules: Files, file: _File) -> int:
    return next((level for level, names in enumerate(rules.fallbacks, 1) if file.name in names), 0)


def _removed(text: str, rules: Files) -> Iterator[Span]:
    if "front-matter" in rules.strips and (end := front_matter_end(text)):
        yield Span(0, end)
    if "comments" in rules.strips:
        yield from find_block_comments(text)


def _as_sent(source: SourceFile, end: int, rules: Files) -> str:
    """Return what is sent of a file of which the first `end` bytes are read."""
    if not rules.strips:
        return source.data[:end].decode("utf-8", "replace")
    text = source.data[:end].decode("utf-8", "surrogateescape")
    kept, position = [], 0
    for span in _removed(text, rules):
        kept.append(text[position : max(position, span.start)])
        position = max(position, span.end)
    left = "".join([*kept, text[position:]])
    left = left.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return left.strip() if "ends" in rules.strips else left


def _byte_range(text: str, span: Mention) -> ByteRange:
    return ByteRange(_byte_offset(text, span.start), _byte_offset(text, span.end))


def _byte_offset(text: str, offset: int) -> int:
    return len(text[:offset].encode("utf-8", "surrogateescape"))


def _scope_state(scope: Scope, text: str) -> tuple[State, str]:
    """Return what is sent of a rule, and why not all of it."""
    values = read_front_matter(text)
    if scope.off and values.get(scope.off) is True:
        return "hidden", f"its front matter has `{scope.off}: true`"
    always = values.get(scope.always)
    if always is True:
        return "sent", ""
    listed = (_texts(values.get(key, ())) for key in scope.keys)
    patterns = next(filter(None, listed), [])
    if not set(patterns) <= set(scope.everything):
        named = ", ".join(patterns[:3])
        return scope.scoped, f"sent when a file that matches {named} is in the context"
    if patterns:
        return "sent", ""
    state = scope.described if values.get("description") else scope.otherwise
    if always is False and state == "sent":
        state = "later"
    return state, "" if state == "sent" else "sent when it is asked for"


def _texts(value: Value) -> list[str]:
    if isinstance(value, bool):
        return []
    values = value.split(",") if isinstance(value, str) else value
    return [text for one in values if (text := one.strip())]


def _as_front_matter(values: Mapping[str, Any]) -> str:
    texts = {key: value for key, value in values.items() if isinstance(value, str)}
    lines = [f"{key}: {' '.join(value.split())}" for key, value in texts.items()]
    return "\n".join(["---", *lines, "---", ""])


def _description(source: SourceFile) -> str:
    value = read_front_matter(source.text).get("description", "")
    return value if isinstance(value, str) else ""
