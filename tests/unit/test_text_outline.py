"""Tests Markdown sections against a CommonMark parser, blocks of code, regions and ignore marks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

# token-budget: ignore (sample marks)
from sidecar.text.outline import (
    TITLE_LENGTH,
    Part,
    TextLines,
    find_blocks,
    find_ignored_sections,
    find_marked_regions,
    find_parts,
    find_sections,
    has_ignore_mark,
    has_path,
    is_markdown,
    normalize_heading_path,
)
from tests.cases import read_rows, read_table

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
|<!-- c|-->|<!-- c -->|   z|- ```|  - deep|<div>|</div>|<pre>|x</pre>|<b>|x <i>|<?a|?>|<!X|>\
|<![CDATA[|]]>|</textarea>|<textarea>"""
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


PYTHON = '''\
"""Module."""
import a
import b

@wraps
def first():

    return 1
class Second:
    x = (
        1
    )
VALUE = {
    1: 2,
}

# a comment
def third(): ...
'''

C = """\
#include <x.h>

int main()
{
    return 0;
}
static int other(void) {
    if (1) {
    }
} // end

struct s { int a; };
"""


def shown(text: str) -> list[tuple[str, int, int]]:
    return [(part.title, part.start_line, part.end_line) for part in find_blocks(TextLines(text))]


def test_python() -> None:
    assert shown(PYTHON) == [
        ("import b", 0, 3),
        ("def first():", 4, 8),
        ("class Second:", 8, 12),
        ("VALUE = {", 12, 15),
        ("def third(): ...", 16, 18),
    ]


def test_braces() -> None:
    assert shown(C) == [
        ("#include <x.h>", 0, 1),
        ("int main()", 2, 6),
        ("static int other(void) {", 6, 10),
        ("struct s { int a; };", 11, 12),
    ]


def test_find_parts_returns_sections_of_markdown_and_blocks_of_code() -> None:
    assert [part.kind for part in find_parts("# a\n", "x.md")] == ["section"]
    assert [part.kind for part in find_parts("# a\n", "x.py")] == ["block"]
    assert [part.kind for part in find_parts("# a\n", "x", "markdown")] == ["section"]
    assert is_markdown("file:///a/b.prompt.MD")
    assert not is_markdown("md")


@given(st.text("ab \t\n\r(){}#", max_size=60))
def test_blocks_are_disjoint_and_cover_all_text(text: str) -> None:
    lines = TextLines(text)
    covered: set[int] = set()
    for part in find_blocks(lines):
        own = set(range(part.start_line, part.end_line))
        assert own
        assert not own & covered
        covered |= own
    written = {number for number, line in enumerate(lines.texts) if line.strip()}
    assert written <= covered


@given(st.text("ab\n\r", max_size=30))
def test_lines_are_those_of_lsp(text: str) -> None:
    lines = TextLines(text)
    assert lines.texts == text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    joined = [text[start:end] for start, end in zip(lines.starts, lines.starts[1:], strict=False)]
    assert "".join(joined) == text
    assert [line.rstrip("\r\n") for line in joined] == lines.texts


REGIONS = """\
a
<!-- token-budget: 500 -->
b
// token-budget: 1_000
c
# token-budget: end
d
/* token-budget: end */
e
# token-budget: end
-- token-budget: 7
f
"""


def test_regions_in_any_comment_syntax() -> None:
    found = [
        (part.limit, part.start_line, part.end_line)
        for part in find_marked_regions(TextLines(REGIONS))
    ]
    assert found == [(500, 1, 8), (1000, 3, 6), (7, 10, 13)]
    outer = find_marked_regions(TextLines(REGIONS))[0]
    assert REGIONS[outer.start : outer.end].startswith("<!--")
    assert REGIONS[outer.start : outer.end].endswith("*/\n")


@pytest.mark.parametrize("line", ["my-token-budget: 5", "token-budget: five", "token-budget: 5x"])
def test_similar_strings_are_not_marks(line: str) -> None:
    assert find_marked_regions(TextLines(line)) == []


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_ignore_mark_in_the_first_ten_lines(newline: str) -> None:
    mark = "<!-- token-budget: ignore -->"
    assert has_ignore_mark(newline * 9 + mark)
    assert not has_ignore_mark(newline * 10 + mark)
    assert has_ignore_mark("#token-budget:ignore")
    assert not has_ignore_mark("token-budget: ignored")


def test_ignore_mark_below_a_heading() -> None:
    text = "# A\ntoken-budget: ignore\n## B\n## C\n\n% token-budget: ignore\n# D\n"
    lines = TextLines(text)
    found = find_ignored_sections(lines, list(find_sections(lines)))
    assert [part.path_text for part in found] == ["A", "A > C"]


TABLE = read_table("ignore_marks")
MARKS, MENTIONS = TABLE["Markdown"]["marks"], TABLE["Markdown"]["mentions"]


@pytest.mark.parametrize("text", MARKS.values(), ids=MARKS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_comment_in_markdown_is_a_mark(text: str, newline: str) -> None:
    assert has_ignore_mark(text.replace("\n", newline), "docs/a.md")


@pytest.mark.parametrize("text", MENTIONS.values(), ids=MENTIONS)
@pytest.mark.parametrize("name", ["a.md", "file:///x/AGENTS.MD", "a.mdx"])
def test_a_mention_in_markdown_is_not_a_mark(text: str, name: str) -> None:
    assert not has_ignore_mark(text, name)


@pytest.mark.parametrize("name", ["a.py", "a.txt", ""])
def test_a_mark_in_code_is_a_comment(name: str) -> None:
    assert [text for text in TABLE["code"]["marks"] if not has_ignore_mark(text, name)] == []
    assert [text for text in TABLE["code"]["mentions"] if has_ignore_mark(text, name)] == []
