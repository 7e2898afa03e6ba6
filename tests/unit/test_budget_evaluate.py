"""Tests budget findings: severity, message, range and marks."""

from __future__ import annotations

import functools
from pathlib import Path
from threading import current_thread

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from sidecar.budgets.budget_rules import Rule, Rules, presets, severity_of
from sidecar.budgets.findings import (
    Finding,
    GroupMember,
    RestOfGroup,
    TextCounter,
    evaluate,
    excess_start,
    members_to_name,
)
from sidecar.config.settings import Budget, Loaded, Settings
from sidecar.counting.count_result import Method
from sidecar.counting.exact_engines import VOCABULARIES, Reference, engine, load_ranks
from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_interface import Tokenizer
from sidecar.text.document import Piece, TextDocument, split_pieces
from sidecar.text.outline import HEAD_CHARACTERS
from sidecar.workspace.document_budgets import find_lowest_budget
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Workspace
from tests.cases import read_rows
from tests.file_opens import recorded_opens


class Words(Tokenizer):
    """A tokenizer that counts words."""

    name = "words"

    def __init__(self, method: Method = "exact", error_percent: float | None = 0.0) -> None:
        self.method = method
        self.error_percent = error_percent

    def count(self, text: str) -> int:
        return len(text.split())


def check(
    text: str, *budgets: Budget, name: str = "AGENTS.md", model: str = "gpt-5"
) -> list[Finding]:
    rules = Rules(Settings(budgets=budgets)).of(name)
    return evaluate(name, text, rules, TextCounter(text, lambda _: Words()), model)


def words(count: int) -> str:
    return "w " * count


@pytest.mark.parametrize(
    ("tokens", "severity"),
    [
        *[(0, None), (89, None), (90, "information"), (100, "information")],
        *[(101, "warning"), (199, "warning"), (200, "error"), (900, "error")],
    ],
)
def test_severity_by_distance(tokens: int, severity: str | None) -> None:
    assert severity_of(tokens, 100, 0.9) == severity


@pytest.mark.parametrize(
    ("budget", "warn_at", "first"), [(10, 0.7, 7), (3, 0.1, 1), (2000, 0.9, 1800)]
)
def test_warn_at_is_not_off_by_a_binary_fraction(budget: int, warn_at: float, first: int) -> None:
    assert severity_of(first, budget, warn_at) == "information"
    assert severity_of(first - 1, budget, warn_at) is None


def test_exceeded_budget_is_underlined_from_the_excess() -> None:
    (finding,) = check(words(2431), Budget(files=("AGENTS.md",), max_tokens=2000))
    assert finding.message == (
        "AGENTS.md is 2,431 tokens, 431 over its budget of 2,000 (gpt-5, exact)"
    )
    assert (finding.severity, finding.code, finding.over) == ("warning", "budget-exceeded", 431)
    assert words(2431)[finding.start : finding.end].split() == ["w"] * 431
    assert (finding.scope_start, finding.scope_end) == (0, 4862)


def test_near_budget_is_underlined_at_the_first_line() -> None:
    (finding,) = check("\ufeffone\r\n" + words(93), Budget(files=("AGENTS.md",), max_tokens=100))
    assert finding.message == "AGENTS.md is 94 tokens, 94 % of its budget of 100 (gpt-5, exact)"
    assert (finding.code, finding.over, finding.start, finding.end) == ("budget-near", 0, 0, 4)


def test_message_says_that_a_count_is_an_estimate() -> None:
    rules = Rules(Settings(budgets=(Budget(files=("a",), max_tokens=2),))).of("a")
    counter = TextCounter(words(1500), lambda _: Words("estimate", 25.0))
    (finding,) = evaluate("a", words(1500), rules, counter, "qwen-x")
    assert finding.message == (
        "a is ~1,500 tokens, ~1,498 over its budget of 2 (qwen-x, estimate ±25 %)"
    )


def test_a_rule_may_name_its_model() -> None:
    asked: list[str] = []

    def tokenizer_for(model: str) -> Words:
        asked.append(model)
        return Words()

    rules = Rules(Settings(budgets=(Budget(files=("a",), max_tokens=1, model="mine"),))).of("a")
    (finding,) = evaluate("a", "x y", rules, TextCounter("x y", tokenizer_for), "gpt-5")
    assert finding.model == "mine"
    assert set(asked) == {"mine"}


SECTIONS = """\
# Prompt
one
## Context
a b c
### More
d e
## Plan
f
### Recent diffs
g h i
"""


def test_a_section_is_its_heading_with_all_below() -> None:
    budget = Budget(files=("*.md",), sections={"Context": 8, "Plan > Recent diffs": 3, "Nope": 1})
    first, over = check(SECTIONS, budget)
    assert first.message == (
        "Prompt > Context in AGENTS.md is 9 tokens, 1 over its budget of 8 (gpt-5, exact)"
    )
    assert (first.section, first.tokens, first.over) == ("Prompt > Context", 9, 1)
    assert SECTIONS[first.start : first.end] == "e\n"
    assert (over.section, over.tokens, over.severity) == (
        "Prompt > Plan > Recent diffs",
        6,
        "error",
    )
    assert SECTIONS[over.scope_start : over.scope_end] == "### Recent diffs\ng h i\n"


def test_near_points_at_the_sections_heading() -> None:
    (finding,) = check(SECTIONS, Budget(files=("*.md",), sections={"Recent diffs": 6}))
    assert SECTIONS[finding.start : finding.end] == "### Recent diffs"


def test_each_section_of_that_name_counts_for_itself() -> None:
    found = check("# A\nx x\n# A\ny\n", Budget(files=("*.md",), sections={"A": 1}))
    assert [finding.tokens for finding in found] == [4, 3]


def test_regions_need_no_rule() -> None:
    text = "a\n<!-- token-budget: 3 -->\nb c d\n<!-- token-budget: end -->\ne\n"
    (finding,) = check(text)
    assert (finding.section, finding.budget, finding.rule) == ("lines 2 to 4", 3, "region")
    assert finding.message.startswith("lines 2 to 4 in AGENTS.md are 11 tokens")


def test_a_region_of_one_line_is_named_so() -> None:
    (finding,) = check("a\n<!-- token-budget: 3 -->")
    assert finding.section == "line 2"
    assert finding.message.startswith("line 2 in AGENTS.md is 4 tokens, 1 over its budget of 3")


def test_ignore_marks_apply() -> None:
    budget = Budget(files=("*.md",), max_tokens=1, sections={"A": 1, "B": 1})
    assert check("<!-- token-budget: ignore -->\n# A\nx\n", budget) == []
    text = "\n" * 10 + "# A\nx\n<!-- token-budget: ignore -->\n## B\ny z\n# B\ny z\n"
    assert [finding.section for finding in check(text, budget)] == [None, "B"]


@pytest.mark.parametrize(("own", "others", "start"), [(5, 6, 4), (5, 20, 0), (5, 10, 0)])
def test_group_budget_leaves_what_other_files_do_not_use(own: int, others: int, start: int) -> None:
    budget = Budget(files=("*.md",), max_tokens=10, sum=True)
    rules = Rules(Settings(budgets=(budget,))).of("a.md")
    counter = TextCounter(words(own), lambda _: Words())
    rest_of_group = {"budget[0]": RestOfGroup(others, 3)}
    (finding,) = evaluate("a.md", words(own), rules, counter, "gpt-5", rest_of_group)
    assert (finding.tokens, finding.files) == (own + others, 3)
    assert words(own)[finding.start :].split() == ["w"] * (own - start)
    assert finding.message.startswith(
        f"a.md and 2 other files together are {own + others} tokens, "
    )
    assert "over their budget of 10" in finding.message


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ([20, 30], "x1.md 30, x0.md 20, a.md 5"),
        ([1, 2, 3, 4], "a.md 5, x3.md 4, x2.md 3 and 2 others"),
        ([60, 70, 80, 90, 50], "x3.md 90, x2.md 80, x1.md 70, a.md 5 and 2 others"),
        ([9, 9, 9, 9], "x0.md 9, x1.md 9, x2.md 9, a.md 5 and 1 other"),
    ],
)
def test_a_shared_budget_names_its_largest_files_and_this_file(
    sizes: list[int], names: str
) -> None:
    budget = Budget(files=("*.md",), max_tokens=10, sum=True)
    rules = Rules(Settings(budgets=(budget,))).of("a.md")
    others = [GroupMember(f"x{number}.md", size) for number, size in enumerate(sizes)]
    rest = RestOfGroup(sum(sizes), len(sizes) + 1, members_to_name(others))
    counter = TextCounter(words(5), lambda _: Words())
    (finding,) = evaluate("a.md", words(5), rules, counter, "gpt-5", {"budget[0]": rest})
    assert finding.message.endswith(f": {names}")


RULES_OF: list[tuple[str, list[str]]] = read_rows("budgets", "rules_of")
"""Paths, each with the rules that apply to it. Each glob in a preset must match a path here."""


@pytest.mark.parametrize(("path", "expected"), RULES_OF)
def test_rules_of_a_file(path: str, expected: list[str]) -> None:
    budgets = (
        Budget(files=("AGENTS.md",), max_tokens=1),
        Budget(files=("sub/*.md",), sections={"A": 1}),
        Budget(files=("prompts/**/*.md", "!old.md"), max_tokens=1),
    )
    rules = Rules(Settings(budgets=budgets, presets=True))
    found = [f"{rule.key.partition('[')[0]} {rule.budget.files[0]}" for rule in rules.of(path)]
    assert found == expected


@pytest.mark.parametrize("glob", [glob for preset in presets() for glob in preset.files])
def test_every_glob_of_a_preset_has_an_example(glob: str) -> None:
    rule = Rule("preset", Budget(files=(glob,), max_tokens=1))
    rules = Rules(Settings())
    assert any(rules.matches(rule, path) for path, _ in RULES_OF), "add a path to rules_of"


def test_presets_are_off_by_default() -> None:
    assert not Rules(Settings())
    assert Rules(Settings()).of("AGENTS.md") == []


def test_sums_find_their_files() -> None:
    budget = Budget(files=("*.md", "!b.md"), max_tokens=1, sum=True)
    rules = Rules(Settings(budgets=(budget,)))
    assert rules.sums == [Rule("budget[0]", budget)]
    paths = ["a.md", "b.md", "c/d.md", "e.py"]
    assert [path for path in paths if rules.matches(rules.sums[0], path)] == ["a.md", "c/d.md"]


@functools.cache
def encoding(name: str) -> tiktoken.Encoding:
    """Return tiktoken's own implementation of an encoding."""
    return tiktoken.Encoding(
        name,
        pat_str=VOCABULARIES[name].pattern,
        mergeable_ranks=load_ranks(VOCABULARIES[name]),
        special_tokens={},
    )


ENGINES = [make(name) for name in ("o200k_base", "cl100k_base") for make in (engine, Reference)]
texts = st.text(
    st.one_of(st.sampled_from("ab e\n\r\t.,'/汉字é😀👩\u200d한नि"), st.characters(codec="utf-8")),
    max_size=200,
)


@given(texts, st.integers(0, 120), st.sampled_from([1, 40]), st.sampled_from(ENGINES))
def test_excess_starts_at_the_first_token_past_the_budget(
    text: str, allowance: int, times: int, chosen: Tokenizer
) -> None:
    text *= times
    allowance *= times
    tokens = encoding(chosen.name).encode_ordinary(text)
    before = encoding(chosen.name).decode_bytes(tokens[:allowance])
    expected = len(text.encode()[: len(before)].decode("utf-8", "ignore"))
    assert excess_start(split_pieces(text), allowance, chosen) == expected


@given(st.text("ab \n", max_size=60), st.integers(-1, 40))
def test_without_token_offsets_excess_starts_after_the_longest_prefix(
    text: str, allowance: int
) -> None:
    tokenizer = Words()
    at = TextCounter(text, lambda _: tokenizer).excess_start("x", 0, len(text), allowance)
    assert tokenizer.count(text[:at]) <= max(0, allowance)
    assert at == len(text) or tokenizer.count(text[: at + 1]) > max(0, allowance)


URI = "file:///ws/notes.md"
MARK = "token-budget: ignore"


def budgeted() -> Workspace:
    settings = Settings(budgets=(Budget(files=("*.md",), max_tokens=10),))
    return Workspace(None, None, loaded=Loaded(settings, (), {}), rules=Rules(settings))


class ReadPiece(Piece):
    """A piece that records whether its text has been read."""

    __slots__ = ("_content", "read")

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.read = False

    @property
    def text(self) -> str:
        self.read = True
        return self._content

    @text.setter
    def text(self, text: str) -> None:
        self._content = text


@pytest.mark.parametrize("before", [0, 5, 2_030, 20_000])
def test_ignore_mark_in_any_piece_of_the_first_lines_applies(before: int) -> None:
    document = TextDocument(URI, f"{'x, ' * (before // 3)}\n<!-- {MARK} -->\n" + "word\n" * 9_000)
    assert find_lowest_budget(Snapshot.of(document), budgeted()) is None
    document.apply(None, document.text.replace(MARK, "no mark"))
    assert find_lowest_budget(Snapshot.of(document), budgeted()) == 10


def test_ignore_mark_is_searched_for_only_at_the_beginning() -> None:
    pieces = [ReadPiece("x, " * 700) for _ in range(100)]
    assert find_lowest_budget(Snapshot(pieces, uri=URI), budgeted()) == 10
    read = [piece.read for piece in pieces]
    assert sum(read) * 2_100 < HEAD_CHARACTERS + 2_100
    assert not any(read[sum(read) :])


async def test_region_that_begins_and_ends_in_other_pieces_is_found(services: Services) -> None:
    services.roots.outside.rules = Rules(Settings())
    text = "y" * 2_040 + " # token-budget: 1\nmore words\n" + "word\n" * 2_000
    document = TextDocument(URI, text)
    assert document.pieces[0].text.endswith(" # token-budget: 1"), "its text is in later pieces"
    workspace, snapshot = services.roots.outside, Snapshot.of(document)
    subject = services.budgets.subject(snapshot, workspace)
    (finding,) = await services.budgets.findings(subject, workspace)
    assert finding.rule == "region"


class ThreadedRules(Rules):
    """Rules that record the thread on which each file is matched."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.threads: dict[str, str] = {}

    def matches(self, rule: Rule, path: str) -> bool:
        self.threads[path] = current_thread().name
        return super().matches(rule, path)


@pytest.mark.slow
async def test_unchanged_files_of_a_large_group_are_counted_once(
    tmp_path: Path, services: Services
) -> None:
    root = tmp_path / "work"
    root.mkdir()
    for number in range(10_010):
        (root / f"{number}.md").write_text("one")
    workspace = services.roots.add(root.as_uri())
    rule = Budget(files=("*.md",), max_tokens=1, sum=True)
    workspace.loaded = Loaded(Settings(budgets=(rule,)), (), {})
    workspace.rules = Rules(workspace.settings)
    for expected in (10_009, 0):
        snapshot = Snapshot.of(TextDocument((root / "0.md").as_uri(), "two"))
        subject = services.budgets.subject(snapshot, workspace)
        with recorded_opens(root) as opened:
            (finding,) = await services.budgets.findings(subject, workspace)
        assert finding.files == 10_010
        assert len([path for path in opened if path.endswith(".md")]) == expected


async def test_other_files_of_a_group_are_matched_on_a_worker(
    tmp_path: Path, services: Services
) -> None:
    for name in ("own.md", "other.md", "code.py"):
        (tmp_path / name).write_text("one two three")
    workspace = services.roots.add(tmp_path.as_uri())
    rule = Budget(files=("*.md",), max_tokens=1, sum=True)
    workspace.loaded = Loaded(Settings(budgets=(rule,)), (), {})
    workspace.rules = rules = ThreadedRules(workspace.settings)
    snapshot = Snapshot.of(TextDocument((tmp_path / "own.md").as_uri(), "one two three"))
    subject = services.budgets.subject(snapshot, workspace)
    (finding,) = await services.budgets.findings(subject, workspace)
    assert finding.files == 2
    assert current_thread().name not in (rules.threads["other.md"], rules.threads["code.py"])
