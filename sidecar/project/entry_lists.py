"""Fits the lists of skills, commands and sub-agents that agents send into their limits.

An agent sends a line for each: its name and description, never its body. This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sidecar.project.loading_rules import Entries, EntryLimit
from sidecar.text.prompt_markdown import Span, Value, front_matter_end


class Entry(NamedTuple):
    """A skill, a command or a sub-agent."""

    name: str
    description: str
    """The whole description."""
    span: Span
    """The description's range in the file."""
    level: str
    """`user` or `project`."""
    path: str
    rules: Entries
    addition: str = ""
    """What follows the description, outside of its limit."""

    def line(self, description: str) -> str:
        """Return what an agent sends of the entry with a description, or with a part of it."""
        form = self.rules.form if description else self.rules.name_form
        values = (("{name}", self.name), ("{path}", self.path), ("{level}", self.level))
        for mark, value in values:
            form = form.replace(mark, value)
        return form.replace("{description}", description + self.addition)

    @property
    def cut(self) -> str:
        """The description as long as the limit of one description allows."""
        return self.cut_to(self.rules.max_description)

    def cut_to(self, most: int | None) -> str:
        """Return the description with at most a number of characters."""
        if most is None or len(self.description) <= most:
            return self.description
        return self.description[: max(0, most - len(self.rules.mark))] + self.rules.mark


_DESCRIPTION = re.compile(r"^description[ \t]*:[ \t]*", re.M)
_NEXT_KEY = re.compile(r"^(?:[^\s#-]|---)", re.M)
_STRING = re.compile(r"""(["'])(.*)\1\s*$""", re.S)
_HEADING = re.compile(r"^#+[ \t]*")


def read_entry(
    text: str, values: Mapping[str, Value], path: str, level: str, rules: Entries
) -> Entry:
    """Return the entry in a file with some front matter. Its description may be empty."""
    body_start = front_matter_end(text)
    parts = path.replace("\\", "/").split("/")
    stem = parts[-2] if parts[-1] == "SKILL.md" else parts[-1].rpartition(".")[0]
    name, description = values.get("name"), values.get("description")
    span = _description_span(text[:body_start])
    if not (isinstance(description, str) and description) and rules.first_line:
        description, span = _first_line(text, body_start)
    more = values.get(rules.more) if rules.more else None
    addition = f"{rules.joins}{more}" if isinstance(more, str) and more and description else ""
    if rules.limits_more:
        description, addition = f"{description or ''}{addition}", ""
    named = name.strip() if isinstance(name, str) else ""
    described = description.strip() if isinstance(description, str) else ""
    return Entry(named or stem, described, span, level, path, rules, addition)


def _description_span(front: str) -> Span:
    found = _DESCRIPTION.search(front)
    if found is None:
        return Span(0, 0)
    following = _NEXT_KEY.search(front, front.find("\n", found.end()) + 1)
    end = following.start() if following else len(front)
    value = front[found.end() : end].rstrip()
    quoted = _STRING.match(value)
    start = found.end() + (1 if quoted else 0)
    return Span(start, start + len(quoted[2]) if quoted else found.end() + len(value))


def _first_line(text: str, start: int) -> tuple[str, Span]:
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        if line := _HEADING.sub("", text[start:end].strip()):
            return line, Span(start, end)
        start = end + 1
    return "", Span(0, 0)


def fit_descriptions(
    entries: Sequence[Entry],
    limit: EntryLimit | None,
    budget: float | None,
    used: Mapping[str, float],
) -> list[str]:
    """Return what is sent of each entry's description.

    Args:
        entries: The entries of one list, in its order.
        limit: The limit of the list.
        budget: The size of the list in the unit of the limit. None stands for no limit.
        used: How often entries were used, by name.
    """
    cut = [entry.cut for entry in entries]
    if limit is None or budget is None:
        return cut
    if limit.loses == "lengths":
        return _shorten_all(entries, cut, budget)
    if limit.loses == "rest":
        return _keep_first(entries, cut, budget)
    return _keep_used(entries, cut, budget - limit.reserved, used)


def _keep_used(
    entries: Sequence[Entry], cut: Sequence[str], budget: float, used: Mapping[str, float]
) -> list[str]:
    """Keep all names, and the descriptions of the most used entries that still fit."""
    budget -= sum(len(entry.line("")) + 1 for entry in entries)
    kept = [""] * len(entries)
    for index in sorted(range(len(entries)), key=lambda one: -used.get(entries[one].name, 0.0)):
        size = len(entries[index].line(cut[index])) - len(entries[index].line(""))
        if size <= budget:
            budget -= size
            kept[index] = cut[index]
    return kept


def _shorten_all(entries: Sequence[Entry], cut: Sequence[str], budget: float) -> list[str]:
    """Shorten all descriptions to the same length. The budget is in tokens of four characters."""

    def size(length: int) -> int:
        lines = (
            len(entry.line("")) + len(text[:length])
            for entry, text in zip(entries, cut, strict=True)
        )
        return sum(-(-(line + 1) // 4) for line in lines)

    low, high = 0, max(map(len, cut), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(middle) <= budget else (low, middle - 1)
    return [text[:low] for text in cut]


def _keep_first(entries: Sequence[Entry], cut: Sequence[str], budget: float) -> list[str]:
    """Keep the first descriptions in the order of the names, up to the first that does not fit."""
    kept = [""] * len(entries)
    for index in sorted(range(len(entries)), key=lambda one: entries[one].name):
        budget -= len(entries[index].line(cut[index]))
        if budget < 0:
            break
        kept[index] = cut[index]
    return kept
