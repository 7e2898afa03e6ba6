"""Tests positions in TOML. The text at each position must be the value that `tomllib` reads."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config.toml import InvalidTomlError, ValueSpan, find_span, find_spans, parse

EXAMPLE = '''\
# a comment = "not a key"
title = "one # two" # three
"quoted \\u00e9 key".'dotted "literal"' = [1, [2, "]"], { a = 3 }] # end
multi = """
x = 1
""" # after
raw = \'\'\'
[not.a.table]
\'\'\'\'
[table]
  inner = {a = 1, b.c = "}"}
list = [
  1, # one
  { x = [ 'a' ] },
]
[[rows]]
n = 1
[[rows]]
n = 2
[rows.sub]
m = 3
[[rows.deep]]
k = 1979-05-27T07:32:00Z
'''


def at(values: object, path: tuple[str | int, ...]) -> object:
    for part in path:
        assert isinstance(values, dict | list)
        values = values[part]  # type: ignore[index]
    return values


def is_header(text: str, span: ValueSpan) -> bool:
    line_start = text.rfind("\n", 0, span.start) + 1
    return text[line_start : span.start].strip() == "" and text[span.start] == "["


def assert_true_to_tomllib(text: str) -> None:
    values = tomllib.loads(text)
    spans = find_spans(text)[0]
    for path, span in spans.items():
        assert span.line == text.count("\n", 0, span.start) + 1
        if not is_header(text, span):
            written = text[span.start : span.end]
            assert tomllib.loads(f"x = {written}")["x"] == at(values, path)
    assert all(path in spans for path in leaves(values))


def leaves(values: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(values, dict):
        return [leaf for key, value in values.items() for leaf in leaves(value, (*path, key))]
    if isinstance(values, list):
        return [leaf for at, value in enumerate(values) for leaf in leaves(value, (*path, at))]
    return [path]


def test_spans_of_all_toml_syntax_equal_tomllib() -> None:
    assert_true_to_tomllib(EXAMPLE)
    spans = find_spans(EXAMPLE)[0]
    assert spans["rows", 1, "sub", "m"].line == 21
    assert spans["rows", 1, "deep", 0, "k"].line == 23
    assert spans["table", "list", 1, "x", 0].line == 14


def test_spans_are_right_with_carriage_returns() -> None:
    assert_true_to_tomllib(EXAMPLE.replace("\n", "\r\n"))


def test_missing_path_has_the_line_of_its_table() -> None:
    spans = find_spans(EXAMPLE)[0]
    found = [find_span(spans, path) for path in (("rows", 1, "missing"), ("rows",))]
    assert [span and span.line for span in found] == [18, 16]
    assert find_span(spans, ("nowhere", "x")) is None


keys = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6).map(json.dumps),
)
scalars = st.one_of(
    st.booleans().map(lambda value: "true" if value else "false"),
    st.integers(-(10**9), 10**9).map(str),
    st.floats(allow_nan=False, allow_infinity=False, width=16).map(repr),
    st.text(st.characters(exclude_categories=["Cs", "Cc"])).map(
        lambda text: json.dumps(text, ensure_ascii=False)
    ),
    st.from_regex(r"'[^'\x00-\x1f\x7f\ud800-\udfff]*'", fullmatch=True),
    st.from_regex(r'"""[a-z#=\[\] \n]*"""', fullmatch=True),
)
blanks = st.sampled_from(["", " ", "\n", " # a ] comment, }\n", "\t"])


def lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    items = st.lists(st.tuples(blanks, inner, blanks).map("".join), max_size=4)
    return st.tuples(items, blanks).map(lambda made: "[" + ",".join(made[0]) + made[1] + "]")


def tables(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(keys, inner), max_size=3)
    return pairs.map(lambda made: "{ " + ", ".join(f"{key} = {value}" for key, value in made) + "}")


values = st.recursive(scalars, lambda inner: st.one_of(lists(inner), tables(inner)), max_leaves=6)
pairs = st.tuples(keys, values).map(lambda pair: f"{pair[0]} = {pair[1]}")
headers = st.tuples(keys, st.sampled_from(["[{}]", "[[{}]]", "[ {} ] # x"])).map(
    lambda made: made[1].format(made[0])
)
documents = st.lists(st.one_of(pairs, headers, st.just(""), st.just("# c")), max_size=8)


@given(documents)
def test_spans_of_random_documents_equal_tomllib(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        find_spans(text)[0]  # keys are repeated, so only check that nothing is raised
    else:
        assert_true_to_tomllib(text)


@given(st.text("[]{}\"'=,.#\\\n\r ab1é"))
def test_any_text_is_parsed_or_reported_with_a_line(text: str) -> None:
    find_spans(text)[0]
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(InvalidTomlError, match=r"\w") as raised:
            parse(text)
        assert 1 <= raised.value.line <= text.count("\n") + 1
    else:
        assert parse(text) == expected


def test_invalid_escape_ends_the_scan_without_an_error() -> None:
    assert list(find_spans('a = 1\n"\\UFFFFFFFF" = 2\n')[0]) == [("a",)]
