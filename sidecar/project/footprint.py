"""Finds what a coding agent sends of a project's and the user's files before the first word.

The rules of each agent are in `loading_rules.toml`. This module reads files, but does not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from sidecar.agents.folders import Places
from sidecar.config.settings import InstructionCode
from sidecar.models.catalogue import window_of
from sidecar.project.agent_search import NO_PLACES, AgentSearch, FoundFile, SearchFolder
from sidecar.project.loading_rules import (
    AgentRules,
    Entries,
    Files,
    Imports,
    Kind,
    Limit,
    State,
    loading_rules,
)
from sidecar.project.sent_text import (
    Entry,
    RemainingLimit,
    description_of,
    fit_descriptions,
    read_entry,
    scope_state,
    text_as_sent,
    texts_of,
)
from sidecar.project.source_files import MAX_ENTRIES, SourceFile, SourceFiles
from sidecar.text.prompt_markdown import (
    Mention,
    find_mentions,
    is_valid_front_matter,
    read_front_matter,
)

Window = int | Callable[[], int | None] | None
"""A context window in tokens, or a function that is called if a list depends on it."""
LARGEST_WINDOW = 1_000_000
"""The context window in tokens that is assumed for an agent without a known window.

A list of skills that is too long for it is too long for all others.
"""
MAX_PARTS = 5_000
"""Maximum number of parts of a footprint."""
MAX_IMPORTS = 1_000
"""Maximum number of `@path` mentions that are looked up in a file."""
MAX_MENTIONS = 20_000
"""Maximum number of mentions that are looked up for a footprint."""
MAX_IMPORTED = 64 << 20
"""Maximum size of all imports in bytes. Some agents send a file each time it is imported."""


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
    is_unread: bool = False
    """Whether the file could not be read here, so that its text is unknown. `reason` says why."""

    @property
    def is_sent(self) -> bool:
        """Whether something of the file is sent before the first word, if only its name."""
        return bool(self.text) or self.state in ("sent", "cut")


class ProblemFix(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the project's files that solves a problem."""

    title: str
    blanks: tuple[int, ...] = ()
    """Where blanks are inserted into the problem's file, in bytes."""
    deletes: str = ""
    """The path of a file to delete, if there are no blanks."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about an agent that the author of a file may not expect."""

    code: InstructionCode
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
    limits: tuple[str, ...] = ()
    """What was not looked at, because there is too much, as sentences."""


def find_footprint(
    agent: str,
    start: Path,
    places: Places,
    *,
    context_window: Window = None,
    files: SourceFiles | None = None,
) -> Footprint:
    """Return what an agent sends before the first word. This function blocks.

    Args:
        agent: The agent.
        start: The folder where the agent starts.
        places: The user's folders.
        context_window: The model's window, which limits lists of skills.
        files: Remembers files between the footprints of several agents.
    """
    rules = loading_rules()[agent]
    finder = _Finder(agent, rules, str(start), places, files or SourceFiles())
    styles = [one for one in rules.files if one.kind == "output-style"]  # of the system prompt
    for one in styles:
        finder.add_files(one)
    if rules.entries_first:
        finder.add_entries(context_window)
    for one in rules.files:
        if one not in styles:
            finder.add_files(one)
    finder.add_named_by_settings()
    if not rules.entries_first:
        finder.add_entries(context_window)
    return finder.footprint()


def find_for_model(
    agent: str,
    start: Path,
    places: Places,
    files: SourceFiles,
    model: str,
    window: int | None = None,
) -> Footprint:
    """Return what an agent sends with a model before the first word. This function blocks.

    Args:
        agent: The agent.
        start: The folder where the agent starts.
        places: The user's folders.
        files: Reads the files.
        model: The model.
        window: The context window in tokens; by default the model's, if known.
    """
    known = window or partial(window_of, model)
    return find_footprint(agent, start, places, context_window=known, files=files)


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
    is_secondary: bool = False
    """Whether it is only imported by other files, or an entry in a list."""
    note: str = ""
    """Why the file could not be read here."""
    is_own: bool = False
    """Whether the file is the user's, not the project's."""


def find_all_footprints(
    start: Path,
    places: Places | None,
    files: SourceFiles | None = None,
    *,
    agents: Iterable[str] | None = None,
    windows: Mapping[str, int] | None = None,
    window: Window = LARGEST_WINDOW,
) -> list[Footprint]:
    """Return the footprint of each agent. This function blocks.

    Args:
        start: The folder where the agents start.
        places: The user's folders. If None, the user's own files are skipped.
        files: Reads the files. By default, files that are sent later are not looked for.
        agents: The agents. Defaults to all.
        windows: The context windows of agents, as far as they are known.
        window: The context window of the others.
    """
    files, places, windows = files or SourceFiles(below=()), places or NO_PLACES, windows or {}
    return [
        find_footprint(agent, start, places, context_window=windows.get(agent, window), files=files)
        for agent in (loading_rules() if agents is None else agents)
    ]


_SECONDARY = ("import", "skill", "command", "sub-agent")
"""The kinds of files that many agents find, but that matter only for those that are used."""


def sent_files(footprints: Iterable[Footprint]) -> list[SentFile]:
    """Return the files that any of some agents sends before the first word."""
    found: dict[str, SentFile] = {}
    for footprint in footprints:
        for part in footprint.parts:
            if part.is_sent:
                earlier = found.get(part.path)
                found[part.path] = SentFile(
                    path=part.path,
                    texts={**(earlier.texts if earlier else {}), footprint.agent: part.text},
                    is_secondary=part.kind in _SECONDARY
                    and (earlier is None or earlier.is_secondary),
                    note="" if part.text else part.reason,
                    is_own=part.is_own or (earlier is not None and earlier.is_own),
                )
    return list(found.values())


class _Hider(NamedTuple):
    """Why a file is hidden."""

    file: FoundFile
    """The file that stands before it."""
    is_expected: bool
    """Whether the author expects this, so that it is no problem."""


class _Finder:
    """Collects the parts of one agent's footprint."""

    def __init__(
        self, agent: str, rules: AgentRules, start: str, places: Places, files: SourceFiles
    ) -> None:
        self._agent = agent
        self._rules = rules
        self._name = f"{rules.title} {rules.version}".strip()
        self._search = AgentSearch(agent, rules, start, places, files)
        self._start = self._search.start
        self._places = places
        self._files = files
        self._parts: list[Part] = []
        self._problems: list[Problem] = []
        self._sent: dict[str, str] = {}
        """The path of the part that sends a file or a text, by its real path or its text."""
        self._imported: set[str] = set()
        self._skipped: set[str] = set()
        """The paths of imports that are hidden."""
        self._mentions = 0
        self._left_out = 0
        """The number of parts beyond `MAX_PARTS`."""
        self._limits: dict[str, None] = {}
        """What else was not looked at, as sentences."""
        self._import_size = 0
        self._import_count = 0
        """The number of imports since the last file that is no import."""
        self._import_places: dict[str, tuple[str, ByteRange]] = {}
        """The first mention of each imported file, by its real path."""

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
            limits=tuple(self._limit_notes()),
        )

    def _limit_notes(self) -> Iterator[str]:
        """Yield what was not looked at."""
        if self._left_out:
            files = "1 file is" if self._left_out == 1 else f"{self._left_out:,} files are"
            yield f"{files} not looked at, because only {MAX_PARTS:,} are."
        for folder in sorted(self._files.partly_listed):
            if any(part.path.startswith(folder) for part in self._parts):
                name = self._search.short(folder)
                yield f"{name}: only {MAX_ENTRIES:,} files and folders are looked at."
        yield from self._limits

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
                    f"{self._search.short(real)} by itself. Remove the import."
                )
                self._report("import-twice", path, span, message)

    # Files

    def add_files(self, rules: Files) -> None:
        """Add the files that one entry of the rules describes."""
        places, groups = self._search.folders(rules), self._search.names_of(rules)
        found = [[self._find_group(place, group) for group in groups] for place in places]
        for file in self._search.take_excluded():
            key = self._search.setting_key("excludes")
            self._append(
                Part(
                    kind=rules.kind or ("rule" if file.is_rule else "instructions"),
                    path=file.path,
                    state="hidden",
                    is_own=file.place.is_own,
                    reason=f"`{key}` excludes it",
                )
            )
        standing = self._standing(rules, found)
        remaining = RemainingLimit(self._search.limit_of(rules))
        names: dict[str, FoundFile] = {}
        first = len(self._parts)
        for group in (one for per_place in found for one in per_place):
            chosen: FoundFile | None = None
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
                    self._add_file(file, rules, remaining)
        if rules.is_sorted:
            self._parts[first:] = sorted(self._parts[first:], key=_rule_name)
        self._find_unscoped_rules(first, rules)
        if rules.below == "later":
            self._add_below(rules, groups, standing)

    def add_named_by_settings(self) -> None:
        """Add the files that the agent's settings name."""
        rules = Files(where=("start",), files=())
        for text, folder in self._search.setting_texts("adds"):
            if "://" in text:
                continue
            path = str(self._places.expand(text))
            top = os.path.join(self._start if folder.startswith(self._start) else folder, "")
            is_own = not self._files.is_inside(top, self._search.project)
            top = os.path.join("/", "") if os.path.isabs(path) else top
            inside = (str(self._places.home),) if is_own else self._search.project
            place = SearchFolder(top, inside, is_own)
            named = os.path.normpath(path.lstrip("/"))
            if "*" in named:
                paths = self._files.find(top, named, inside)
            else:
                paths = [one for one in [os.path.join(top, named)] if self._files.exists(one)]
            for one in paths:
                if one not in {part.path for part in self._parts}:
                    self._add_file(FoundFile(one, place, named), rules, RemainingLimit(None))

    def add_entries(self, window: Window) -> None:
        """Add the skills, commands and sub-agents, of which only a line each is sent."""
        listed: list[Entry] = []
        for rules in self._rules.entries:
            rules = self._with_settings(rules)
            files = Files(where=rules.where, files=(), innermost_first=rules.innermost_first)
            for place in self._search.folders(files):
                for name in rules.files:
                    for file in self._find_group(place, [name]):
                        if _is_built_in(file.path, rules) and self._is_off(file, rules):
                            continue
                        entry = self._read_entry(file, rules)
                        listed += [entry] if entry is not None else []
        self._sort(listed)
        limited = [entry for entry in listed if entry.rules.is_limited]
        limit, budget = self._rules.entry_limit, self._entry_budget(window) if limited else None
        sent = iter(fit_descriptions(limited, limit, budget, self._usage()))
        for entry in listed:
            description = next(sent) if entry.rules.is_limited else entry.cut
            if not _is_built_in(entry.path, entry.rules):
                self._append_entry(entry, description)

    def _sort(self, entries: list[Entry]) -> None:
        """Sort the skills as the agent does."""
        if self._rules.skill_order == "found":
            return
        kinds = list(dict.fromkeys(one.rules.kind for one in entries))
        levels = list(dict.fromkeys(one.level for one in entries if one.rules.kind == "skill"))
        by_level = self._rules.skill_order == "level"

        def key(entry: Entry) -> tuple[int, int, str]:
            kind = entry.rules.kind
            if kind != "skill":
                return kinds.index(kind), 0, ""
            return kinds.index(kind), levels.index(entry.level) if by_level else 0, entry.name

        entries.sort(key=key)

    def _with_settings(self, rules: Entries) -> Entries:
        values = [value for value, _ in self._search.setting_values("max_description")]
        numbers = [one for one in values if isinstance(one, int) and one > 0]
        is_changed = numbers and rules.max_description is not None
        return replace(rules, max_description=numbers[-1]) if is_changed else rules

    def _entry_budget(self, window: Window) -> float | None:
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
        shares = [value for value, _ in self._search.setting_values("window_share")]
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

    def _read_entry(self, file: FoundFile, rules: Entries) -> Entry | None:
        """Read an entry, or add it as a part that is not in the list, and return None."""
        source = self._read(file)
        part = Part(kind=rules.kind, path=file.path, state="later", is_own=file.place.is_own)
        if source.note:
            self._append(replace(part, state="name-only", reason=source.note, is_unread=True))
            return None
        text = source.text
        if file.path.endswith(".toml"):
            text = _as_front_matter(self._files.settings(file.path, file.place.inside))
        values = read_front_matter(text)
        level = "user" if file.place.is_own else "project"
        entry = read_entry(text, values, file.path, level, rules)
        if any(values.get(key) is True for key in rules.off) or self._is_off(file, rules):
            self._append(replace(part, reason="sent only when you call it"))
        elif any(texts_of(values.get(key, ())) for key in rules.scopes):
            self._append(replace(part, reason="sent when a matching file is in the context"))
        elif rules.needs_trust:
            self._append(replace(part, reason="sent once you have trusted the project"))
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

    def _is_off(self, file: FoundFile, rules: Entries) -> bool:
        """Return whether a file beside the entry keeps it out of the list."""
        path = os.path.join(os.path.dirname(file.path), rules.off_file)
        if not rules.off_file or not self._files.exists(path):
            return False
        text = self._files.read(path, file.place.inside).text
        return re.search(rf"^[ \t]*{rules.off_key}:[ \t]*false\b", text, re.M) is not None

    def _append_entry(self, entry: Entry, description: str) -> None:
        source = self._files.read(entry.path, (*self._search.project, str(self._places.home)))
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
        before = _byte_length(text[:start])
        lost = ByteRange(before, before + _byte_length(text[start:end]))
        message = (
            f"{self._name}: the description of this {entry.rules.kind} {what}. "
            "Shorten descriptions, or remove entries."
        )
        self._report("skill-lost", entry.path, lost, message)
        return lost

    def _find_group(self, place: SearchFolder, names: Sequence[str]) -> list[FoundFile]:
        return [
            FoundFile(path, place, name)
            for name in names
            for path in self._search.paths(place, name)
        ]

    def _standing(self, rules: Files, found: list[list[list[FoundFile]]]) -> list[FoundFile]:
        """Return the files that stand before those in `Files.fallbacks` of a later list."""
        if not rules.fallbacks:
            return []
        levels: dict[int, list[FoundFile]] = {}
        for file in (one for per_place in found for group in per_place for one in group):
            if not file.is_rule and (rules.empty_hides or self._has_text(file, rules)):
                levels.setdefault(_level(rules, file), []).append(file)
        return levels[min(levels)] if levels else []

    def _fallback_hider(
        self, rules: Files, file: FoundFile, standing: Sequence[FoundFile]
    ) -> _Hider | None:
        if not standing or file.is_rule or _level(rules, file) <= _level(rules, standing[0]):
            return None
        nearest = max(standing, key=lambda one: len(one.place.folder))
        by = next((one for one in standing if one.place.folder == file.place.folder), nearest)
        is_beside = by.place.folder == file.place.folder
        return _Hider(by, is_expected=is_beside and not rules.warns_beside)

    def _read(self, file: FoundFile) -> SourceFile:
        return self._files.read(file.path, file.place.inside)

    def _has_text(self, file: FoundFile, rules: Files) -> bool:
        source = self._read(file)
        return bool(source.note) or bool(text_as_sent(source, len(source.data), rules).strip())

    def _hide(self, file: FoundFile, hider: _Hider, rules: Files) -> None:
        source = self._read(file)
        by = hider.file.path
        self._append(
            Part(
                kind="instructions",
                path=file.path,
                state="hidden",
                text=text_as_sent(source, len(source.data), rules),
                is_own=file.place.is_own,
                reason=f"{self._rules.title} reads {self._search.short(by)} instead",
                hidden_by=by,
            )
        )
        if not hider.is_expected and source.data.strip():
            empty = "" if self._read(hider.file).data.strip() else ", though it is empty"
            imports = ", or import this file there" if self._rules.imports is not None else ""
            message = (
                f"{self._name} does not read this file: {self._search.short(by)} stands "
                f"before it{empty}. Keep the text in one of them{imports}."
            )
            span = ByteRange(0, len(source.data))
            fix = None
            if (
                empty
                and not hider.file.place.is_own
                and self._files.is_inside(by, self._search.project)
            ):
                fix = ProblemFix(title=f"Delete the empty {self._search.short(by)}", deletes=by)
            self._report("instructions-hidden", file.path, span, message, fix)

    def _add_file(self, file: FoundFile, rules: Files, remaining: RemainingLimit) -> None:
        source = self._read(file)
        kind: Kind = rules.kind or ("rule" if file.is_rule else "instructions")
        part = Part(kind=kind, path=file.path, state="sent", is_own=file.place.is_own)
        limit = self._search.limit_of(rules)
        if source.head and limit and limit.bytes is not None and limit.bytes < len(source.head):
            source = source._replace(data=source.head, note="")
        if reason := self._drop_reason(file, source, rules):
            # Another user may have approved what is hidden here, so a budget cannot pass over it.
            is_unread = bool(source.note) and rules.links_as_imports
            self._append(replace(part, state="hidden", reason=reason, is_unread=is_unread))
            return
        if source.note:
            self._append(replace(part, reason=source.note, is_unread=True))
            return
        if rules.scope is not None and file.is_rule:
            state, reason = scope_state(rules.scope, source.text)
            if state != "sent":
                named = description_of(source) if state == "name-only" else ""
                self._append(replace(part, state=state, reason=reason, text=named))
                return
        whole = text_as_sent(source, len(source.data), rules)
        if not whole.strip():
            return
        key = {"file": source.real, "text": whole}.get(self._rules.once, "")
        if key and key in self._sent:
            by = self._sent[key]
            reason = f"{self._rules.title} sends the same text once"
            self._append(replace(part, state="hidden", reason=reason, hidden_by=by))
            return
        self._sent[key] = file.path
        end = remaining.apply(source.data)
        text = whole
        if end < len(source.data):
            part, text = self._cut(part, source, end, rules), text_as_sent(source, end, rules)
        self._append(replace(part, text=text))
        imports = None if file.name in rules.without_imports else self._rules.imports
        if imports is not None and kind in ("instructions", "rule"):
            self._import_count = 0
            self._add_imports(file, rules, imports, (source.real,))

    def _drop_reason(self, file: FoundFile, source: SourceFile, rules: Files) -> str:
        """Return why a file is not sent at all, or an empty string."""
        imports, is_own = self._rules.imports, file.place.is_own
        if (
            rules.stays_inside
            and not is_own
            and not self._files.is_inside(file.path, self._search.project)
        ):
            return f"{self._rules.title} follows no link out of the project"
        if not file.is_rule:
            return ""
        if rules.links_as_imports and imports is not None and not is_own:
            inside = (file.place.folder, *self._import_folders(file, imports))
            if not self._search.imports_any and not self._files.is_inside(file.path, inside):
                return f"it is outside {self._folder_name(imports)}, and {imports.outside}"
        if rules.skips_links and os.path.islink(file.path):
            return f"{self._rules.title} skips links"
        if rules.drops_invalid and not is_valid_front_matter(source.text):
            return "its front matter is not valid YAML"
        return ""

    def _cut(self, part: Part, source: SourceFile, end: int, rules: Files) -> Part:
        size = source.size or len(source.data)
        lost = ByteRange(end, size)
        limit = self._search.limit_of(rules) or Limit()
        most = [f"{limit.lines:,} lines"] if limit.lines is not None else []
        most += [f"{limit.bytes:,} bytes"] if limit.bytes is not None else []
        shared = " of all these files together" if limit.is_shared else ""
        key = self._search.setting_key("bytes") if limit.is_shared else ""
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
        self, rules: Files, groups: Sequence[Sequence[str]], standing: Sequence[FoundFile]
    ) -> None:
        """Add the files in folders below the start, which are sent once a file there is read."""
        names = {name: index for index, group in enumerate(groups) for name in group}
        known = {part.path for part in self._parts}
        by_folder: dict[str, list[FoundFile]] = {}
        for relative in self._files.below(self._start):
            matching = [name for name in names if f"/{relative}".endswith(f"/{name}")]
            name = max(matching, key=len, default="")
            folder = relative[: -len(name)].rstrip("/") if name else ""
            path = os.path.join(self._start, relative)
            if folder and path not in known and not self._search.is_excluded(path):
                place = SearchFolder(os.path.join(self._start, folder), self._search.project)
                by_folder.setdefault(folder, []).append(FoundFile(path, place, name))
        for found in by_folder.values():
            found.sort(key=lambda file: names[file.name])
            above = standing if rules.hides_below else ()
            beside = min((_level(rules, file) for file in found), default=0)
            for file in found:
                if (hider := self._fallback_hider(rules, file, above)) is not None:
                    self._hide(file, hider, rules)
                elif _level(rules, file) == beside:
                    where = self._search.short(file.place.folder)
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
        self, file: FoundFile, rules: Files, imports: Imports, above: tuple[str, ...]
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
        offsets = _ByteOffsets(text)
        for number, mention in enumerate(mentions):
            self._mentions += 1
            if self._mentions > MAX_MENTIONS:
                self._limits[f"Only {MAX_MENTIONS:,} `@path` mentions are looked at."] = None
                return
            if number >= MAX_IMPORTS:
                left = 1 + sum(1 for _ in mentions)
                name = self._search.short(file.path)
                self._limits[f"{name}: its last {left:,} `@path` mentions are not looked at."] = (
                    None
                )
                return
            span = offsets.range_of(mention)
            imported = self._resolve(file, mention.path, imports)
            reason = self._skip_reason(mention, imported, imports, len(above))
            if reason == "" and imports.most is not None and self._import_count >= imports.most:
                reason = f"only {imports.most} files are imported. Remove other imports"
            if reason:
                message = f"{self._name} does not import this file: {reason}."
                fix = self._separate_import(text, mention, span, imported, imports)
                self._report("import-skipped", file.path, span, message, fix)
                self._hide_import(imported, reason)
            elif reason == "" and len(self._parts) >= MAX_PARTS:
                self._left_out += 1
            elif reason == "":
                if imports.repeats and self._files.real(imported.path) in self._imported:
                    message = (
                        f"{self._name} sends this file twice, because it is imported twice. "
                        "Remove one of the imports."
                    )
                    self._report("import-twice", file.path, span, message)
                self._import_places.setdefault(self._files.real(imported.path), (file.path, span))
                self._add_import(imported, rules, imports, above)

    def _add_import(
        self, imported: FoundFile, rules: Files, imports: Imports, above: tuple[str, ...]
    ) -> None:
        source = self._read(imported)
        is_known = source.real in self._imported and not imports.repeats
        if is_known or source.real in above or source.real in self._sent:
            return
        self._import_size += len(source.data)
        if self._import_size > MAX_IMPORTED:
            return
        self._imported.add(source.real)
        self._import_count += 1
        if self._rules.once == "file":
            self._sent[source.real] = imported.path
        text = "" if source.note else text_as_sent(source, len(source.data), rules)
        self._append(
            Part(
                kind="import",
                path=imported.path,
                state="sent",
                text=text,
                is_own=imported.place.is_own,
                reason=source.note,
                is_unread=bool(source.note),
            )
        )
        self._add_imports(imported, rules, imports, (*above, source.real))

    def _hide_import(self, imported: FoundFile, reason: str) -> None:
        if imported.path not in self._skipped:
            self._skipped.add(imported.path)
            self._append(
                Part(
                    kind="import",
                    path=imported.path,
                    state="hidden",
                    is_own=imported.place.is_own,
                    reason=f"not imported: {reason}",
                )
            )

    def _resolve(self, file: FoundFile, name: str, imports: Imports) -> FoundFile:
        named = str(self._places.expand(name)) if name.startswith("~") else name
        path = os.path.normpath(os.path.join(os.path.dirname(file.path), named))
        inside = self._import_folders(file, imports)
        return FoundFile(path, file.place._replace(inside=inside), path)

    def _import_folders(self, file: FoundFile, imports: Imports) -> tuple[str, ...]:
        """Return the folders from which a file may import others."""
        if imports.within != "start" or file.place.is_own:
            return file.place.inside
        if self._search.imports_any:
            return (*self._search.project, str(self._places.home))
        return (self._start,)

    def _folder_name(self, imports: Imports) -> str:
        return {"root": "the project", "start": self._search.start_name}[imports.within]

    def _skip_reason(
        self, mention: Mention, file: FoundFile, imports: Imports, hops: int
    ) -> str | None:
        """Return why a mention is not imported: "" if it is, or None if it is no import at all."""
        start = ("/", "~/", "./", "../")
        is_path = mention.path.startswith(start) or file.path.endswith(_TEXT_FILES)
        is_inside = self._files.is_inside(file.path, file.place.inside)
        if not is_inside and not self._search.imports_any:
            folder = self._folder_name(imports)
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
        self, text: str, mention: Mention, span: ByteRange, file: FoundFile, imports: Imports
    ) -> ProblemFix | None:
        """Return the fix that puts blanks around an import, or None if that is not enough."""
        path = text[mention.start : mention.end].rstrip(_PUNCTUATION)
        at = []
        if mention.before and mention.before not in imports.after:
            at.append(span.start)
        if not self._files.exists(file.path):
            at.append(span.start + _byte_length(path))
        separate = self._resolve(file, file.path.rstrip(_PUNCTUATION), imports) if at else file
        is_block = mention.block == "text" or imports.in_html
        is_inside = self._files.is_inside(separate.path, separate.place.inside)
        if not at or not is_block or not is_inside or not self._files.exists(separate.path):
            return None
        return ProblemFix(title=f"Insert white space around {path}", blanks=tuple(at))

    # Results

    def _append(self, part: Part) -> None:
        if len(self._parts) < MAX_PARTS:
            self._parts.append(part)
        else:
            self._left_out += 1

    def _report(
        self,
        code: InstructionCode,
        path: str,
        span: ByteRange,
        message: str,
        fix: ProblemFix | None = None,
    ) -> None:
        self._problems.append(
            Problem(code=code, agent=self._agent, path=path, range=span, message=message, fix=fix)
        )


_ANY_BEFORE = "(\"'*_>["
_PUNCTUATION = ",.:;!?)\"'*"
_TEXT_FILES = (".md", ".mdc", ".txt", *(f".md{mark}" for mark in _PUNCTUATION))


def _is_built_in(path: str, rules: Entries) -> bool:
    return not set(rules.without).isdisjoint(path.split(os.sep))


def _rule_name(part: Part) -> str:
    return os.path.splitext(os.path.basename(part.path))[0].lower()


def _level(rules: Files, file: FoundFile) -> int:
    return next((level for level, names in enumerate(rules.fallbacks, 1) if file.name in names), 0)


class _ByteOffsets:
    """Finds the bytes of mentions, which must be in order, so that no text is encoded twice."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._bytes = 0

    def range_of(self, mention: Mention) -> ByteRange:
        """Return the range of a mention in the file."""
        start = self._bytes + _byte_length(self._text[self._position : mention.start])
        end = start + _byte_length(self._text[mention.start : mention.end])
        self._position, self._bytes = mention.end, end
        return ByteRange(start, end)


def _byte_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _as_front_matter(values: Mapping[str, Any]) -> str:
    texts = {key: value for key, value in values.items() if isinstance(value, str)}
    lines = [f"{key}: {' '.join(value.split())}" for key, value in texts.items()]
    return "\n".join(["---", *lines, "---", ""])
