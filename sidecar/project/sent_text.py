"""Decides what an agent sends of one file: what it removes, cuts off, and sends later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from sidecar.project.loading_rules import Files, Limit, Scope, State
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
