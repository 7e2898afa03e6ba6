"""Finds the files in the places where a coding agent looks, as its settings say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from sidecar.agents.folders import Places
from sidecar.project.git import find_top
from sidecar.project.loading_rules import AgentRules, Files, Limit
from sidecar.project.source_files import SourceFiles
from sidecar.text.globs import PathGlobs, path_glob_problem

NO_PLACES = Places(Path(os.devnull))
"""Stands for no user: nothing is in these folders."""

_PLACEHOLDERS = ("{slug}", "{name}", "{style}")


class SearchFolder(NamedTuple):
    """A folder in which an agent looks for files."""

    folder: str
    inside: tuple[str, ...]
    """The folders that may contain what links in this folder lead to."""
    is_own: bool = False
    is_main: bool = True
    """Whether files with paths of their own are looked for from here."""


class FoundFile(NamedTuple):
    """A file that exists in a place."""

    path: str
    place: SearchFolder
    name: str
    """The name or the pattern in the rules."""

    @property
    def is_rule(self) -> bool:
        """Whether a pattern found it."""
        return "*" in self.name


class AgentSearch:
    """The places where one agent looks for files, and the settings that change them.

    Args:
        agent: The agent.
        rules: Its rules.
        start: The folder where it starts.
        places: The user's folders.
        files: Reads files.
    """

    def __init__(
        self, agent: str, rules: AgentRules, start: str, places: Places, files: SourceFiles
    ) -> None:
        self.start = os.path.abspath(start)
        self._agent = agent
        self._rules = rules
        self._places = places
        self._files = files
        self._excluded_files: list[FoundFile] = []
        self._own: set[str] = set()
        """The user's files, which are not read again where the project lies below their folder."""

    @cached_property
    def _root(self) -> str | None:
        top = find_top(Path(self.start))
        return None if top is None else str(top)

    @property
    def start_name(self) -> str:
        """The start folder in words."""
        is_root = self.start == self.project[0]
        return "the project" if is_root else f"{self.short(self.start)}, where it starts"

    @cached_property
    def project(self) -> tuple[str, ...]:
        """The repository's root, or the start folder without a repository."""
        return (self._root or self.start,)

    @cached_property
    def _own_folders(self) -> tuple[SearchFolder, ...]:
        homes = (
            *self._places.from_settings(self._agent),
            *self._places.in_use(self._rules.home),
        )
        folders = [str(home) for home in dict.fromkeys(homes)] or [""]
        return tuple(
            SearchFolder(
                one, (*filter(None, [one]), str(self._places.home)), True, one == folders[0]
            )
            for one in folders
        )

    def _chain(self, above: str) -> list[SearchFolder]:
        """Return the folders down to the start, outermost first."""
        root = self._root
        folders = [*map(str, (Path(self.start), *Path(self.start).parents))][::-1]
        first = folders.index(root or self.start)
        outermost = first if above == "never" else 0
        if root is not None:
            outermost = {"always": 0, "one": max(first - 1, 0)}.get(above, first)
        if self._places is NO_PLACES:  # folders above the project are the user's
            outermost = first
        outer = [
            SearchFolder(one, (one, str(self._places.home))) for one in folders[outermost:first]
        ]
        return [*outer, *(SearchFolder(one, self.project) for one in folders[first:])]

    def folders(self, rules: Files) -> list[SearchFolder]:
        """Return the folders that an entry of the rules names, in the order of the request."""
        found: list[SearchFolder] = []
        for where in rules.where:
            if where == "user":
                found += self._own_folders
            elif where == "chain":
                found += self._chain(rules.above)
            elif where == "trusted":
                found += self._chain("always")[-1 - self._trusted_above :]
            elif where == "between":
                found += self._chain("never")[1:-1]
            else:
                folder = self.project[0] if where == "root" else self.start
                found.append(SearchFolder(folder, self.project))
        if rules.links_as_imports and self.imports_any:
            home = str(self._places.home)
            found = [one._replace(inside=(*one.inside, home)) for one in found]
        places = list({one.folder: one for one in found}.values())
        return places[::-1] if rules.innermost_first else places

    @cached_property
    def _trusted_above(self) -> int:
        """How many folders above the start are below the nearest trusted one, or are it."""
        key = self._rules.trust_key
        values = (values.get(key) for values in self._user_files(self._rules.trust_files))
        trusted = {one for value in values if isinstance(value, list) for one in value}
        folders = (self.start, *map(str, Path(self.start).parents))
        return next((number for number, one in enumerate(folders) if one in trusted), 0)

    @cached_property
    def imports_any(self) -> bool:
        """Whether the user has approved imports of files outside the project."""
        imports = self._rules.imports
        for values in self._user_files(imports.approval_files) if imports is not None else ():
            value: Any = values
            for key in imports.approval_keys if imports is not None else ():
                name = key.replace("{root}", self._files.real(self.project[0]))
                value = value.get(name) if isinstance(value, Mapping) else None
            if value is True:
                return True
        return False

    def _user_files(self, names: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
        """Yield the values in files of the agent in the user's folders."""
        for path in (path for name in names for path in self._places.named_paths(name)):
            inside = (str(self._places.home), str(path.parent))
            yield self._files.settings(str(path), inside)

    def paths(self, place: SearchFolder, name: str) -> list[str]:
        """Return the files in a place that a name or a pattern stands for."""
        for mark in _PLACEHOLDERS:
            if mark in name:
                value = self._placeholders[mark]
                if not value or os.sep in value or value == "..":
                    return []
                name = name.replace(mark, value)
        if name[0] in "~${":
            is_main = place.is_own and place.is_main
            tops = map(str, self._places.paths_or_patterns(name)) if is_main else ()
            paths = [("/", path.lstrip("/")) for path in tops]
        else:
            paths = [(place.folder, name)] if place.folder else []
        found: list[str] = []
        for folder, inner in paths:
            if "*" in inner:
                inside = (*place.inside, *self.project) if not place.is_own else place.inside
                found += self._files.find(folder, inner, inside)
            elif self._files.exists(path := os.path.join(folder, inner)):
                found.append(path)
        excluded = [path for path in found if self.is_excluded(path)]
        self._excluded_files += [FoundFile(path, place, name) for path in excluded]
        found = [path for path in found if path not in excluded] if excluded else found
        if place.is_own:
            self._own.update(found)
            return found
        return [path for path in found if path not in self._own]

    def take_excluded(self) -> list[FoundFile]:
        """Return the files that settings have excluded since the last call."""
        excluded, self._excluded_files = self._excluded_files, []
        return excluded

    @cached_property
    def _placeholders(self) -> dict[str, str]:
        styles = [text for text, _ in self.setting_texts("output_style")]
        names: Any = {}
        for values in self._user_files((self._rules.names_file,)):
            names = values.get(self._rules.names_key)
        name = names.get(self.start) if isinstance(names, Mapping) else None
        return {
            "{slug}": re.sub(r"[^A-Za-z0-9]", "-", self.project[0]),
            "{name}": name if isinstance(name, str) else "",
            "{style}": styles[-1] if styles else "",
        }

    def setting_values(self, field: str) -> Iterator[tuple[Any, str]]:
        """Yield the value of a setting in each settings file, and the file's folder.

        Args:
            field: The field of `Settings` that names the setting.
        """
        settings, key = self._rules.settings, self.setting_key(field)
        for name in settings.files if settings is not None and key else ():
            if name[0] in "~${":
                paths = [str(path) for path in self._places.named_paths(name)]
                inside = (str(self._places.home), *map(os.path.dirname, paths))
            else:
                paths, inside = [os.path.join(self.start, name)], self.project
            for path in paths:
                value: Any = self._files.settings(path, inside)
                for inner in key.split("."):
                    value = value.get(inner) if isinstance(value, Mapping) else None
                if value is not None:
                    yield value, os.path.dirname(path)

    def setting_texts(self, field: str) -> list[tuple[str, str]]:
        """Return the texts of a setting, and the folder of the file that has each."""
        found = []
        for value, folder in self.setting_values(field):
            values = [value] if isinstance(value, str) else value
            if isinstance(values, list | tuple):
                found += [(one, folder) for one in values[:1_000] if isinstance(one, str) and one]
        return found

    def setting_key(self, field: str) -> str:
        """Return the agent's name of a setting, or an empty string if it has none."""
        return getattr(self._rules.settings, field, "") if self._rules.settings else ""

    @cached_property
    def _excluded(self) -> PathGlobs | None:
        texts = [text for text, _ in self.setting_texts("excludes")]
        globs = [one for one in texts if path_glob_problem(one) is None]
        return PathGlobs(globs) if globs else None

    def is_excluded(self, path: str) -> bool:
        """Return whether the settings keep the agent from reading a file."""
        return self._excluded is not None and self._excluded.matches_file(path.lstrip("/"))

    def names_of(self, rules: Files) -> list[tuple[str, ...]]:
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
        if also:
            groups = sorted({*groups, *((name,) for name in also)})
        return [(*group, *more) for group in groups]

    def _setting_names(self, field: str) -> list[str]:
        texts = self.setting_texts(field)
        return [text for text, _ in texts if _is_plain_name(text)]

    def limit_of(self, rules: Files) -> Limit | None:
        """Return the limit of an entry of the rules, with that of settings."""
        if rules.limit is None or not rules.limit.is_shared:
            return rules.limit
        values = [value for value, _ in self.setting_values("bytes")]
        numbers = [one for one in values if isinstance(one, int) and one >= 0]
        return replace(rules.limit, bytes=numbers[-1]) if numbers else rules.limit

    def short(self, path: str) -> str:
        """Return a path relative to the project, or to the home folder."""
        for top, sign in ((self.project[0], ""), (str(self._places.home), "~/")):
            prefix = top.rstrip("/") + "/"
            if path.startswith(prefix):
                return sign + path[len(prefix) :]
        return path


def _is_plain_name(name: str) -> bool:
    return bool(name) and name[0] not in "/~${" and ".." not in name.split("/") and "*" not in name
