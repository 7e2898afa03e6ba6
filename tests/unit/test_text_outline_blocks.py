"""Tests top-level blocks of code, marked regions and ignore comments."""

# token-budget: ignore (sample marks)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.text.outline import (
    TextLines,
    find_blocks,
    find_ignored_sections,
    find_marked_regions,
    find_parts,
    find_sections,
    has_ignore_mark,
    is_markdown,
)
from tests.cases import read_table

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
