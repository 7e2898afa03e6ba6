"""Decides what an agent sends of one file: what it removes, cuts off, and sends later.

Of a skill, a command or a sub-agent, it sends a line with the name and the description, never the
body. The descriptions of a list are fitted into its limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from sidecar.project.loading_rules import Entries, EntryLimit, Files, Limit, Scope, State
from sidecar.project.source_files import SourceFile
from sidecar.text.prompt_markdown import (
    Span,
    Value,
    find_block_comments,
    front_matter_end,
    is_valid_front_matter,
    read_front_matter,
)


class RemainingLimit:
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


def _removed(text: str, rules: Files) -> Iterator[Span]:
    if "front-matter" in rules.strips and (end := front_matter_end(text)):
        yield Span(0, end)
    if "comments" in rules.strips:
        yield from find_block_comments(text)


def text_as_sent(source: SourceFile, end: int, rules: Files) -> str:
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


def scope_state(scope: Scope, text: str) -> tuple[State, str]:
    """Return what is sent of a rule, and why not all of it."""
    is_read = not scope.ignores_invalid or is_valid_front_matter(text)
    values = read_front_matter(text) if is_read else {}
    if scope.off and values.get(scope.off) is True:
        return "hidden", f"its front matter has `{scope.off}: true`"
    always = values.get(scope.always)
    if always is True:
        return "sent", ""
    listed = (texts_of(values.get(key, ())) for key in scope.keys)
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


def texts_of(value: Value) -> list[str]:
    """Return the texts of a list, or of a text with commas."""
    if isinstance(value, bool):
        return []
    values = value.split(",") if isinstance(value, str) else value
    return [text for one in values if (text := one.strip())]


def description_of(source: SourceFile) -> str:
    """Return the description in the front matter of a rule."""
    value = read_front_matter(source.text).get("description", "")
    return value if isinstance(value, str) else ""


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
