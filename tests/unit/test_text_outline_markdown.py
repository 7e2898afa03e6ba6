"""Tests Markdown sections against a CommonMark parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sidecar.text.outline import (
    TITLE_LENGTH,
    Part,
    TextLines,
    find_sections,
    has_path,
    normalize_heading_path,
)
from tests.cases import read_rows

EXAMPLE = """\
---
name: x
# not a heading
---
# Plan #

text
## `Recent` **diffs**
```md
# not a heading
```
~~~
```
# neither
~~~~
- ```sh
  # nor this
  ```
> # quoted
- # in a list
<!--
# commented out
-->
    # code
Two lines of a
heading
---
#no heading
####### seven
### Deep
# Next
"""


def found(text: str) -> list[Part]:
    return list(find_sections(TextLines(text)))


def test_example() -> None:
    shown = [
        (part.level, part.path_text, part.start_line, part.end_line) for part in found(EXAMPLE)
    ]
    assert shown == [
        (1, "Plan", 4, 30),
        (2, "Plan > Recent diffs", 7, 24),
        (2, "Plan > Two lines of a heading", 24, 30),
        (3, "Plan > Two lines of a heading > Deep", 29, 30),
        (1, "Next", 30, 32),
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_offsets_refer_to_the_original_text(newline: str) -> None:
    text = EXAMPLE.replace("\n", newline)
    plan = found(text)[0]
    assert text[plan.start : plan.end].startswith(f"# Plan #{newline}{newline}text")
    assert text[plan.end :] == f"# Next{newline}"


def test_other_separators_do_not_end_lines() -> None:
    assert [part.title for part in found("# a\u2028# b\x0c# c\x0b# d\x85# e")] == [
        "a # b # c # d # e"
    ]


@pytest.mark.parametrize(("path", "count"), read_rows("text", "heading_paths"))
def test_heading_path_matches_the_end_of_a_path(path: str, count: int) -> None:
    wanted = normalize_heading_path(path)
    assert sum(has_path(part, wanted) for part in found(EXAMPLE)) == count


def test_title_may_contain_the_separator() -> None:
    part = found("# a > b\n")[0]
    assert has_path(part, normalize_heading_path("a > b"))


@pytest.mark.parametrize(
    "line",
    [
        "#" + " " * 200_000 + "x",
        "- " * 100_000 + "x",
        "`" * 200_000,
        "* " * 100_000 + "x",
        ">" * 200_000,
        "# " + "# " * 100_000,
        "a\n" * 100_000 + "---",
        "```\n" * 100_001,
    ],
)
def test_long_lines_take_linear_time(line: str) -> None:
    # Quadratic time would exceed the tests' timeout.
    found(line)


LINES = """\
# A|## B ##|###\tC|a|b *c*|===|---|--|- x|> q|||  # D|```|~~~|````|  ```|    # code|***|#|1. y\
|<!-- c|-->|<!-- c -->|   z|- ```|  - deep"""
lines = st.sampled_from(LINES.split("|"))


def headings_of_the_document(text: str) -> list[tuple[int, int]]:
    """Return each top-level heading's first line and level, according to markdown-it."""
    tokens = MarkdownIt("commonmark").parse(text)
    return [
        (token.map[0], int(token.tag[1]))
        for token in tokens
        if token.type == "heading_open" and token.level == 0 and token.map is not None
    ]


@given(st.lists(lines, max_size=12))
def test_headings_are_those_of_commonmark(parts: list[str]) -> None:
    text = "\n".join(parts)
    if parts and parts[0] == "---":
        text = f"\n{text}"  # CommonMark does not define front matter
    assert [(part.start_line, part.level) for part in found(text)] == headings_of_the_document(text)


@given(st.lists(lines, max_size=12))
def test_sections_are_nested_and_end_at_the_next_heading(parts: list[str]) -> None:
    text = "\n".join(parts)
    made = found(text)
    for index, part in enumerate(made):
        later = [other for other in made[index + 1 :] if other.level <= part.level]
        assert part.end == (later[0].start if later else len(text))
        assert part.path[-1][:TITLE_LENGTH] == part.title
        assert len(part.path) <= part.level


def test_heading_path_with_many_blanks_takes_linear_time() -> None:
    r"""A pattern such as `\\s+>\\s+` would take quadratic time."""
    assert normalize_heading_path("x" + " " * 1_000_000 + "y") == "x y"
    assert normalize_heading_path("x" + " " * 9 + ">" + "\t" * 9 + "y > z") == "x > y > z"
