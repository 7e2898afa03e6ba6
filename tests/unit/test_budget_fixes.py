"""Tests that each quick fix resolves its finding and changes nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.budgets.budget_rules import Rules, Subject
from sidecar.budgets.findings import (
    Finding,
    RestOfGroup,
    TextCounter,
    evaluate,
    find_in_text,
)
from sidecar.budgets.quick_fixes import (
    Fix,
    SettingsOrigins,
    drop_fix,
    fit_fixes,
    ignore_fix,
    minimal_edit,
    move_fix,
    propose_fixes,
    raise_fix,
    raise_region_fix,
    raised_limit,
)
from sidecar.config.load import load
from sidecar.config.paths import PROJECT_FILE
from sidecar.config.settings import Budget, Settings
from sidecar.counting.exact_engines import engine
from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_choice import CounterChoice, Tokenizers
from tests.cases import read_rows

TOKENIZER = engine("o200k_base")
TOKENIZER.count("a")

LINES = "".join(f"Line {number} of the instructions, some words long.\n" for number in range(60))
SECTIONS = (
    "# Guide\n\nAn introduction.\n\n"
    + "## Long\n\n"
    + LINES
    + "\nSetext heading\n--------------\n\n"
    + LINES[:600]
    + "\n\n## Last\n\nThe end.\n"
)
REGION = f"before\n// token-budget: 50\n{LINES[:900]}// token-budget: end\nafter\n"


def counter(text: str) -> TextCounter:
    return TextCounter(text, lambda _: TOKENIZER)


def find(text: str, budget: Budget | None = None, others: int = 0) -> list[Finding]:
    rules = Rules(Settings(budgets=(budget,) if budget else ())).of("a.md")
    rest_of_group = {"budget[0]": RestOfGroup(others, 2)} if others else None
    return evaluate("a.md", text, rules, counter(text), "gpt-5", rest_of_group)


def applied(text: str, fix: Fix) -> str:
    for edit in sorted(fix.edits, key=lambda edit: -edit.start):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


BUDGETS = {
    "file": (SECTIONS, Budget(files=("*.md",), max_tokens=300)),
    "section": (SECTIONS, Budget(files=("*.md",), sections={"Long": 120}, truncation="end")),
    "setext section": (SECTIONS, Budget(files=("*.md",), sections={"Setext heading": 60})),
    "region": (REGION, None),
}


OWNERS = {
    "file": "",
    "section": ' of "Guide > Long"',
    "setext section": ' of "Guide > Setext heading"',
    "region": " of lines 2 to 22",
}
"""If several budgets are exceeded, each fix's title names its section or region."""


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", BUDGETS)
def test_fit_fix_shortens_only_its_scope(name: str, newline: str) -> None:
    text, budget = BUDGETS[name]
    text = text.replace("\n", newline)
    (finding,) = find(text, budget)
    fixes = list(fit_fixes(text, finding, TOKENIZER))
    assert [fix.title for fix in fixes] == [
        f"Fit to budget{OWNERS[name]}: keep the start",
        f"Fit to budget{OWNERS[name]}: keep both ends",
        f"Fit to budget{OWNERS[name]}: keep the end",
    ]
    wanted = "end" if name == "section" else "start"
    assert [fix.preferred for fix in fixes] == [wanted == "start", False, wanted == "end"]
    for fix in fixes:
        after = applied(text, fix)
        assert [left.over for left in find(after, budget)] in ([], [0])
        kept = text[: finding.scope_start], text[finding.scope_end :]
        assert after.startswith(kept[0])
        assert after.endswith(kept[1])
        assert after.endswith(newline)
        assert after.endswith(newline * 2) is text.endswith(newline * 2), "no blank line is left"
    if name != "file":
        heading = text[finding.scope_start :].split(newline, 1)[0]
        assert all(heading in applied(text, fix) for fix in fixes)


@given(
    st.text(st.sampled_from("ab \n\r汉😀é.\u200d👩#"), min_size=1, max_size=300),
    st.integers(1, 60),
    st.sampled_from(["", "\n", "\r\n"]),
)
def test_fit_fix_always_reaches_the_budget(text: str, limit: int, ending: str) -> None:
    text += ending
    for finding in find(text, Budget(files=("*.md",), max_tokens=limit)):
        for fix in fit_fixes(text, finding, TOKENIZER):
            after = applied(text, fix)
            assert TOKENIZER.count(after) <= limit
            assert after.endswith(ending)
            assert all(text[edit.start - 1 : edit.start + 1] != "\r\n" for edit in fix.edits)


def test_group_member_is_fitted_to_the_remaining_budget() -> None:
    budget = Budget(files=("*.md",), max_tokens=500, sum=True)
    (finding,) = find(LINES, budget, others=400)
    fix = next(fit_fixes(LINES, finding, TOKENIZER))
    assert TOKENIZER.count(applied(LINES, fix)) <= 100


def test_near_budget_has_no_fit_fix() -> None:
    tokens = TOKENIZER.count(LINES)
    (finding,) = find(LINES, Budget(files=("*.md",), max_tokens=tokens))
    assert finding.code == "budget-near"
    assert list(fit_fixes(LINES, finding, TOKENIZER)) == []
    assert move_fix(LINES, finding, counter(LINES), "x.md", "file:///x.md") is None


@pytest.mark.parametrize("name", BUDGETS)
def test_the_excess_moves_in_whole_lines(name: str) -> None:
    text, budget = BUDGETS[name]
    (finding,) = find(text, budget)
    fix = move_fix(text, finding, counter(text), "a.more.md", "file:///a.more.md")
    assert fix is not None
    assert fix.title == f"Move the excess{OWNERS[name]} to a.more.md"
    after = applied(text, fix)
    assert [left.over for left in find(after, budget)] in ([], [0])
    assert fix.new_file
    (edit,) = fix.edits
    assert text[: edit.start].endswith("\n")
    assert text[: edit.start] + fix.new_file.text + text[edit.end :] == text


def test_dropping_a_section() -> None:
    text, budget = BUDGETS["section"]
    (finding,) = find(text, budget)
    fix = drop_fix(text, finding, counter(text))
    assert fix is not None
    assert fix.title == f'Drop the section "Guide > Long" ({finding.tokens:,} tokens)'
    assert find(applied(text, fix), budget) == []
    assert applied(text, fix) == text.replace("## Long\n\n" + LINES + "\n", "")


@pytest.mark.parametrize("name", ["file", "section"])
def test_tokens_of_a_dropped_section_are_marked_where_they_are_estimated(name: str) -> None:
    whole = TOKENIZER.count(SECTIONS)
    budget = Budget(files=("*.md",), max_tokens=whole - 50, warn_at=1)
    if name == "section":
        budget = Budget(files=("*.md",), sections={"Guide > Long": 100})
    rules = Rules(Settings(budgets=(budget,))).of("a.md")
    model = "claude-sonnet-4-5"
    estimating = TextCounter(SECTIONS, lambda _: Tokenizers().for_model(model))
    (finding,) = evaluate("a.md", SECTIONS, rules, estimating, model, None)
    fix = drop_fix(SECTIONS, finding, estimating)
    assert fix is not None
    assert re.fullmatch(r'Drop the section "[^"]+" \(~[\d,]+ tokens\)', fix.title)


def test_drop_fix_removes_the_smallest_sufficient_section() -> None:
    whole = TOKENIZER.count(SECTIONS)
    budget = Budget(files=("*.md",), max_tokens=whole - 50, warn_at=1)
    (finding,) = find(SECTIONS, budget)
    fix = drop_fix(SECTIONS, finding, counter(SECTIONS))
    assert fix is not None
    assert 'section "Setext heading"' in fix.title
    assert find(applied(SECTIONS, fix), budget) == []
    assert (
        drop_fix(LINES, find(LINES, Budget(files=("*.md",), max_tokens=9))[0], counter(LINES))
        is None
    )


CONFIGURATION = """\
# Mine, with a comment
[[budget]]
files = 'x'  # untouched
max-tokens = 1
[tool.token-sidecar]
[[tool.token-sidecar.budget]]
files = ["*.md"]
max-tokens   =  1_00  # keep this
sections = { "Long" = 120, 'Other' = 5 }
"""


@pytest.mark.parametrize(("name", "old"), [("file", "1_00"), ("section", "120")])
def test_raising_the_budget_keeps_the_formatting(name: str, old: str) -> None:
    text, _ = BUDGETS[name]
    chosen = Budget(files=("*.md",), max_tokens=100) if name == "file" else BUDGETS[name][1]
    (finding,) = find(text, chosen)
    entry = ("tool", "token-sidecar", "budget", 0)
    fix = raise_fix(finding, CONFIGURATION, entry, "pyproject.toml")
    assert fix is not None
    number = raised_limit(finding.tokens)
    assert fix.title == f"Raise the budget{OWNERS[name]} to {number:,} in pyproject.toml"
    after = applied(CONFIGURATION, fix)
    assert after == CONFIGURATION.replace(old, str(number))
    assert tomllib.loads(after)["budget"][0]["max-tokens"] == 1
    assert raise_fix(finding, "", entry, "pyproject.toml") is None


def test_fixes_of_two_budgets_have_different_titles(tmp_path: Path) -> None:
    budget = '[[budget]]\nfiles = "*.md"\nmax-tokens = {}\n'
    (tmp_path / PROJECT_FILE).write_text(budget.format(100) + budget.format(200))
    loaded = load(tmp_path)
    rules = tuple(Rules(loaded.settings).of("a.md"))
    subject = Subject("a.md", Snapshot(text=SECTIONS), rules, "gpt-5")
    choices = {"gpt-5": CounterChoice(TOKENIZER)}
    place = SettingsOrigins(tmp_path, loaded.origins)
    titles = [
        fix.title for fix in propose_fixes(subject, find_in_text(subject, choices), place, choices)
    ]
    assert len(titles) == len(set(titles))
    assert [title.partition(" (")[2] for title in titles if title.startswith("Raise")] == [
        "budget of 100 tokens)",
        "budget of 200 tokens)",
    ]
    assert titles.count("Ignore budgets in this file") == 1


def test_raising_a_regions_mark() -> None:
    (finding,) = find(REGION)
    fix = raise_region_fix(finding, REGION)
    assert fix is not None
    assert find(applied(REGION, fix)) == [] or find(applied(REGION, fix))[0].over == 0


@pytest.mark.parametrize(
    ("tokens", "number"),
    [(4, 5), (99, 120), (431, 520), (2431, 3000), (2500, 3100), (43_100, 52_000)],
)
def test_raised_limit_is_a_round_number_with_room(tokens: int, number: int) -> None:
    assert raised_limit(tokens) == number


@pytest.mark.parametrize(("name", "language", "top", "line"), read_rows("budgets", "ignored_files"))
def test_ignoring_a_file(name: str, language: str, top: str, line: str) -> None:
    text = top + LINES
    budget = Budget(files=("*",), max_tokens=10)
    rules = Rules(Settings(budgets=(budget,))).of(name)
    (finding,) = evaluate(name, text, rules, counter(text), "gpt-5")
    fix = ignore_fix(name, language, text, finding)
    assert fix is not None
    assert fix.title == "Ignore budgets in this file"
    after = applied(text, fix)
    first = top.split("\n")[0] + "\n" if top else ""
    assert after == first + line + "\n" + text.removeprefix(first)
    assert evaluate(name, after, rules, counter(after), "gpt-5") == []


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_mark_goes_below_all_lines_that_stay_first(newline: str) -> None:
    top = newline.join(["#!/usr/bin/env python", "# -*- coding: utf-8 -*-", ""])
    text = top + LINES.replace("\n", newline)
    (finding,) = find(text, Budget(files=("*",), max_tokens=10))
    fix = ignore_fix("a.py", "python", text, finding)
    assert fix is not None
    assert applied(text, fix).startswith(f"{top}# token-budget: ignore{newline}Line 0")


def test_json_has_no_ignore_fix() -> None:
    (finding,) = find(LINES, Budget(files=("*.md",), max_tokens=10))
    assert ignore_fix("a.json", "json", LINES, finding) is None


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_ignoring_a_section_under_its_heading(newline: str) -> None:
    text, budget = (
        SECTIONS.replace("\n", newline),
        Budget(files=("*",), sections={"Setext heading": 60}),
    )
    (finding,) = find(text, budget)
    fix = ignore_fix("a.md", "markdown", text, finding)
    assert fix is not None
    assert fix.title == "Ignore the budget of this section"
    after = applied(text, fix)
    assert find(after, budget) == []
    mark = f"--------------{newline}<!-- token-budget: ignore -->{newline}{newline}Line 0"
    assert mark in after


@given(st.text("ab\r\n"), st.text("ab\r\n"), st.integers(0, 5))
def test_minimal_edit_produces_the_new_text(old: str, new: str, start: int) -> None:
    edit = minimal_edit(start, old, new)
    begin, end = edit.start - start, edit.end - start
    assert 0 <= begin <= end <= len(old)
    assert old[:begin] + edit.text + old[end:] == new
    for at in (begin, end):
        assert not (0 < at < len(old) and old[at - 1 : at + 1] == "\r\n")
