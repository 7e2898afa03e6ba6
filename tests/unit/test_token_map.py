"""Tests a folder's token counts by subfolder and file."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from sidecar.project.token_map import MapEntry, build_token_map, flatten

_names = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(
    lambda parts: "/".join([*(f"d{part}" for part in parts[:-1]), f"f{parts[-1]}"])
)


@given(st.dictionaries(_names, st.integers(0, 1000)), st.integers(0, 5))
def test_each_folder_has_the_sum_of_its_files(counts: dict[str, int], depth: int) -> None:
    top = build_token_map([(*one, "exact") for one in counts.items()], depth)
    assert (top.tokens, top.files) == (sum(counts.values()), len(counts))
    for level, entry in flatten(top):
        assert level < depth
        inside = {
            path: tokens
            for path, tokens in counts.items()
            if path == entry.path or (entry.path.endswith("/") and path.startswith(entry.path))
        }
        assert (entry.tokens, entry.files) == (sum(inside.values()), len(inside))
        assert [child.tokens for child in entry.children] == sorted(
            (child.tokens for child in entry.children), reverse=True
        )


def test_the_depth_limits_the_listing() -> None:
    top: MapEntry = build_token_map(
        [("a/b/c.py", 3, "exact"), ("a/d.py", 4, "estimate"), ("e.py", 1, "exact")], 2
    )
    listed = [(level, entry.path, entry.tokens) for level, entry in flatten(top)]
    assert listed == [(0, "a/", 7), (1, "a/d.py", 4), (1, "a/b/", 3), (0, "e.py", 1)]


def test_folders_may_be_nested_deeper_than_python_calls() -> None:
    depth = sys.getrecursionlimit()
    top = build_token_map([("d/" * depth + "f.py", 3, "exact")], sys.maxsize)
    assert [level for level, _ in flatten(top)] == list(range(depth + 1))


def test_only_estimated_entries_have_a_sign() -> None:
    counts = [("a/b.py", 3_000, "estimate"), ("a/c.py", 2, "exact"), ("d/e.py", 7, "endpoint")]
    top = build_token_map([*counts, ("f.py", 5, "calibrated")], 2)  # type: ignore[list-item]
    assert {entry.path: entry.number for _, entry in flatten(top)} == {
        "a/": "~3,002",
        "a/b.py": "~3,000",
        "a/c.py": "2",
        "d/": "7",
        "d/e.py": "7",
        "f.py": "~5",
    }
